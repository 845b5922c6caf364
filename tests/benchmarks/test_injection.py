"""Injected work is done, is the model's own, and comes from an unchanged scheduler."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import psutil
import pytest

from benchmarks.busy import busy_core
from benchmarks.command import code_digest
from benchmarks.trials import Control
from benchmarks.truth import Batch, Bench, trials_of


def test_a_busy_process_lives_as_long_as_it_is_wanted():
    me = psutil.Process()
    before = {child.pid for child in me.children()}
    with busy_core():
        (mine,) = [child for child in me.children() if child.pid not in before]
        assert mine.is_running()
    assert not mine.is_running()
    with busy_core(wanted=False):
        assert {child.pid for child in me.children()} == before


def _write(root: Path, text: str) -> Path:
    folder = root / "workbench" / "run"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rounds.py").write_text(text)
    return root


def test_comments_and_docstrings_make_no_other_code(tmp_path):
    first = code_digest(_write(tmp_path, 'def f(x):\n    """Twice."""\n    return 2 * x\n'))
    second = code_digest(_write(tmp_path, "def f(x):\n    # Doubled.\n    return  2*x\n"))
    third = code_digest(_write(tmp_path, "def f(x):\n    return 3 * x\n"))
    assert first == second
    assert first != third


class _Pipeline:
    def __init__(self):
        self.seen = []
        self.call = self.seen.append


def test_every_call_of_a_planted_file_passes_the_model_so_often(tmp_path):
    from benchmarks.injection import _LOOP

    path = tmp_path / "pipeline.py"
    path.write_text("def load(out_dir):\n    return MADE\n" + _LOOP.format(num_passes=21))
    spec = importlib.util.spec_from_file_location("planted", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.MADE = _Pipeline()
    pipeline = module.load("")
    pipeline.call("inputs")
    assert module.MADE.seen == ["inputs"] * 21


@pytest.mark.slow
def test_trials_of_injected_work_run_through_a_study(tmp_path, monkeypatch):
    """Bench raises where the scheduler built anything instead of serving what was planted."""
    monkeypatch.setattr("benchmarks.truth.INJECTED_BUDGET_S", 1.0)
    setup = "tabular-mlp/onnxruntime"
    made = Bench(tmp_path).run(Batch(state="as-is", setup=setup, injected=(0.3, 0.1)))
    trials = trials_of(made)
    assert [trial.truth for trial in trials] == [1 / 1.3, 1 / 1.1]
    assert [trial.failure for trial in trials] == ["", ""]
    assert all(trial.visits for trial in trials if trial.row_state == "done")
    assert [sample.setup for sample in made if isinstance(sample, Control)] == [setup]
