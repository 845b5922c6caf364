"""What was really executed, read from the artifact or the running worker."""

from __future__ import annotations

from dataclasses import dataclass, field

# Labels of quantization begin so.
_QUANTIZED = ("int8", "uint8", "int4", "fp8")


@dataclass(frozen=True, kw_only=True)
class OperatorUse:
    """One operator at one dtype: how often it ran in one call, and its share of the time.

    `share` is None where no time was recorded.
    """

    name: str
    dtype: str
    num_calls: int
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class GraphBreak:
    """Where torch.compile gave up on one graph, and why."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one variant really executed.

    `precision_share` maps a dtype ("fp32", "bf16", "int8") to its share of `share_of` (time
    or operators); it covers matmuls and convolutions first, since those are what precision
    is about. `labels` is what the row may be called ("bf16", "int8"); `unmet` says in words
    what the recipe asked for and did not get. Counts that were not taken are None.
    """

    device: str
    engine_version: str
    providers: tuple[str, ...] = ()
    num_threads: int | None = None
    thread_wait: str | None = None
    operators: tuple[OperatorUse, ...] = ()
    precision_share: dict[str, float] = field(default_factory=dict)
    share_of: str = "operators"
    num_layers: int | None = None
    num_layers_quantized: int | None = None
    weights_quantized_share: float | None = None
    fused: dict[str, int] = field(default_factory=dict)
    graph_breaks: tuple[GraphBreak, ...] | None = None
    num_compiles: int | None = None
    num_recompiles: int | None = None
    num_graph_launches: int | None = None
    attention: str | None = None
    channels_last: bool | None = None
    labels: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def reading(self) -> str:
        """The labels in words: one that holds for a part of the layers says for which part."""
        quantized, layers = self.num_layers_quantized, self.num_layers
        is_partial = quantized is not None and layers is not None and quantized < layers
        return ", ".join(
            f"{label} in {quantized} of {layers} layers"
            if is_partial and label.startswith(_QUANTIZED)
            else label
            for label in self.labels
        )


def thread_label(num_threads: int) -> str:
    """ "1 thread", "2 threads"."""
    return f"{num_threads} thread{'' if num_threads == 1 else 's'}"
