"""Traces of any length as PyTorch's profiler writes them, for measuring how they are read.

One layer of an encoder on an H100, as recorded, again and again: operators that nest, with their
operands, launches, kernels, and flows between them. Names, operands and gaps vary; all times are
absolute, with three decimals.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

_START_NS = 1_419_247_332_972_313_000
_LAYERS = 24
# Operator, those inside it, and the kernel that the innermost launches.
_CALLS = (
    ("aten::linear", "aten::addmm", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64"),
    ("aten::linear", "aten::addmm", "nvjet_hsh_128x128_64x5_1x2_h_bz_coopA_TNT"),
    ("aten::gelu", "aten::gelu", "void at::native::vectorized_elementwise_kernel<4, Gelu>"),
    ("aten::layer_norm", "aten::native_layer_norm", "vectorized_layer_norm_kernel<float>"),
    ("aten::scaled_dot_product_attention", "aten::_flash_attention_forward", "flash_fwd_kernel"),
    ("aten::add", "aten::add", "void at::native::vectorized_elementwise_kernel<4, AddFunctor>"),
    ("aten::softmax", "aten::_softmax", "softmax_warp_forward<c10::BFloat16, float, 8>"),
    ("aten::copy_", "aten::copy_", "void at::native::elementwise_kernel<128, 4, direct_copy>"),
)


def write(path: Path, num_events: int, *, seed: int = 1) -> int:
    """Write a trace of about this many objects; returns how many it holds."""
    header = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84929347584,
             "computeMajor": 9, "computeMinor": 0, "numSms": 132}
        ],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
    }  # fmt: skip
    num = 0
    with path.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(header)[:-1] + ', "traceEvents": [\n')
        separator = ""
        for event in _events(num_events, random.Random(seed)):
            stream.write(f"{separator}  {event}")
            separator = ",\n"
            num += 1
        stream.write("\n]}\n")
    return num


def _events(num_events: int, rng: random.Random) -> Iterator[str]:
    host, device, identifier, num, step = _START_NS, _START_NS, 1, 0, 0
    while num < num_events:
        begun = host
        for layer in range(_LAYERS):
            for outer, inner, kernel in _CALLS:
                host += rng.randint(500, 6_000)
                launch = host + rng.randint(3_000, 9_000)
                inner_ns = rng.randint(12_000, 20_000)
                ran_ns = rng.randint(1_500, 60_000)
                device = max(device + rng.randint(300, 1_500), launch + 3_000)
                dims = f"[[8, {64 + layer}, 1024], [1024, 1024], []]"
                yield _complete(
                    "cpu_op", outer, 71, 71, host, inner_ns + 4_000,
                    f'"External id": {identifier}, "Record function id": 0, "Concrete Inputs": '
                    f'["", "", ""], "Input type": ["c10::BFloat16", "c10::BFloat16", ""], '
                    f'"Input Strides": [[65536, 1024, 1], [1, 1024], []], "Input Dims": {dims}, '
                    f'"Ev Idx": {num}',
                )  # fmt: skip
                yield _complete(
                    "cpu_op", inner, 71, 71, host + 1_500, inner_ns,
                    f'"External id": {identifier + 1}, "Record function id": 0, "Input type": '
                    f'["c10::BFloat16"], "Input Dims": [[8, {64 + layer}, 1024]], '
                    f'"Ev Idx": {num + 1}',
                )  # fmt: skip
                yield _complete(
                    "cuda_runtime", "cudaLaunchKernel", 71, 71, launch, 4_200,
                    f'"External id": {identifier + 1}, "cbid": 211, "correlation": {identifier}',
                )  # fmt: skip
                yield _complete(
                    "kernel", f"{kernel}_{layer % 4}", 0, 7, device, ran_ns,
                    f'"External id": {identifier + 1}, "queued": 0, "device": 0, "context": 1, '
                    f'"stream": 7, "correlation": {identifier}, "registers per thread": 64, '
                    '"shared memory": 49152, "blocks per SM": 1.939394, "warps per SM": 7.757576, '
                    '"grid": [16, 16, 1], "block": [128, 1, 1], "est. achieved occupancy %": 12',
                )  # fmt: skip
                for phase, pid, tid, at in (("s", 71, 71, launch), ("f", 0, 7, device)):
                    yield (
                        f'{{"ph": "{phase}", "id": {identifier}, "pid": {pid}, "tid": {tid}, '
                        f'"ts": {_us(at)}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}'
                    )
                host += inner_ns + 4_000
                device += ran_ns
                identifier += 2
                num += 6
        host = max(host, device) + 2_000
        yield _complete(
            "user_annotation", f"ProfilerStep#{step}", 71, 71, begun, host - begun,
            f'"External id": {identifier}, "Ev Idx": {num}',
        )  # fmt: skip
        identifier, num, step = identifier + 1, num + 1, step + 1


def _complete(
    cat: str, name: str, pid: int, tid: int, start_ns: int, dur_ns: int, args: str
) -> str:
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid}, '
        f'"ts": {_us(start_ns)}, "dur": {_us(dur_ns)}, "args": {{{args}}}}}'
    )


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
