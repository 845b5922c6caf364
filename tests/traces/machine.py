"""A host and a GPU that are simulated: traces whose bottleneck is known because it was put there.

The host calls operators one after the other; each takes its time there and hands kernels to a
stream, which works through them in order. So the device waits where the host is slow, and the
host where it synchronises, as on a real machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.traces.generator import complete, launch

AMPERE = {"id": 0, "name": "Simulated A100", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
LATENCY_US = 3.0
LAUNCH_US = 4.0
COPY_STREAM = 20


class Machine:
    """Events of a host thread and the streams of one device."""

    def __init__(self, properties: dict[str, Any] | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self._properties = AMPERE if properties is None else properties
        self._host = 0.0
        self._free = {7: 0.0, COPY_STREAM: 0.0}
        self._correlation = 0

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Mark what happens inside as one step, until all of its work is done."""
        start = self._host
        yield
        self.synchronise("cudaDeviceSynchronize")
        length = self._host - start
        self.events.append(complete("user_annotation", f"ProfilerStep#{number}", start, length))

    def operator(
        self,
        name: str,
        *kernels: tuple[str, float],
        host_us: float = 6.0,
        operands: list[list[int]] | None = None,
        dtype: str = "float",
        stream: int = 7,
    ) -> None:
        """Call an operator that launches these kernels, each with its microseconds."""
        start = self._host
        args: dict[str, Any] = {}
        if operands is not None:
            args = {"Input_Dims": operands, "Input_type": [dtype] * len(operands)}
        self._host += host_us / 2
        for kernel, dur_us in kernels:
            correlation = self._launch("cudaLaunchKernel")
            self._run("kernel", kernel, dur_us, stream, correlation)
        self._host += host_us / 2
        self.events.append(complete("cpu_op", name, start, self._host - start, **args))

    def copy(self, num_bytes: int, dur_us: float, *, stream: int = 7, waits: bool = True) -> None:
        """Copy an input to the device; `waits` as a copy from pageable memory makes the host."""
        start = self._host
        self._host += 3
        correlation = self._launch("cudaMemcpyAsync")
        name = f"Memcpy HtoD ({'Pageable' if waits else 'Pinned'} -> Device)"
        self._run("gpu_memcpy", name, dur_us, stream, correlation, bytes=num_bytes)
        if waits:
            self.synchronise("cudaStreamSynchronize")
        self._host += 3
        self.events.append(complete("cpu_op", "aten::copy_", start, self._host - start))

    def synchronise(self, name: str = "cudaStreamSynchronize") -> None:
        """Let the host wait until the device is done."""
        start = self._host
        self._host = max(self._host + 2, *self._free.values())
        self.events.append(complete("cuda_runtime", name, start, self._host - start))

    def python(self, dur_us: float) -> None:
        """Let the host compute something that no operator sees."""
        self._host += dur_us

    def load(self, dur_us: float) -> None:
        """Fetch a batch of data."""
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.events.append(complete("user_annotation", name, self._host, dur_us))
        self._host += dur_us

    def write(self, path: Path) -> Path:
        """The trace as a file."""
        content = {"deviceProperties": [self._properties], "traceEvents": self.events}
        path.write_text(json.dumps(content))
        return path

    def _launch(self, name: str) -> int:
        self._correlation += 1
        event = launch(self._host, LAUNCH_US, correlation=self._correlation, name=name)
        self.events.append(event)
        self._host += LAUNCH_US
        return self._correlation

    def _run(
        self, cat: str, name: str, dur_us: float, stream: int, correlation: int, **args: Any
    ) -> None:
        start = max(self._free[stream], self._host + LATENCY_US)
        self._free[stream] = start + dur_us
        named = {"device": 0, "stream": stream, "correlation": correlation, **args}
        self.events.append(complete(cat, name, start, dur_us, pid=0, tid=stream, **named))
