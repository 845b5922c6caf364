"""Every command exits 0 on samples that hold, and 1 on each kind of sample that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks import demo, isolation, overhead, toggle, traces, truth
from benchmarks.command import Benchmark, code_digest, run, write_samples
from tests.benchmarks import made

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "truth": (truth.BENCHMARK, made.truth_samples),
    "demo": (demo.BENCHMARK, made.demo_samples),
    "overhead": (overhead.BENCHMARK, made.overhead_samples),
    "toggle": (toggle.BENCHMARK, made.toggle_samples),
    "isolation": (isolation.BENCHMARK, made.isolation_samples),
    "traces": (traces.BENCHMARK, made.traces_samples),
}


@pytest.fixture(autouse=True)
def _code(monkeypatch):
    monkeypatch.setattr(truth, "code_digest", lambda: made.CODE)


def judge(benchmark: Benchmark, samples: list, path: Path, capsys) -> tuple[int, dict]:
    """Exit code and document of a command on these samples."""
    write_samples(path, samples)
    code = run(benchmark, ["--json", "--samples", str(path)])
    return code, json.loads(capsys.readouterr().out)


def failing(document: dict) -> set[str]:
    return {claim["name"] for claim in document["claims"] if not claim["holds"]}


def replaced(samples: list, chosen, **changes) -> list:
    """The samples, the chosen ones with other fields."""
    return [msgspec.structs.replace(s, **changes) if chosen(s) else s for s in samples]


@pytest.mark.parametrize("name", COMMANDS)
def test_samples_that_hold_exit_0(name, tmp_path, capsys):
    benchmark, good = COMMANDS[name]
    code, document = judge(benchmark, good(), tmp_path / "samples.jsonl", capsys)
    assert failing(document) == set()
    assert code == 0
    assert [claim["name"] for claim in document["claims"]] == list(benchmark.claims)
    assert document["holds"] is True
    assert document["quick"] is False


@pytest.mark.parametrize("name", COMMANDS)
def test_no_samples_exit_1_with_every_claim_listed(name, tmp_path, capsys):
    benchmark, _ = COMMANDS[name]
    code = run(benchmark, ["--json", "--samples", str(tmp_path / "absent.jsonl")])
    document = json.loads(capsys.readouterr().out)
    assert code == 1
    assert failing(document) == set(benchmark.claims)
    assert all(claim["value"] is None for claim in document["claims"])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_which_claim_does_not_hold(name, tmp_path, capsys):
    benchmark, _ = COMMANDS[name]
    assert run(benchmark, ["--samples", str(tmp_path / "absent.jsonl")]) == 1
    assert "NO" in capsys.readouterr().out


def is_trial(**wanted):
    return lambda s: (
        isinstance(s, truth.Trial)
        and all(getattr(s, key) == value for key, value in wanted.items())
    )


def first(num: int, chosen):
    """The first `num` of the chosen ones."""
    left = iter(range(num))
    return lambda s: chosen(s) and next(left, None) is not None


SAME = is_trial(injected=0.0)
# What is wrong, which claims it must turn red.
FAILING = [
    ("truth", lambda s: replaced(s, first(5, SAME), verdict="faster"), {"false verdicts"}),
    ("truth", lambda s: replaced(s, first(5, SAME), verdict_at_end="slower"), {"false verdicts"}),
    (
        "truth",
        lambda s: replaced(s, first(20, is_trial(state="busy")), low=2.0, high=3.0),
        {"cover the truth, busy"},
    ),
    (
        "truth",
        lambda s: replaced(s, first(20, is_trial(state="as-is")), low=None, high=None),
        {"cover the truth, as-is"},
    ),
    (
        "truth",
        lambda s: replaced(s, first(2, is_trial(injected=0.3, state="busy")), verdict="undecided"),
        {"30% more work decided within 15 s, busy"},
    ),
    (
        "truth",
        lambda s: replaced(
            s,
            first(7, is_trial(injected=0.1, state="as-is")),
            visits=tuple(
                msgspec.structs.replace(v, own_s=8.0) for v in made.raw_visits(-0.0953, 1)
            ),
        ),
        {"10% more work decided within 40 s, as-is"},
    ),
    (
        "truth",
        lambda s: replaced(
            s, first(7, is_trial(injected=0.05, state="busy")), row_state="failed", verdict=None
        ),
        {"5% more work decided within 120 s, busy"},
    ),
    ("truth", lambda s: replaced(s, is_trial(), setup="digits-cnn/torch"), {"two models"}),
    # Trials of other measuring code count for nothing.
    ("truth", lambda s: replaced(s, lambda _: True, code="earlier"), set(truth.NAMES)),
    (
        "truth",
        lambda s: [x for x in s if not (SAME(x) and x.state == "busy" and x.batch.endswith("-0"))],
        {"false verdicts", "cover the truth, busy"},
    ),
    ("truth", lambda s: [x for x in s if isinstance(x, truth.Trial)], {"rounds needed"}),
    (
        "demo",
        lambda s: replaced(s, lambda x: isinstance(x, demo.Exported), check_exit_code=1),
        {"exit code"},
    ),
    ("demo", lambda s: [x for x in s if isinstance(x, demo.Row)], {"exit code", "exported"}),
    ("demo", lambda s: replaced(s, lambda x: isinstance(x, demo.Row), labels=("fp32",)), {"int8"}),
    (
        "demo",
        lambda s: replaced(s, lambda x: isinstance(x, demo.Row), verdict="faster"),
        {"decided slower"},
    ),
    (
        "demo",
        lambda s: replaced(s, lambda x: isinstance(x, demo.Row) and x.number > 6, verdict=None),
        {"variants decided", "decided slower"},
    ),
    (
        "demo",
        lambda s: replaced(s, lambda x: isinstance(x, demo.Row) and x.number > 8, state="failed"),
        {"variants measured", "decided slower"},
    ),
    (
        "demo",
        lambda s: replaced(s, lambda x: isinstance(x, demo.Row) and x.number > 8, num_recorded=0),
        {"variants profiled"},
    ),
    (
        "overhead",
        lambda s: replaced(s, lambda x: x.setup == overhead.SETUPS[0].name, bare_s=(0.0019,) * 20),
        {overhead.SETUPS[0].name},
    ),
    # Shorter calls than the claim is about, and blocks that differ too much to tell.
    (
        "overhead",
        lambda s: replaced(s, lambda _: True, bare_s=(9e-4,) * 20, round_s=(9e-4,) * 20),
        {setup.name for setup in overhead.SETUPS},
    ),
    (
        "overhead",
        lambda s: [
            msgspec.structs.replace(x, round_s=(0.0018 if i % 2 else 0.0022,) * 20)
            for i, x in enumerate(s)
        ],
        {setup.name for setup in overhead.SETUPS},
    ),
    (
        "toggle",
        lambda s: replaced(s, lambda x: getattr(x, "kind", "") == "flag", seconds=1.1),
        {"flag-only"},
    ),
    (
        "toggle",
        lambda s: replaced(s, lambda x: getattr(x, "kind", "") == "onnxruntime", seconds=5.1),
        {"ONNX Runtime"},
    ),
    (
        "toggle",
        lambda s: replaced(
            s, first(1, lambda x: getattr(x, "kind", "") == "flag"), seconds=None, failure="broke"
        ),
        {"flag-only"},
    ),
    (
        "toggle",
        lambda s: replaced(s, lambda x: getattr(x, "kind", "") == "flag", num_pairs=5),
        {"flag-only"},
    ),
    (
        "toggle",
        lambda s: [x for x in s if not isinstance(x, toggle.Fresh)],
        {"flag-only", "ONNX Runtime"},
    ),
    (
        "isolation",
        lambda s: replaced(s, lambda x: getattr(x, "place", 0) == 5, state="failed"),
        {"rows of ten"},
    ),
    (
        "isolation",
        lambda s: replaced(s, lambda x: getattr(x, "place", 0) == 10, peak_bytes=53_000_000),
        {"peak memory"},
    ),
    (
        "isolation",
        lambda s: replaced(s, lambda x: getattr(x, "place", 0) == 1, peak_bytes=None),
        {"peak memory"},
    ),
    (
        "isolation",
        lambda s: [x for x in s if getattr(x, "place", 0) != 10],
        set(isolation.NAMES),
    ),
    (
        "isolation",
        lambda s: replaced(s, lambda x: isinstance(x, isolation.FirstAndTenth), verdict="slower"),
        {"differ in time"},
    ),
    (
        "isolation",
        lambda s: replaced(
            s, lambda x: isinstance(x, isolation.FirstAndTenth), verdict=None, ratio=None
        ),
        {"differ in time"},
    ),
    (
        "isolation",
        lambda s: replaced(
            s,
            lambda x: isinstance(x, isolation.Left),
            alive=("7 python",),
            files=("/dev/shm/x",),
            lock_free=False,
            free_after_bytes=7_000_000_000,
        ),
        {"left running", "files left", "locks left", "not given back"},
    ),
    (
        "isolation",
        lambda s: replaced(s, lambda x: isinstance(x, isolation.Left), num_seen=0),
        {"left running"},
    ),
    (
        "traces",
        lambda s: replaced(s, reads("workbench", "hta"), cpu_s=10.0, peak_bytes=2_500_000_000),
        {"times faster than", "of the peak memory", "peak memory, 10"},
    ),
    # A peer that failed is no peer that was beaten.
    (
        "traces",
        lambda s: replaced(s, reads("hta"), cpu_s=None, peak_bytes=None, failure="no such module"),
        {"HolisticTraceAnalysis"},
    ),
    ("traces", lambda s: replaced(s, reads("reopened"), cpu_s=0.06), {"opened again"}),
    ("traces", lambda s: replaced(s, reads("tables"), cpu_s=1.1), {"every table"}),
    ("traces", lambda s: replaced(s, reads("loop"), num_kernels=149_999), {"kernels found"}),
    (
        "traces",
        lambda s: replaced(s, lambda x: getattr(x, "stored_bytes", None), stored_bytes=700_000_000),
        {"bytes stored"},
    ),
    (
        "traces",
        lambda s: replaced(s, lambda x: isinstance(x, traces.Fuzzed), num_bad=1),
        {"ended badly"},
    ),
    (
        "traces",
        lambda s: replaced(s, lambda x: isinstance(x, traces.Fuzzed), num=99_999),
        {"ended badly"},
    ),
]


def reads(*ways: str):
    """Which samples are readings of these ways."""
    return lambda sample: getattr(sample, "way", None) in ways


def marks(index: int, name: str) -> list:
    """Slow are all but the first two of the truth benchmark: each decides 380 trials again."""
    return [pytest.mark.slow] if name == "truth" and index > 1 else []


CASES = [pytest.param(*case, marks=marks(i, case[0])) for i, case in enumerate(FAILING)]


@pytest.mark.parametrize(("name", "spoil", "expected"), CASES)
def test_samples_that_do_not_hold_exit_1(name, spoil, expected, tmp_path, capsys):
    benchmark, good = COMMANDS[name]
    code, document = judge(benchmark, spoil(good()), tmp_path / "samples.jsonl", capsys)
    assert code == 1
    red = failing(document)
    assert red
    for words in expected:
        assert any(words in claim for claim in red), (words, red)
    for claim in red:
        assert any(words in claim for words in expected), (claim, expected)


@pytest.mark.slow
def test_four_false_verdicts_of_two_hundred_are_allowed(tmp_path, capsys):
    samples = replaced(made.truth_samples(), first(4, SAME), verdict="faster")
    code, _ = judge(truth.BENCHMARK, samples, tmp_path / "samples.jsonl", capsys)
    assert code == 0


def test_a_quick_run_is_marked_and_judged_by_plain_shares(tmp_path, capsys):
    path = tmp_path / "samples.jsonl"
    samples = [
        s
        for s in made.truth_samples()
        if s.batch.endswith("-0") and not (isinstance(s, truth.Trial) and s.verdict is None)
    ]
    write_samples(path, samples)
    assert run(truth.BENCHMARK, ["--json", "--quick", "--samples", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["quick"] is True
    assert run(truth.BENCHMARK, ["--json", "--samples", str(path)]) == 1


def test_a_quick_run_leaves_published_samples_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.command.RESULTS", tmp_path)
    seen = []

    def measure(options):
        seen.append(options.out)
        return []

    quick = Benchmark(
        name="overhead",
        about="",
        claims=overhead.BENCHMARK.claims,
        sample_type=overhead.Block,
        measure=measure,
        judge=overhead.judge,
        figures=overhead.figures,
    )
    assert run(quick, ["--json", "--quick"]) == 1
    assert seen == [tmp_path / "quick"]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_process_itself_exits_with_the_code(name, tmp_path):
    _, good = COMMANDS[name]
    held, empty = tmp_path / "held.jsonl", tmp_path / "empty.jsonl"
    samples = good()
    if name == "truth":
        samples = replaced(samples, lambda _: True, code=code_digest())
    write_samples(held, samples)
    empty.touch()
    for path, expected in ((held, 0), (empty, 1)):
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json", "--samples", str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, done.stderr
        assert json.loads(done.stdout)["benchmark"] == name


def test_a_run_that_is_interrupted_says_so(tmp_path, capsys):
    def measure(_):
        raise KeyboardInterrupt

    stopped = replace(overhead.BENCHMARK, measure=measure)
    assert run(stopped, ["--out", str(tmp_path)]) == 130
    assert "stopped" in capsys.readouterr().err
