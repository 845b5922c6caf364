"""`python pipeline.py --check`: an exported folder proves itself.

Everything here is portable: it is cut into `pipeline.py` and needs numpy and the standard
library. What it reads lies in `check/` beside the file:

    inputs.npz, outputs.npz    arrays in, and what the measured variant answered
    evidence.json              what `Pipeline.inspect()` returned when it was measured
    tolerance.json             {"relative": error allowed over the output's largest value}
    files.json                 {relative path: SHA-256} of every file of the folder
    speed.json                 {"ratio", "low", "high", "items", "baseline_items"}, for
                               `baseline/`, a folder of the same form
    raw.npy or raw.json        what `preprocess` took, where the model brings it, and
    preprocessed.npz           what it gave
    postprocessed.npz          the outputs that `postprocess` took, and
    answer.json                what it gave, as JSON
    CAUTION.txt                what is wrong with a variant that was exported all the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.structure import plain_answer
from workbench.engines.source import load_processing
from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Callable


@portable
def command_line(
    file: str,
    build: Callable[[str, str], None],
    load: Callable[[str], Any],
    engine: str,
) -> int:
    """What `python pipeline.py` does: `--check`, or `--build SOURCE OUT`. Returns the exit code."""
    import argparse
    from pathlib import Path

    parser = argparse.ArgumentParser(description=f"One model, served with {engine}.")
    parser.add_argument("--check", action="store_true", help="verify this folder")
    parser.add_argument(
        "--build", nargs=2, metavar=("SOURCE", "OUT"), help="convert a source folder"
    )
    parser.add_argument("--time", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    folder = str(Path(file).resolve().parent)
    if chosen.build:
        build(*chosen.build)
        return 0
    if chosen.time:
        answer_rounds(folder, load)
        return 0
    if chosen.check:
        return check_folder(folder, load)
    parser.print_help()
    return 0


@portable
def check_folder(folder: str, load: Callable[[str], Any]) -> int:
    """Verify files, processing, outputs, what is executed, and speed; 1 on a fault.

    Prints a line each, and first what whoever exported the folder was warned of.
    """
    from pathlib import Path

    caution = Path(folder) / "check" / "CAUTION.txt"
    if caution.exists():
        print(f"CAUTION  {caution.read_text(encoding='utf-8').strip()}")
    parts = ["files", "outputs and execution", "speed"]
    if (Path(folder) / "processing.py").exists():
        parts.insert(1, "processing")
    for name in parts:
        if name == "files":
            faults, said = check_files(folder)
        elif name == "processing":
            faults, said = check_processing(folder)
        elif name == "speed":
            faults, said = check_speed(folder)
        else:
            faults, said = check_answers(folder, load)
        for fault in faults:
            print(f"FAIL  {name}: {fault}")
        if faults:
            print("The check failed.")
            return 1
        print(f"ok    {name}: {said}" if not said.startswith("speed not") else f"-     {said}")
    print("The check passed.")
    return 0


@portable
def check_files(folder: str) -> tuple[list[str], str]:
    """Every file that was exported is here and has the same bytes."""
    import hashlib
    import json
    from pathlib import Path

    listing = Path(folder) / "check" / "files.json"
    if not listing.exists():
        return ["check/files.json is missing"], ""
    faults = []
    expected = json.loads(listing.read_text(encoding="utf-8"))
    for name, digest in expected.items():
        path = Path(folder) / name
        if not path.is_file():
            faults.append(f"{name} is missing")
            continue
        hasher = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                hasher.update(block)
        if hasher.hexdigest() != digest:
            faults.append(f"{name} is not the file that was exported")
    return faults, f"{len(expected)} present and unchanged"


@portable
def check_processing(folder: str) -> tuple[list[str], str]:
    """The model's own `preprocess` and `postprocess` give what they gave when it was exported."""
    import json
    from pathlib import Path

    import numpy

    stored = Path(folder) / "check"
    preprocess, postprocess = load_processing(folder)
    faults, checked = [], []
    raw = None
    if (stored / "raw.npy").exists():
        raw = numpy.load(stored / "raw.npy", allow_pickle=False)
    elif (stored / "raw.json").exists():
        raw = json.loads((stored / "raw.json").read_text(encoding="utf-8"))
    if preprocess is not None and raw is not None and (stored / "preprocessed.npz").exists():
        with numpy.load(stored / "preprocessed.npz", allow_pickle=False) as archive:
            wanted = dict(archive)
        found, _ = compare_outputs(preprocess(raw), wanted, 1e-5)
        faults += [fault.replace("output", "preprocessed input", 1) for fault in found]
        checked.append("preprocess")
    if postprocess is not None and (stored / "answer.json").exists():
        with numpy.load(stored / "postprocessed.npz", allow_pickle=False) as archive:
            outputs = dict(archive)
        for name in json.loads((Path(folder) / "source.json").read_text())["outputs"]:
            outputs.setdefault(name, None)
        answer = json.loads((stored / "answer.json").read_text(encoding="utf-8"))
        got = json.loads(json.dumps(plain_answer(postprocess(outputs))))
        if not answers_agree(got, answer):
            faults.append(f"postprocess gives {got!r:.200}, it gave {answer!r:.200}")
        checked.append("postprocess")
    if not checked:
        return faults, "processing.py is there; there is no raw example to check it with"
    return faults, f"{' and '.join(checked)} as when it was exported"


