"""Graphs hand out answers of their own: the logic, on a stand-in for CUDA's graphs.

Like a real one, the stand-in reads inputs where they lay when it was recorded, and writes its
outputs over those of the replay before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from workbench.levers.fusion_torch import with_cuda_graphs
from workbench.levers.fusion_torch_compile import with_own_outputs

Call = Callable[[Any], Any]


class Recorder:
    """A model's call, and the graphs that were recorded of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_calls = 0
        self.graphs: list[Graph] = []
        self._capturing: Graph | None = None
        stream = type("Stream", (), {"wait_stream": lambda *_: None})
        monkeypatch.setattr(torch.cuda, "Stream", stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream())
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", self._capture)

    @contextmanager
    def _capture(self, graph: Graph) -> Iterator[None]:
        self._capturing = graph
        yield
        self._capturing = None
        self.graphs.append(graph)

    def call(self, placed: Any) -> Any:
        """Twice the input, in a dict with a constant beside."""
        self.num_calls += 1
        (x,), _ = placed
        outputs = {"y": x * 2, "none": None}
        if self._capturing is not None:
            self._capturing.again = lambda: x * 2
            self._capturing.output = outputs["y"]
        return outputs


class Graph:
    """What was recorded: replaying computes on the same inputs, into the same output."""

    def __init__(self) -> None:
        self.again: Callable[[], torch.Tensor] | None = None
        self.output: torch.Tensor | None = None
        self.num_replays = 0

    def replay(self) -> None:
        assert self.again is not None
        assert self.output is not None
        self.num_replays += 1
        self.output.copy_(self.again())


def placed(*values: float) -> Any:
    return (torch.tensor(values),), {}


def test_an_answer_survives_the_next_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    call = with_cuda_graphs(recorder.call)
    first, second = call(placed(1.0, 2.0)), call(placed(10.0, 20.0))
    assert first["y"].tolist() == [2.0, 4.0]
    assert second["y"].tolist() == [20.0, 40.0]
    assert first["none"] is None
    # The stand-in does overwrite: without a copy the first answer would be the second.
    (graph,) = recorder.graphs
    assert graph.output is not None
    assert graph.output.tolist() == [20.0, 40.0]
    assert graph.num_replays == 2


def test_three_calls_warm_a_shape_up_before_it_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder(monkeypatch)
    call = with_cuda_graphs(recorder.call)
    call(placed(1.0))
    assert recorder.num_calls == 4
    call(placed(2.0))
    assert recorder.num_calls == 4, "what is recorded is replayed"


def test_each_shape_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    call = with_cuda_graphs(recorder.call)
    answers = [call(placed(1.0)), call(placed(1.0, 2.0)), call(placed(3.0))]
    assert [answer["y"].tolist() for answer in answers] == [[2.0], [2.0, 4.0], [6.0]]
    assert [graph.num_replays for graph in recorder.graphs] == [2, 1]


def test_the_users_input_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    call = with_cuda_graphs(Recorder(monkeypatch).call)
    first, second = placed(1.0, 2.0), placed(10.0, 20.0)
    call(first)
    call(second)
    assert first[0][0].tolist() == [1.0, 2.0]
    assert second[0][0].tolist() == [10.0, 20.0]


def test_a_compiled_graphs_answers_are_copied_and_each_step_is_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch.compile's graphs write over their outputs too; three calls warm a shape up."""
    marked = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(1))
    buffer = torch.zeros(2)

    def reused(given: Any) -> Any:
        (x,), _ = given
        return buffer.copy_(x * 2)

    call = with_own_outputs(reused)
    first, second = call(placed(1.0, 2.0)), call(placed(10.0, 20.0))
    assert first.tolist() == [2.0, 4.0]
    assert second.tolist() == [20.0, 40.0]
    assert len(marked) == 3 + 1 + 1
