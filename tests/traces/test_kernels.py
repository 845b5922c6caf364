"""What kernels compute, and what they are called, from names that were recorded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.traces.corpus import KINETO, needs_corpus
from workbench.traces.kernels import kernel_class, short_name
from workbench.traces.opening import open_trace

COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}>(at::TensorIteratorBase&)>(int)"
)
MULTIPLY = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, "
    "float, at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 3> >(int)"
)
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, "
    "float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float>)"
)
GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::"
    "TensorIteratorBase&, at::native::GeluType)::{lambda()#2}>(int, float)"
)
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_AFC1"
CUTLASS = (
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1>(cutlass_80_tensorop_"
    "s1688gemm_64x64_32x4_nn_align1::Params)"
)
GROUPED_CONV = (
    "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28"
    "GridwiseGemm_xdl_cshuffle_v3INS_13tensor_layout4gemm8RowMajorE"
)


@pytest.mark.parametrize(
    ("name", "expected", "short"),
    [
        ("volta_sgemm_64x64_nn", "matmul", "volta_sgemm_64x64_nn"),
        (TENSILE, "matmul", "Cijk_Alik_Bljk_BBS MT256x192x64"),
        (CUTLASS, "matmul", "cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1"),
        ("void splitKreduce_kernel<float, float>(cublasSplitKParams<float>)", "matmul", None),
        ("attn_fwd", "attention", "attn_fwd"),
        ("void pytorch_flash::flash_fwd_kernel<Traits<64> >(P)", "attention", "flash_fwd_kernel"),
        ("volta_scudnn_winograd_128x128_ldg1", "convolution", None),
        (GROUPED_CONV, "convolution", "kernel_grouped_conv_fwd_xdl_cshuffle_v3"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(T)", "normalisation", None),
        ("void at::native::RowwiseMomentsCUDAKernel<float>(long)", "normalisation", None),
        (MEAN, "reduction", "reduce_kernel<Mean>"),
        ("void softmax_warp_forward<float, float, float, 10>(float*)", "reduction", None),
        (MULTIPLY, "elementwise", "vectorized_elementwise_kernel<Mul>"),
        (GELU, "elementwise", "vectorized_elementwise_kernel<GeluCUDA>"),
        ("SubTensorOpWithScalar1d", "elementwise", None),
        ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(float*)", "elementwise", None),
        (COPY, "copy", "elementwise_kernel<direct_copy>"),
        ("void at::native::CatArrayBatchedCopy<float, unsigned int, 2>(float*)", "copy", None),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "collective", None),
        # Inductor: a loop over elements stays one, whatever it fused.
        ("triton_poi_fused_convolution_relu_3", "elementwise", None),
        ("triton_per_fused_native_layer_norm_1", "normalisation", None),
        ("triton_red_fused_sum_2", "reduction", None),
        ("triton_tem_fused_addmm_4", "matmul", None),
        ("my_own_kernel", "other", "my_own_kernel"),
        ("", "other", ""),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, expected: str, short: str | None) -> None:
    assert kernel_class(name) == expected
    if short is not None:
        assert short_name(name) == short


def test_a_long_name_is_cut_and_says_so() -> None:
    assert short_name("x" * 200) == "x" * 59 + "…"


@needs_corpus
def test_hardly_any_time_of_real_traces_is_of_no_known_class() -> None:
    """1 % of the time of kernels at most, over all files together."""
    time_ns: Counter[str] = Counter()
    for path in KINETO:
        trace = open_trace(Path(path))
        for row in trace.rows("kernel"):
            time_ns[kernel_class(trace.names[trace.name[row]])] += int(trace.duration_ns[row])
    assert time_ns["other"] <= 0.01 * time_ns.total()
