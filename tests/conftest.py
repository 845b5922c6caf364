"""What every test shares: where a skip is allowed, and what needs a GPU."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.devices.nvidia import describe_gpus

NO_GPU = "no GPU"
NO_CORPUS = "no corpus"


def allowed_skips() -> set[str]:
    """The reasons for which a test may be skipped where everything is installed."""
    if os.environ.get("WORKBENCH_REQUIRE_CORPUS") == "1":
        return {NO_GPU}
    return {NO_GPU, NO_CORPUS}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("device")]
    if marked and not describe_gpus()[0]:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))
    # Long files first: where two processes share the work, neither ends on one alone.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where WORKBENCH_STRICT_SKIPS=1 and the reason is no excuse.

    A reason may go on after a colon: "no GPU: two are needed".
    """
    if os.environ.get("WORKBENCH_STRICT_SKIPS") != "1":
        return
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if reason.partition(":")[0] not in allowed_skips():
        report.outcome = "failed"
        report.longrepr = f"skipped although everything is installed here: {reason}"


def pytest_configure(config: pytest.Config) -> None:
    """Where tests run in several processes, each has temporary files and a device lock alone.

    Traces are cached in a folder of the run. Studies of two processes then measure at once: no
    test asserts a speed.
    """
    name = os.environ.get("PYTEST_XDIST_WORKER")
    if name is not None:
        folder = Path(tempfile.gettempdir()) / f"workbench-tests-{os.getppid()}-{name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # No test fills the user's cache, or finds there what another version wrote.
    traces = tempfile.mkdtemp(prefix="workbench-traces-")
    os.environ["WORKBENCH_TRACE_CACHE"] = traces
    config.add_cleanup(lambda: shutil.rmtree(traces, ignore_errors=True))
