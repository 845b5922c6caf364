"""`pipeline.py`: the one file that a worker measures and that export ships."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.engines.render import render
from workbench.engines.requirements import requirements
from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Callable


@portable
class Pipeline:
    """A loaded model: arrays in, arrays out, and the steps between as methods of their own.

    `place` copies named arrays to the device, `call` computes (this is what is timed),
    `synchronize` waits until the device has finished, `fetch` copies the results back as
    numpy arrays by dotted name. `inspect` reports what one call really executes, read from
    the running objects. `preprocess` and `postprocess` are None where the model has none.
    On a GPU `record_event()` marks a place in the device's queue and `elapsed_s(a, b)` is the
    time between two of them; elsewhere both are None.
    """

    def __init__(
        self,
        place: Callable[[dict[str, Any]], Any],
        call: Callable[[Any], Any],
        fetch: Callable[[Any], dict[str, Any]],
        synchronize: Callable[[], None],
        inspect: Callable[[Pipeline, Any], dict[str, Any]],
        memory: Callable[[], dict[str, Any]],
        preprocess: Callable[..., Any] | None,
        postprocess: Callable[..., Any] | None,
    ) -> None:
        # Attributes and not methods: a timed call pays for no indirection of ours.
        self.place = place
        self.call = call
        self.fetch = fetch
        self.synchronize = synchronize
        self.memory = memory
        self.preprocess = preprocess
        self.postprocess = postprocess
        self.record_event: Callable[[], Any] | None = None
        self.elapsed_s: Callable[[Any, Any], float] | None = None
        self._inspect = inspect

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Arrays by input name to arrays by output name (None where the model gave None)."""
        return self.fetch(self.call(self.place(inputs)))

    def inspect(self, placed: Any) -> dict[str, Any]:
        """What one call on these inputs executes: plain JSON.

        "executed" holds the facts that must be the same wherever this file runs; `--check`
        compares them. Not for a timed process: it runs the model under a profiler.
        """
        return self._inspect(self, placed)


__all__ = ["Pipeline", "render", "requirements"]