@portable
def answers_agree(got: Any, wanted: Any) -> bool:
    """Whether two answers in JSON are the same, numbers within 1e-5 of the wanted."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        return got.keys() == wanted.keys() and all(
            answers_agree(got[key], wanted[key]) for key in wanted
        )
    if isinstance(wanted, list) and isinstance(got, list):
        return len(got) == len(wanted) and all(map(answers_agree, got, wanted))
    if isinstance(wanted, float) and isinstance(got, int | float):
        return wanted == got or abs(got - wanted) <= 1e-5 * max(abs(wanted), 1e-6)
    return bool(got == wanted)


@portable
def check_answers(folder: str, load: Callable[[str], Any]) -> tuple[list[str], str]:
    """The outputs are those that were measured, and they are computed in the same way."""
    import json
    from pathlib import Path

    import numpy

    stored = Path(folder) / "check"
    needed = ("inputs.npz", "outputs.npz", "evidence.json", "tolerance.json")
    missing = [name for name in needed if not (stored / name).exists()]
    if missing:
        return [f"check/{name} is missing" for name in missing], ""
    with numpy.load(stored / "inputs.npz", allow_pickle=False) as archive:
        inputs = dict(archive)
    with numpy.load(stored / "outputs.npz", allow_pickle=False) as archive:
        expected = dict(archive)
    tolerance = json.loads((stored / "tolerance.json").read_text(encoding="utf-8"))["relative"]
    pipeline = load(folder)
    faults, worst = compare_outputs(pipeline.predict(inputs), expected, tolerance)
    measured = json.loads((stored / "evidence.json").read_text(encoding="utf-8"))
    here = json.loads(json.dumps(pipeline.inspect(pipeline.place(inputs))))
    faults += compare_executed(here.get("executed", {}), measured.get("executed", {}))
    facts = ", ".join(f"{k} {json.dumps(v)}" for k, v in here.get("executed", {}).items())
    return (
        faults,
        f"{len(expected)} outputs within {tolerance:g} (largest error {worst:.2g}); {facts}",
    )


@portable
def compare_outputs(
    actual: dict[str, Any], expected: dict[str, Any], tolerance: float
) -> tuple[list[str], float]:
    """Faults, and the largest error over an output's largest expected absolute value.

    Integers and booleans must be equal. An output that is None has no array in `expected`.
    """
    import numpy

    faults = []
    worst = 0.0
    names = {name for name, value in actual.items() if value is not None}
    for name in sorted(names ^ set(expected)):
        faults.append(f"output {name} is {'new' if name in names else 'missing'}")
    for name in sorted(names & set(expected)):
        got, wanted = numpy.asarray(actual[name]), numpy.asarray(expected[name])
        if got.shape != wanted.shape:
            faults.append(f"output {name} has shape {got.shape}, expected {wanted.shape}")
        elif wanted.dtype.kind not in "fc":
            if not numpy.array_equal(got, wanted):
                faults.append(f"output {name} differs")
        elif not numpy.array_equal(numpy.isfinite(got), numpy.isfinite(wanted)):
            faults.append(f"output {name} is not finite in the same places")
        elif wanted.size:
            finite = numpy.isfinite(wanted)
            difference = numpy.abs(numpy.where(finite, got, 0) - numpy.where(finite, wanted, 0))
            scale = max(float(numpy.abs(numpy.where(finite, wanted, 0)).max()), 1e-12)
            error = float(difference.max()) / scale
            worst = max(worst, error)
            if error > tolerance:
                faults.append(f"output {name} is off by {error:.3g} of its largest value")
    return faults, worst


@portable
def compare_executed(here: dict[str, Any], measured: dict[str, Any]) -> list[str]:
    """What is executed in another way than when it was measured."""
    if not measured:
        return ["check/evidence.json does not say what was executed"]
    return [
        f"{key} is {here.get(key)!r}, was {value!r} when it was measured"
        for key, value in measured.items()
        if here.get(key) != value
    ]


@portable
def check_speed(folder: str) -> tuple[list[str], str]:
    """The ratio to the baseline is what it was (see `judge_speed`).

    Two processes take turns in short rounds of random order, six visits with a pause
    between; only one of them computes at a time.
    """
    import json
    import math
    import random
    import subprocess
    import sys
    import time
    from pathlib import Path

    stored = Path(folder) / "check" / "speed.json"
    baseline = Path(folder) / "baseline" / "pipeline.py"
    if not (stored.exists() and baseline.exists()):
        return [], "speed not checked: exported without its baseline"
    claim = json.loads(stored.read_text(encoding="utf-8"))
    items = (claim["baseline_items"], claim["items"])
    scripts = (baseline, Path(folder) / "pipeline.py")
    children: list[Any] = []
    try:
        for script in scripts:
            command = [sys.executable, str(script), "--time"]
            pipe = subprocess.PIPE
            children.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        for script, child in zip(scripts, children, strict=True):
            if not child.stdout.readline():
                return [f"{script} does not run"], ""
        visits = []
        for visit in range(6):
            if visit:
                time.sleep(2.0)
            ratios = []
            for _ in range(6):
                seconds = [0.0, 0.0]
                for side in random.sample((0, 1), 2):
                    print("round", file=children[side].stdin, flush=True)
                    seconds[side] = float(children[side].stdout.readline()) / items[side]
                ratios.append(math.log(seconds[0] / seconds[1]))
            visits.append(sum(ratios) / len(ratios))
    finally:
        for child in children:
            child.stdin.close()
            child.wait()
            child.stdout.close()
    ratio = math.exp(sum(visits) / len(visits))
    faults = judge_speed(ratio, claim)
    return faults, f"{ratio:.2f}× as fast as the baseline (measured {claim['ratio']:.2f}×)"


@portable
def judge_speed(ratio: float, claim: dict[str, Any]) -> list[str]:
    """Faults where a ratio is not on the claim's side, or outside its interval times 1.25.

    The margin is for another machine and six short visits. A claim whose interval holds 1
    is on no side.
    """
    margin = 1.25
    low, high = claim["low"] / margin, claim["high"] * margin
    faults = []
    if not low <= ratio <= high:
        faults.append(f"{ratio:.2f}× as fast as the baseline, expected {low:.2f} to {high:.2f}")
    decided = claim["low"] > 1 or claim["high"] < 1
    if decided and (ratio > 1) != (claim["ratio"] > 1):
        faults.append(f"{ratio:.2f}× as fast as the baseline, it was {claim['ratio']:.2f}×")
    return faults


@portable
def answer_rounds(folder: str, load: Callable[[str], Any]) -> None:
    """Time a round for every line on standard input: seconds a call on standard output."""
    import sys
    import time
    from pathlib import Path

    import numpy

    answers = sys.stdout
    sys.stdout = sys.stderr  # what the model prints is no answer
    with numpy.load(Path(folder) / "check" / "inputs.npz", allow_pickle=False) as archive:
        inputs = dict(archive)
    pipeline = load(folder)
    placed = pipeline.place(inputs)

    def seconds_of(num_calls: int) -> float:
        pipeline.synchronize()
        start = time.perf_counter()
        for _ in range(num_calls):
            pipeline.call(placed)
        pipeline.synchronize()
        return time.perf_counter() - start

    for _ in range(5):
        seconds_of(1)
    num_calls = 1
    # A round shorter than 0.1 s would mostly time the machine's other work.
    while seconds_of(num_calls) < 0.1 and num_calls < 1 << 20:
        num_calls *= 2
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(seconds_of(num_calls) / num_calls, file=answers, flush=True)
