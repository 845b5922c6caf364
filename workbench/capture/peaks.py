"""What a device reaches at best: the roof that operators are held against."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from workbench.core.profile import Peaks

# Products of this size are bound by arithmetic, copies of this one leave every cache.
_SIZE, _SIZE_CUDA = 1024, 8192
_COPIED, _COPIED_CUDA = 128 * 2**20, 2**30
_WINDOW_S = 0.25
_LEAST = 3


def measure_peaks(device: str, *, all_threads: bool) -> Peaks | None:
    """The best of repeated square products, by type, and of copies, each for a quarter second.

    By torch where this process has imported it, on the GPU that it has opened or with the threads
    that it is set to. Else by numpy on the CPU, which uses all threads; None where that is not
    what the model had (`all_threads`), or where its device is another. A copy reads and writes
    its bytes.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return _by_numpy() if device == "cpu" and all_threads else None
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return _by_torch(torch, "cuda" if on_gpu else "cpu")


def _by_numpy() -> Peaks:
    left = np.random.default_rng(1).random((_SIZE, _SIZE), dtype=np.float32)
    out = np.empty_like(left)
    source = np.zeros(_COPIED, dtype=np.uint8)
    target = np.empty_like(source)
    product_s = _best_s(lambda: np.matmul(left, left, out=out))
    copy_s = _best_s(lambda: np.copyto(target, source))
    return Peaks(flops={"f32": 2 * _SIZE**3 / product_s}, bytes_per_s=2 * _COPIED / copy_s)


def _by_torch(torch: Any, device: str) -> Peaks:
    on_gpu = device == "cuda"
    size, copied = (_SIZE_CUDA, _COPIED_CUDA) if on_gpu else (_SIZE, _COPIED)
    # Emulated on many CPUs, where a product of this size would take seconds.
    types = {"f32": torch.float32}
    if on_gpu:
        types |= {"bf16": torch.bfloat16, "f16": torch.float16}

    def until_done(work: Callable[[], Any]) -> Callable[[], Any]:
        def done() -> None:
            work()
            if on_gpu:
                torch.cuda.synchronize()

        return done

    flops = {}
    with torch.inference_mode():
        for name, dtype in types.items():
            left = torch.rand(size, size, device=device).to(dtype)
            product = partial(torch.mm, left, left, out=torch.empty_like(left))
            flops[name] = 2 * size**3 / _best_s(until_done(product))
        source = torch.zeros(copied, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copy_s = _best_s(until_done(lambda: target.copy_(source)))
    return Peaks(flops=flops, bytes_per_s=2 * copied / copy_s)


def _best_s(work: Callable[[], Any]) -> float:
    """Seconds of the fastest call, after one that touches what is new."""
    work()
    seconds: list[float] = []
    until_s = time.perf_counter() + _WINDOW_S
    while time.perf_counter() < until_s or len(seconds) < _LEAST:
        begun_s = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun_s)
    return min(seconds)
