"""From what went wrong in a worker to a row's failure, with what to do about it."""

from __future__ import annotations

import signal
import traceback
from pathlib import Path

from workbench.core.errors import RunError, WorkbenchError
from workbench.core.failure import Failure, FailureKind, Stage
from workbench.core.units import format_seconds
from workbench.core.variant import State
from workbench.run.protocol import Failed

_LOG_TAIL_CHARS = 4_000


class WorkerGone(RunError):
    """The worker ended in the middle of an order; `code` is Popen's returncode."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the worker ended with {code}")
        self.code = code


class WorkerFailed(RunError):
    """The worker answered that the order raised."""

    def __init__(self, answer: Failed) -> None:
        super().__init__(answer.message)
        self.answer = answer


class StageTimeout(RunError):
    """An order took longer than its stage may."""

    def __init__(self, stage: str, limit_s: float) -> None:
        super().__init__(f"{stage} took longer than {limit_s:g} s")
        self.limit_s = limit_s


class RowStopped(RunError):
    """The user stopped the row that is being worked on."""


class RowFailed(RunError):
    """The row has failed, and this is what it keeps."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def outcome_of(error: Exception, stage: Stage, log: Path) -> tuple[State, Failure]:
    """How a row ends whose work raised `error`, and what it keeps."""
    if isinstance(error, RowStopped):
        return "stopped", stopped(stage)
    if isinstance(error, RunError):
        return "failed", failure_of(error, stage, log)
    if isinstance(error, WorkbenchError):
        return "failed", Failure(kind="unavailable", stage=stage, message=str(error))
    return "failed", _internal(error, stage)


def failure_of(error: RunError, stage: Stage, log: Path) -> Failure:
    """The failure that a row keeps."""
    if isinstance(error, RowFailed):
        return error.failure
    if isinstance(error, WorkerGone):
        return _gone(error.code, stage, log)
    if isinstance(error, StageTimeout):
        return Failure(
            kind="timeout",
            stage=stage,
            message=f"{stage} took longer than its limit of {format_seconds(error.limit_s)}",
            remedy="Ask for fewer iterations, or read the log."
            if stage == "profile"
            else f"Raise the limit with limits_s={{'{stage}': ...}}, or read the log.",
            detail=log_tail(log),
        )
    if isinstance(error, WorkerFailed):
        return _raised(error.answer, stage)
    return Failure(kind="exception", stage=stage, message=str(error), detail=log_tail(log))


def _gone(code: int | None, stage: Stage, log: Path) -> Failure:
    detail = log_tail(log)
    if code is not None and code < 0:
        number = -code
        if number == signal.SIGKILL:
            return Failure(
                kind="out_of_memory",
                stage=stage,
                message=f"worker was killed in {stage} (signal 9), most likely for memory",
                remedy="Free memory on this machine, or try a smaller batch or precision.",
                detail=detail,
            )
        return Failure(
            kind="crash",
            stage=stage,
            message=f"worker crashed in {stage} (signal {number})",
            remedy="Native code failed: read the end of the log, and try another engine, "
            "precision or fusion value for this model.",
            detail=detail,
        )
    return Failure(
        kind="exit",
        stage=stage,
        message=f"worker exited in {stage} (code {code})",
        remedy="Something called exit: look for it in the model's own code and the log.",
        detail=detail,
    )


def _raised(answer: Failed, stage: Stage) -> Failure:
    first_line = answer.message.strip().splitlines()[0] if answer.message.strip() else ""
    if answer.kind == "out_of_memory":
        return Failure(
            kind="out_of_memory",
            stage=stage,
            message=f"out of memory in {stage}: {_shorten(first_line)}",
            remedy="Try a smaller batch, a lower precision, or quantized weights.",
            detail=answer.traceback,
        )
    kind: FailureKind = "unavailable" if answer.kind == "refused" else "exception"
    message = first_line if answer.kind == "refused" else f"{answer.error}: {first_line}"
    return Failure(
        kind=kind,
        stage=stage,
        message=_shorten(message or answer.error),
        remedy=_remedy(answer, stage),
        detail=answer.traceback,
    )


def _remedy(answer: Failed, stage: Stage) -> str:
    text = f"{answer.error} {answer.message}"
    if answer.error in ("ModuleNotFoundError", "ImportError"):
        return "Install what is missing in the study's interpreter, then run the row again."
    if "NOT_IMPLEMENTED" in text or "NotImplemented" in text:
        return "This engine has no kernel for that type: try another precision or engine."
    # By the time that it is profiled it has been converted.
    if stage != "profile" and _is_of_conversion(answer, text):
        return "The model could not be converted: try the engine torch or torch-compile."
    return "The whole traceback is in the row's detail and in its log."


def _is_of_conversion(answer: Failed, text: str) -> bool:
    return "Unsupported" in answer.error or "torch.export" in text or "onnx" in text.lower()


def _shorten(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def log_tail(log: Path) -> str:
    """The last lines of a worker's log; "" where there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _LOG_TAIL_CHARS))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def stopped(stage: Stage) -> Failure:
    """What a row keeps that the user stopped."""
    return Failure(
        kind="stopped",
        stage=stage,
        message=f"stopped in {stage}",
        remedy="Resume it to go on; what was measured is kept.",
    )


def _internal(error: Exception, stage: Stage) -> Failure:
    """A fault of ours, which costs one row."""
    return Failure(
        kind="exception",
        stage=stage,
        message=f"the workbench itself failed: {type(error).__name__}: {error}",
        remedy="This is a fault of the workbench: report it with the row's detail.",
        detail="".join(traceback.format_exception(error)),
    )
