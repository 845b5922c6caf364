"""The commands and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from workbench.cli import commands as functions
from workbench.cli.codes import EPILOG
from workbench.core.profile import DEFAULT_ITERATIONS


def parser() -> argparse.ArgumentParser:
    """Every command with its options; `command` of what it parses is the function to call."""
    made = argparse.ArgumentParser(
        prog="workbench",
        description="Make a model fast, cheap and small, and believe the result.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    from workbench import __version__

    made.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")

    doctor = _command(
        commands, "doctor", functions.doctor, "what is here, what works, what does not and why"
    )
    _json_option(doctor)
    _python_option(doctor)

    levers = _command(
        commands, "levers", functions.levers, "every engine and lever, for this device"
    )
    _json_option(levers)
    _python_option(levers)
    levers.add_argument("--study", metavar="DIR", help="judge by this study's model")

    run = _command(commands, "run", functions.run, "build, run and compare variants of a model")
    run.add_argument(
        "model",
        metavar="MODEL",
        help="package.module:factory, a file, a Hugging Face folder, or sample:NAME",
    )
    run.add_argument(
        "--recipe",
        action="append",
        default=[],
        metavar="SPEC",
        help="such as engine=onnxruntime,quantization=int8-dynamic,batch=8; may be repeated",
    )
    run.add_argument(
        "--all",
        action="store_true",
        help="a sensible set for this model and device; also without any --recipe",
    )
    run.add_argument(
        "--budget", type=_positive, metavar="S", help="seconds to measure each variant"
    )
    run.add_argument("--study", metavar="DIR", help="a new folder, or a study to go on with")
    run.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="SPEC",
        help='such as "x: f32[batch, 3, 224, 224]"; may be repeated',
    )
    run.add_argument("--state", metavar="FILE", help="a state dict for a factory")
    run.add_argument("--evaluation", metavar="FILE", help="rows to compare outputs on, an .npz")
    run.add_argument("--labels", metavar="FILE", help="their labels, an .npy")
    run.add_argument("--calibration", metavar="FILE", help="rows to calibrate on, an .npz")
    run.add_argument(
        "--task", choices=("classification", "embedding", "language-model", "regression")
    )
    run.add_argument(
        "--trusted", action="store_true", help="open files that run code when they are loaded"
    )
    run.add_argument(
        "--profile", action="store_true", help="record calls of each once all are measured"
    )
    _json_option(run)
    run.add_argument("--html", metavar="FILE", help="write the report there")
    _python_option(run)

    show = _command(commands, "show", functions.show, "a study's comparison")
    show.add_argument("study", metavar="STUDY")
    _json_option(show)
    show.add_argument("--html", metavar="FILE", help="write the report there")
    show.add_argument("--csv", metavar="FILE", help="write one line a variant there")
    show.add_argument("--baseline", type=int, default=1, metavar="N")
    show.add_argument(
        "--goal", choices=("time-per-item", "latency", "throughput"), default="time-per-item"
    )
    show.add_argument(
        "--latency-limit", type=_positive, metavar="S", help="for the goal throughput, in seconds"
    )

    profile = _command(
        commands,
        "profile",
        functions.profile,
        "record calls of a variant, and say where its time and memory go",
    )
    profile.add_argument("study", metavar="STUDY")
    profile.add_argument("variant", metavar="VARIANT", help='a number, or "best"')
    profile.add_argument(
        "--iterations",
        type=int,
        default=DEFAULT_ITERATIONS,
        metavar="N",
        help=f"calls to record ({DEFAULT_ITERATIONS}); fewer where they take over half a minute",
    )
    profile.add_argument(
        "--stacks", action="store_true", help="Python's frames too (PyTorch only; slows it more)"
    )
    _json_option(profile)

    export = _command(
        commands, "export", functions.export, "write a variant as a folder that checks itself"
    )
    export.add_argument("study", metavar="STUDY")
    export.add_argument("variant", metavar="VARIANT", help='a number, or "best"')
    export.add_argument("out", metavar="OUT", help="a new folder")
    export.add_argument("--with-baseline", action="store_true", help="so that speed is checked too")
    export.add_argument(
        "--force", action="store_true", help="also a row that is unfinished or wrong; says so in it"
    )

    stop = _command(commands, "stop", functions.stop, "stop what runs in a study")
    stop.add_argument("study", metavar="STUDY")

    trace = _command(
        commands, "trace", functions.trace, "where the time or the memory of a profiler's file went"
    )
    trace.add_argument(
        "file", metavar="FILE", help="a trace of PyTorch or ONNX Runtime, or a CUDA memory snapshot"
    )
    trace.add_argument(
        "--diff", metavar="OTHER", help="a second trace: what changed from the first to it"
    )
    _json_option(trace)

    samples = _command(commands, "samples", functions.samples, "the bundled sample models")
    _json_option(samples)

    lab = _command(commands, "lab", functions.lab, "JupyterLab on the welcome notebook")
    lab.add_argument("--folder", default=".", help="where the notebook is copied to (here)")
    lab.add_argument("jupyter", nargs="*", help="options for JupyterLab, after --")
    return made


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    parser.set_defaults(command=function)
    return parser


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _python_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", metavar="FILE", help="the interpreter that runs the workers")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value
