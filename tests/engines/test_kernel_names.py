"""The format that a GPU's kernel computes in, from its name: all there is of a CUDA graph."""

from __future__ import annotations

import pytest

from tests.engines.onnx_sources import H100
from workbench.core.recipe import Recipe
from workbench.engines.torch_evidence import arithmetic_kernels
from workbench.engines.torch_reading import attention_of, precision_shares

FORMATS = {
    # Hopper and Ampere, as cuBLAS, CUTLASS and cuDNN name them.
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": "bf16",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32>": "bf16",
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT": "bf16",
    "nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopA_NNT": "fp16",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn": "fp16",
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": "fp16",
    "cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_tn_align8": "fp16",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32": "fp32",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>": "fp32",
    "ampere_sgemm_32x128_nt": "fp32",
    "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1": "fp32",
    "void implicit_convolve_sgemm<float, float, 512, 6, 8, 3, 3, 5, 1, false, true, true>": "fp32",
    "sm80_xmma_gemm_s8s8_s8i32_f32_tn_n_tilesize128x128x64_stage3": "int8",
    "cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16": "int8",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128": "fp8",
    "void pytorch_flash::flash_fwd_kernel<Flash_traits<64, cutlass::bfloat16_t>>": "bf16",
}
MOVES = (
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>",
    "void cask_cudnn::computeOffsetsKernel<false, false>",
    "Memcpy HtoD (Pageable -> Device)",
)


def kernel(name: str, time_ns: int = 1000) -> dict[str, object]:
    return {"name": name, "num": 1, "time_ns": time_ns}


@pytest.mark.parametrize(("name", "dtype"), FORMATS.items())
def test_a_kernels_name_says_its_format(name: str, dtype: str) -> None:
    (found,) = arithmetic_kernels([kernel(name)])
    assert found["dtype"] == dtype
    assert found["arithmetic"]


@pytest.mark.parametrize("name", MOVES)
def test_a_kernel_that_only_moves_or_maps_is_no_arithmetic(name: str) -> None:
    assert arithmetic_kernels([kernel(name)]) == []


def test_the_precision_of_a_graph_is_that_of_its_kernels_by_time() -> None:
    """A replay shows no operators: without this a bf16 graph would have no precision."""
    kernels = [kernel("nvjet_tst_64x64", 3000), kernel("ampere_sgemm_32x32", 1000)]
    flags = {"fp32_precision": {"cuda.matmul": "ieee", "cudnn.conv": "ieee", "cudnn.rnn": "ieee"}}
    report = {"operators": arithmetic_kernels(kernels), "flags": flags, "device": H100.id}
    assert precision_shares(report) == ({"bf16": 0.75, "fp32": 0.25}, "time")


def test_cudnns_attention_is_known_by_its_kernel() -> None:
    name = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64"
    assert attention_of({"operators": [], "kernels": [kernel(name)]}) == "cudnn"


def test_a_round_takes_its_times_from_the_devices_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call on a GPU returns at once: the time between two marks is the device's."""
    import torch

    from workbench.engines.torch_run import with_events
    from workbench.measure.rounds import run_round

    queue: list[float] = []

    class Event:
        """A mark in a queue that so far holds so many milliseconds of work."""

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing, "an event without timing tells none"
            self.at_ms = 0.0

        def record(self, stream: object) -> None:
            assert stream == "stream of cuda:0"
            self.at_ms = sum(queue)

        def elapsed_time(self, later: Event) -> float:
            return later.at_ms - self.at_ms

    class Plain:
        place = fetch = staticmethod(lambda value: value)
        call = staticmethod(lambda _placed: queue.append(2.5))
        synchronize = staticmethod(lambda: None)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    timed = with_events(Plain(), "cuda:0")
    done = run_round(timed, [None], num_calls=4, items_per_call=8)
    assert done.event_s == pytest.approx(4 * 0.0025)
    assert list(done.calls_s) == pytest.approx([0.0025] * 4)
    assert done.wall_s < done.event_s, "launching took no time here"


def test_on_a_gpu_rounds_can_take_the_devices_own_times() -> None:
    """The rendered file sets both functions, and only there."""
    from tests.engines.onnx_sources import CPU, context_of, prepared
    from workbench.core.model import TensorSpec
    from workbench.engines import load_all
    from workbench.engines.render import render

    load_all()
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 4))
    model = prepared("factory", (spec,))
    on_gpu = render(context_of(model, Recipe(engine="torch"), device=H100))
    on_cpu = render(context_of(model, Recipe(engine="torch"), device=CPU))
    assert 'pipeline = with_events(pipeline, device="cuda:0")' in on_gpu
    assert "torch.cuda.Event(enable_timing=True)" in on_gpu
    assert 'use_device(device="cuda:0")' in on_gpu
    assert "with_events(" not in on_cpu
