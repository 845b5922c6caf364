# For clones: every target sets up .venv itself, and that is quick the second time.

PYTHON ?= python3
PYTHON312 ?= python3.12
VENV ?= .venv
EXTRAS ?= all,dev

# The stamp changes with what is installed, not with the clock: a fresh checkout of the same
# files, or a branch and back, installs nothing again.
KEY := $(shell cat pyproject.toml constraints.txt Makefile | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.set-up-$(KEY)
BIN := $(VENV)/bin
# Files of tests share what they have made, so a file stays in one process.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

.PHONY: help install demo lab check test test-3.12 readme constraints clean

help:
	@echo "make demo      build and compare variants of a bundled model, with a report"
	@echo "make test      every test"
	@echo "make lab       JupyterLab on a welcome notebook"
	@echo "make check     formatter, linter, types, import contracts and the quick tests"
	@echo "make install   the set-up alone, into $(VENV)"
	@echo "make test-3.12 every test on Python 3.12"

install: $(STAMP)

# torch goes first and alone: its builds differ by index, and the one that pip finds here is
# the one that everything else has to fit.
$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is older than Python 3.11: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "Setting up $(VENV): some minutes and about 2.5 GB, once."
	@$(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.set-up-*
	@$(BIN)/python -m pip install -qq -c constraints.txt torch
	@$(BIN)/python -m pip install -qq -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

demo: install
	$(BIN)/python -m benchmarks.demo

lab: install
	$(BIN)/jupyter lab notebooks/welcome.ipynb

# Beside `test`, as in `make check test`, the quick tests run once, there.
check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
ifeq ($(filter test,$(MAKECMDGOALS)),)
	$(PYTEST) -m "not slow and not device"
endif

test: install
	$(PYTEST)

# The support table in the README, after a lever, an engine or a recorded run has changed.
readme: install
	$(BIN)/python -m tests.packaging.support_table

test-3.12:
	$(MAKE) test PYTHON=$(PYTHON312) VENV=.venv-3.12

# The newest versions that fit together, with the torch that is pinned now.
constraints:
	$(PYTHON) -m venv --clear .venv-constraints
	.venv-constraints/bin/python -m pip install -qq "$$(grep '^torch==' constraints.txt)"
	.venv-constraints/bin/python -m pip install -qq ".[all,dev]"
	( head -n 1 constraints.txt; .venv-constraints/bin/python -m pip freeze --all \
	  --exclude pip --exclude accel-workbench | sed -E 's/\+[a-z0-9.]+$$//' ) > constraints.new
	mv constraints.new constraints.txt
	rm -rf .venv-constraints

clean:
	rm -rf .venv .venv-3.12 .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
