"""Kernels by name: shortened for people, and classed by what they compute."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

KernelClass = Literal[
    "matmul",
    "attention",
    "convolution",
    "normalisation",
    "reduction",
    "elementwise",
    "copy",
    "collective",
    "other",
]

# The first rule that matches decides; `head` is the function's own name, before its template's
# and call's arguments, in which other operators are often named.
_RULES: tuple[tuple[KernelClass, Literal["head", "name"], str], ...] = (
    (
        "collective",
        "head",
        r"nccl|rccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter|cross_device",
    ),
    # Inductor's Triton kernels say what they are before what they fused.
    ("attention", "head", r"^triton_tem_.*attention"),
    ("convolution", "head", r"^triton_tem_.*conv"),
    ("matmul", "head", r"^triton_tem_"),
    ("normalisation", "head", r"^triton_(red|per)_.*norm"),
    ("reduction", "head", r"^triton_(red|per)_"),
    ("elementwise", "head", r"^triton_poi_"),
    # ATen's loops over elements: what they copy stands in the functor.
    ("copy", "name", r"elementwise_kernel.*(direct_copy|index_kernel|gather|scatter)"),
    ("elementwise", "head", r"elementwise_kernel"),
    ("copy", "head", r"reshape_and_cache"),
    ("elementwise", "head", r"rotary|subtensorop|quantize|fp8rowwise|fp8_qparam"),
    ("attention", "name", r"flash|fmha|attention|attn_|_attn|efficient_attn|\bmha"),
    (
        "normalisation",
        "name",
        r"(batch|layer|group|instance|rms)_?norm|\bbn_(fw|bw)|norm2d|"
        # Parts of ATen's layer and group norm.
        r"rowwisemoments|gammabeta|fusedparams|computeinternalgradients",
    ),
    (
        "convolution",
        "name",
        r"conv(?!ert)|scudnn|wgrad|dgrad|fprop|implicit_?gemm|igemm_(fwd|bwd|wrw)|winograd|fft2d|"
        r"bwd_(weight|data)|cask_cudnn|im2col|col2im",
    ),
    (
        "matmul",
        "name",
        # fbgemm_gpu:: is a library of embeddings and quantization.
        r"(?<!fb)gemm|gemv|cijk_|matmul|nvjet|cublas|_tensorop_|xmma|_bmm|addmm|splitk",
    ),
    (
        "copy",
        "name",
        r"catarray|copy|memcpy|memset|transpose|nchwtonhwc|nhwctonchw|tonhwc|tonchw|permute|"
        r"gather|scatter|index|embedding|reshape_and_cache|\bpad|roll_cuda|flip",
    ),
    (
        "reduction",
        "name",
        r"reduc|softmax|sort|scan|cumsum|topk|argm(ax|in)|nll_?loss|classnll|_sum_|dot_",
    ),
    (
        "elementwise",
        "name",
        r"elementwise|multi_tensor_apply|dropout|activation|gelu|silu|relu|fill|distribution|"
        r"pointwise|adam|pool|scal_kernel|scalepackedtensor|upsample|bernoulli",
    ),
)
_COMPILED = tuple((name, where, re.compile(text)) for name, where, text in _RULES)
_LENGTH = re.compile(r"\d{1,9}")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::")
_FUNCTOR = re.compile(
    r"(?:native::)?(\w*?)(?:_kernel_cuda|_kernel_impl|KernelImpl|Functor|_cuda_out|Ops?)\b"
)
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply")
# Functors that only hold another.
_WRAPPERS = frozenset({"gpu", "AUnary", "BUnary", "Binary", "Unary", "Reduce", "func_wrapper"})
_TENSILE = re.compile(r"^(Cijk_\w+?_Bl?jl?k_[A-Z]+).*?_(MT\d+x\d+x\d+)")
_LONGEST = 60
# What follows in a longer name tells no more; rules look at all of it for each of their words.
_LOOKED_AT = 4096


@lru_cache(maxsize=65_536)
def kernel_class(name: str) -> KernelClass:
    """What a kernel computes, from its name as recorded; "other" where no rule knows it."""
    lowered = name[:_LOOKED_AT].lower()
    head = _head(lowered)
    for found, where, rule in _COMPILED:
        if rule.search(head if where == "head" else lowered):
            return found
    return "other"


@lru_cache(maxsize=65_536)
def short_name(name: str) -> str:
    """A kernel's name for people: without return type, namespaces and arguments.

    A loop over elements or a reduction keeps what it computes: `reduce_kernel<Mean>`.
    """
    name = name[:_LOOKED_AT]
    if tensile := _TENSILE.match(name):
        return " ".join(tensile.groups())
    head = _head(name)
    short = head.rsplit("::", 1)[-1] or head
    if _GENERIC.search(short):
        functors = [found for found in _FUNCTOR.findall(name) if found]
        functors.sort(key=_WRAPPERS.__contains__)
        short += f"<{functors[0]}>" if functors else ""
    elif short in ("Kernel", "Kernel2", "kernel", "globalKernel", "kentry"):
        # Named by their argument or by where they live.
        argument = re.search(r"<\s*([\w:]+)", name)
        short = argument[1].rsplit("::", 1)[-1] if argument and not argument[1].isdigit() else head
    return short if len(short) <= _LONGEST else short[: _LONGEST - 1] + "…"


def _head(name: str) -> str:
    """A function's own name with its namespaces."""
    if name.startswith("_Z"):
        return _demangled(name)
    text = _ANONYMOUS.sub("", name)
    # A return type may be a template itself; the name is the last word before the arguments.
    depth, start = 0, 0
    for place, letter in enumerate(text):
        if letter == "<":
            if depth == 0 and not text.startswith("std::enable_if", start):
                return text[start:place].strip()
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0:
            return text[start:place].strip()
        elif letter == " " and depth == 0:
            start = place + 1
    return text[start:].strip()


def _demangled(name: str) -> str:
    """The nested names of an Itanium-mangled symbol, as far as they are plain."""
    place = 2
    parts = []
    while place < len(name) and name[place] in "NKVr":
        place += 1
    while match := _LENGTH.match(name, place):
        length = int(match[0])
        parts.append(name[match.end() : match.end() + length])
        place = match.end() + length
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N")) or name
