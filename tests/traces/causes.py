"""Steps with one known cause of lost time each, and healthy ones.

Written before any rule that finds the causes. Each is a function that makes three steps on a
simulated machine; `CAUSES` says what the first finding about it has to be.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.traces.machine import COPY_STREAM, Machine

BF16_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
TF32_GEMM = "ampere_tf32_s1688gemm_tf32_128x128_ldg4_f2f_stages_32x3_tn"
FP32_GEMM = "ampere_sgemm_128x64_tn"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float> >"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>"
DEQUANTISE = "void dequantize_blockwise_kernel<c10::BFloat16, 512, 64, 8>"
STEPS = range(3)


def layers(
    machine: Machine,
    gemm: str = BF16_GEMM,
    gemm_us: float = 180.0,
    dtype: str = "c10::BFloat16",
    *,
    num: int = 6,
    attention_us: float = 90.0,
) -> None:
    """An encoder as it should run: large products, one kernel of attention."""
    for _ in range(num):
        for _ in range(3):
            machine.operator("aten::linear", (gemm, gemm_us), dtype=dtype,
                             operands=[[4096, 1024], [1024, 1024]])  # fmt: skip
        machine.operator("aten::scaled_dot_product_attention", (FLASH, attention_us))
        machine.operator("aten::linear", (gemm, gemm_us), dtype=dtype,
                         operands=[[4096, 1024], [1024, 1024]])  # fmt: skip
        machine.operator("aten::layer_norm", (NORM, 12.0))


def host_bound(machine: Machine) -> None:
    """Kernels far shorter than the calls that launch them."""
    for number in STEPS:
        with machine.step(number):
            for _ in range(24):
                machine.operator("aten::linear", (BF16_GEMM, 5.0), host_us=22)
                machine.operator("aten::scaled_dot_product_attention", (FLASH, 4.0), host_us=30)


def off_the_tensor_cores(machine: Machine) -> None:
    """float32 products, one by one, on a device with tensor cores."""
    for number in STEPS:
        with machine.step(number):
            layers(machine, FP32_GEMM, 900.0, "float")


def copies_in_the_way(machine: Machine) -> None:
    """Each step waits for its input to come out of pageable memory."""
    for number in STEPS:
        with machine.step(number):
            machine.copy(154_140_672, 9000.0)
            layers(machine)


def data_loader(machine: Machine) -> None:
    """The next batch is decoded while the device has nothing to do."""
    for number in STEPS:
        with machine.step(number):
            machine.load(7000)
            layers(machine)


def tiny_kernels(machine: Machine) -> None:
    """An activation written out as a dozen operators over elements."""
    for number in STEPS:
        with machine.step(number):
            for _ in range(8):
                machine.operator("aten::linear", (BF16_GEMM, 120.0), host_us=4)
                for place in range(14):
                    machine.operator("aten::mul", (MUL if place % 2 else ADD, 22.0), host_us=4)


def dequantising(machine: Machine) -> None:
    """Weights of four bits that are unpacked before each product."""
    for number in STEPS:
        with machine.step(number):
            for _ in range(12):
                machine.operator("bitsandbytes::dequantize_blockwise", (DEQUANTISE, 110.0))
                machine.operator("aten::linear", (BF16_GEMM, 100.0), dtype="c10::BFloat16")


def attention_written_out(machine: Machine) -> None:
    """Scores, softmax and mixing as three kernels over a matrix of all pairs."""
    for number in STEPS:
        with machine.step(number):
            for _ in range(6):
                for _ in range(3):
                    machine.operator("aten::linear", (BF16_GEMM, 60.0))
                machine.operator("aten::matmul", (BF16_GEMM, 210.0))
                machine.operator("aten::div", (MUL, 160.0))
                machine.operator("aten::softmax", (SOFTMAX, 240.0))
                machine.operator("aten::matmul", (BF16_GEMM, 200.0))
                machine.operator("aten::linear", (BF16_GEMM, 60.0))


def synchronising(machine: Machine) -> None:
    """The host asks for a number after each layer, and then has to launch anew."""
    for number in STEPS:
        with machine.step(number):
            for _ in range(20):
                machine.operator("aten::linear", (BF16_GEMM, 60.0), host_us=40)
                machine.synchronise()
                machine.python(60)


def healthy_encoder(machine: Machine) -> None:
    """Large products in bf16; the host is far ahead."""
    for number in STEPS:
        with machine.step(number):
            layers(machine)


def healthy_tf32(machine: Machine) -> None:
    """float32 operands whose products run on the tensor cores."""
    for number in STEPS:
        with machine.step(number):
            layers(machine, TF32_GEMM, 300.0, "float")


def healthy_overlap(machine: Machine) -> None:
    """The next input is copied from pinned memory while the device computes."""
    for number in STEPS:
        with machine.step(number):
            machine.copy(25_690_112, 1000.0, stream=COPY_STREAM, waits=False)
            layers(machine)


def healthy_convolutions(machine: Machine) -> None:
    """Convolutions with what belongs to them in one kernel."""
    kernel = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64"
    for number in STEPS:
        with machine.step(number):
            for _ in range(30):
                machine.operator("aten::cudnn_convolution", (kernel, 140.0), dtype="c10::Half")


CAUSES: dict[str, Callable[[Machine], None]] = {
    "host-bound": host_bound,
    "float32-products": off_the_tensor_cores,
    "copies": copies_in_the_way,
    "data-loading": data_loader,
    "small-kernels": tiny_kernels,
    "dequantising": dequantising,
    "unfused-attention": attention_written_out,
    "synchronising": synchronising,
}
HEALTHY: dict[str, Callable[[Machine], None]] = {
    "encoder": healthy_encoder,
    "tf32": healthy_tf32,
    "overlap": healthy_overlap,
    "convolutions": healthy_convolutions,
}
