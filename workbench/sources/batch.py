"""Proving what the batch may be: other sizes are run, and rows are run alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.core.model import BatchClaim, TensorSpec
from workbench.sources.running import Results, Run
from workbench.sources.specs import Array, is_integer

# A row may change this much, relative to the largest output, when other rows stand beside
# it: another order of summation, not another computation.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
# What running a user's model at a size it was not made for can raise.
RUN_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """What running showed: the claim, the axis of each output that carries the batch, and
    notes; with the inputs and results of every other size, for proving a source equal."""

    claim: BatchClaim
    output_axes: dict[str, int]
    probes: tuple[dict[str, Array], ...]
    results: tuple[Results, ...]
    notes: tuple[str, ...]


def examine(
    run: Run,
    example: Mapping[str, Array],
    expected: Results,
    specs: Sequence[TensorSpec],
    axes: Mapping[str, int],
    errors: tuple[type[Exception], ...] = RUN_ERRORS,
    fixed: str = "",
) -> Findings:
    """Run batches of other sizes and rows alone, and say what may be claimed.

    `dynamic` needs two sizes beside the example's that ran and gave outputs whose batch axis
    followed. `fixed` is a reason known beforehand why the batch cannot change.
    """
    size = next((int(example[name].shape[axis]) for name, axis in axes.items()), None)

    def refuse(reason: str, sizes: tuple[int, ...] = ()) -> Findings:
        claim = BatchClaim(
            axes=dict(axes),
            dynamic=False,
            example_size=size,
            verified_sizes=sizes,
            reason=reason,
        )
        return Findings(
            claim=claim,
            output_axes=_same_size_axes(expected, size),
            probes=(),
            results=(),
            notes=(),
        )

    if not axes or size is None:
        return refuse("no input has an axis that carries a batch")
    differing = {n: int(example[n].shape[a]) for n, a in axes.items()}
    if len(set(differing.values())) > 1:
        return refuse(f"the inputs differ in size along the batch: {differing}")
    if fixed:
        return refuse(fixed)
    ran: dict[int, Results] = {}
    probes: dict[int, dict[str, Array]] = {}
    failures: dict[int, str] = {}
    # A size below the example's can hide a constant that one above it runs into.
    for other in sorted({1, 3, size + 1, *([2 * size + 1] if size < 4 else [])} - {size}):
        inputs = resize(example, axes, other, specs)
        try:
            ran[other] = run(inputs)
        except errors as error:
            failures[other] = _first_line(error)
            continue
        probes[other] = inputs
    larger = [other for other in ran if other > size]
    if len(ran) < 2 or not larger:
        failed = max(failures)
        return refuse(
            f"a batch of {size} runs and one of {failed} does not: {failures[failed]}",
            tuple(ran),
        )
    output_axes, problem = _output_axes({size: expected, **ran})
    if problem:
        return refuse(problem)
    independent, how = _rows_independent(ran, output_axes)
    notes = [f"a batch of {n} does not run: {why}" for n, why in failures.items()]
    claim = BatchClaim(
        axes=dict(axes),
        dynamic=True,
        example_size=size,
        verified_sizes=tuple(sorted(ran)),
        rows_independent=independent,
        reason=how if independent is False else "",
    )
    return Findings(
        claim=claim,
        output_axes=output_axes,
        probes=tuple(probes.values()),
        results=tuple(ran.values()),
        notes=(*notes, *([how] if how else [])),
    )


def resize(
    example: Mapping[str, Array],
    axes: Mapping[str, int],
    size: int,
    specs: Sequence[TensorSpec],
) -> dict[str, Array]:
    """The example with `size` rows, no two alike: row 0 stays, others are varied from rows.

    Values stay in the input's own range: floats are shuffled within their row and jittered,
    integers shuffled or drawn in the spec's range.
    """
    rng = np.random.default_rng(size)
    by_name = {spec.name: spec for spec in specs}
    resized = {}
    for name, array in example.items():
        if name not in axes:
            resized[name] = array
            continue
        rows = np.moveaxis(array, axes[name], 0)
        chosen = rows[np.arange(size) % len(rows)].copy()
        for row in range(1, size):
            chosen[row] = _vary(chosen[row], by_name[name], rng)
        resized[name] = np.ascontiguousarray(np.moveaxis(chosen, 0, axes[name]))
    return resized


def _vary(row: Array, spec: TensorSpec, rng: np.random.Generator) -> Array:
    shuffled = rng.permutation(row.reshape(-1)).reshape(row.shape)
    if row.dtype.kind == "f":
        spread = float(np.std(row.astype(np.float64))) or 1.0
        jitter = rng.standard_normal(row.shape) * 0.1 * spread
        return np.asarray(shuffled + jitter.astype(row.dtype))
    if is_integer(spec.dtype) and spec.low is not None and spec.high is not None:
        return rng.integers(spec.low, spec.high, size=row.shape).astype(row.dtype)
    return np.asarray(shuffled)


def _output_axes(results: Mapping[int, Results]) -> tuple[dict[str, int], str]:
    """The axis of each output that follows the batch, and what is wrong where none does."""
    sizes = sorted(results)
    first = results[sizes[0]]
    axes: dict[str, int] = {}
    for name, array in first.arrays.items():
        if array is None:
            continue
        shapes = {}
        for size in sizes:
            other = results[size].arrays.get(name)
            if other is None or other.ndim != array.ndim:
                return {}, f"the output {name!r} changes its form with the batch"
            shapes[size] = other.shape
        moving = [
            axis
            for axis in range(array.ndim)
            if len({shape[axis] for shape in shapes.values()}) > 1
        ]
        if len(moving) == 1 and all(shape[moving[0]] == size for size, shape in shapes.items()):
            axes[name] = moving[0]
        elif moving:
            shown = {size: list(shape) for size, shape in shapes.items()}
            return {}, (
                f"the output {name!r} does not have one row per item of the batch: shapes by "
                f"batch size are {shown}"
            )
    if not axes:
        return {}, "no output grows with the batch"
    return axes, ""


def _same_size_axes(expected: Results, size: int | None) -> dict[str, int]:
    return {
        name: 0
        for name, array in expected.arrays.items()
        if array is not None and array.ndim and array.shape[0] == size
    }


def _rows_independent(
    ran: Mapping[int, Results], output_axes: Mapping[str, int]
) -> tuple[bool | None, str]:
    """Whether row 0, the same in every size that ran, comes out the same in each."""
    least, *others = sorted(ran)
    alone = ran[least]
    together = {size: ran[size] for size in others}
    worst, allowed, where = 0.0, 0.0, ""
    for size, batch in together.items():
        for name, axis in output_axes.items():
            one, many = alone.arrays[name], batch.arrays[name]
            assert one is not None, name
            assert many is not None, name
            if one.dtype.kind not in "fc":
                continue
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            left = one.take(0, axis=axis).astype(wide)
            right = many.take(0, axis=axis).astype(wide)
            if left.shape != right.shape:
                return False, f"rows depend on the batch: {name!r} changes its shape with it"
            scale = float(np.max(np.abs(left), initial=0.0)) or 1.0
            limit = TOLERANCE.get(alone.dtypes[name], 1e-4)
            error_now = float(np.max(np.abs(left - right), initial=0.0)) / scale
            if not np.isfinite(error_now):
                continue
            if error_now > limit:
                return False, (
                    f"rows depend on the batch: row 0 of {name!r} changes by {error_now:.2g} of "
                    f"its largest value between batches of {least} and {size} "
                    f"(allowed: {limit:g})"
                )
            if error_now >= worst:
                worst, allowed, where = error_now, limit, name
    if not where:
        return None, ""
    return True, (
        f"row 0 in batches of {', '.join(map(str, sorted(ran)))} differs by at most {worst:.2g} "
        f"of the largest value of {where!r} (allowed: {allowed:g})"
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def dynamic_specs(specs: Sequence[TensorSpec], axes: Mapping[str, int]) -> tuple[TensorSpec, ...]:
    """Specs with the batch axis named "batch"."""
    named = []
    for spec in specs:
        shape = list(spec.shape)
        if spec.name in axes:
            shape[axes[spec.name]] = "batch"
        named.append(replace(spec, shape=tuple(shape)))
    return tuple(named)
