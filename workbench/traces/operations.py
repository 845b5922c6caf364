"""What an operator of the host or a node of a graph computes, in the classes of kernels.

Names are those of ATen, of the libraries that Inductor calls, and of ONNX Runtime's nodes.
"""

from __future__ import annotations

import re
from functools import lru_cache

from workbench.traces.kernels import KernelClass, kernel_class

# Operators that only hold others: their own time is no computation with a name.
_WRAPPER = re.compile(
    r"^(autograd::|torch::autograd|Torch-Compiled Region|CompiledFunction|## |ProfilerStep|"
    r"TorchDynamo|Pregraph|Optimizer\.|enumerate\(DataLoader|forward$|backward$)"
    r"|Backward\d*$|^(If|Loop|Scan|BeamSearch)$"
)
# Spans in which code runs that a compiler made, of which the profiler sees only the calls of
# libraries.
_COMPILED = re.compile(r"^(Torch-Compiled Region|CompiledFunction|## Call Compiled)")

# The first rule that matches decides.
_RULES: tuple[tuple[KernelClass, str], ...] = (
    # Before "linear" makes them products.
    ("elementwise", r"^qlinear(add|mul|sigmoid|leakyrelu|where)$"),
    ("reduction", r"^qlinear(\w*pool|softmax|reduce\w*)$"),
    ("copy", r"^qlinearconcat$"),
    ("elementwise", r"upsample|interpolate|bilinear|grid_sample"),
    ("collective", r"^(c10d|nccl|gloo|record_param_comms)"),
    ("attention", r"attention(?!_?mask)"),
    ("convolution", r"conv(?!ert)"),
    (
        "matmul",
        r"linear|matmul|gemm|einsum|"
        r"::_?(add|b)?mm$|::baddbmm|::addmv|::mv$|_scaled_mm|_int_mm|"
        r"_weight_int\w*pack_mm|::(lstm|gru|rnn\w*)$|^(lstm|gru|rnn)$",
    ),
    ("normalisation", r"_norm|norm(alization)?$|layernorm|normalization"),
    (
        "reduction",
        r"softmax|pool|::(sum|mean|max|min|amax|amin|argmax|argmin|all|any|prod|var|std|topk|sort|"
        r"cumsum|logsumexp|norm)\b|^(reduce\w+|argmax|argmin|topk|cumsum)$|loss",
    ),
    (
        "copy",
        r"::(to|_to_copy|copy_|clone|contiguous|cat|stack|embedding|gather|scatter|index\w*|pad|"
        r"transpose|permute|reshape|view|expand\w*|slice|select|split\w*|chunk|flatten|unflatten|"
        r"squeeze|unsqueeze|repeat\w*|narrow|unbind|detach|as_strided\w*|t|empty\w*|resize_?|"
        r"constant_pad_nd|roll|flip|_unsafe_view|_reshape_alias|lift_fresh|zero_|zeros|ones)$|"
        r"^(transpose|reshape|gather\w*|concat|slice|split|squeeze|unsqueeze|expand|pad|tile|"
        r"reorder(in|out)put|cast|memcpy\w*|flatten|identity|shape|constantofshape)$",
    ),
    (
        "elementwise",
        r"(^|::|_)(add|sub|rsub|mul|div|true_divide|pow|square|sqrt|rsqrt|exp|expm1|log|log1p|"
        r"neg|abs|sign|reciprocal|sin|cos|tanh|erf|sigmoid|relu6?|leaky_?relu|elu|celu|selu|gelu|"
        r"\w*gelu|silu|swish|mish|hard\w+|softplus|clamp\w*|clip|where|masked_fill|maximum|minimum|"
        r"addcmul|addcdiv|lerp|fill|dropout|\w+_dropout|bitwise\w*|logical\w*|eq|ne|lt|gt|le|ge|"
        r"equal|greater|less|not|and|or|xor|floor|ceil|round|threshold|glu|prelu|rotary\w*|"
        r"layer_?scale)_?(backward)?$",
    ),
)
# What follows in a longer name tells no more.
_LOOKED_AT = 1024
_COMPILED_RULES = tuple((kind, re.compile(rule)) for kind, rule in _RULES)
_QUANTIZING = re.compile(r"quantize(?!d)|dequant|choose_qparams", re.IGNORECASE)
_LIBRARY = re.compile(r"^(triton_|cpp_fused|graph_\d+_cpp_fused|graph_\d+_kernel)")


@lru_cache(maxsize=65_536)
def operation_class(name: str) -> KernelClass:
    """What an operator computes; "other" where no rule knows it."""
    if _LIBRARY.match(name):
        return kernel_class(name)
    lowered = name[:_LOOKED_AT].lower()
    if is_quantizing(name):
        return "elementwise"
    for found, rule in _COMPILED_RULES:
        if rule.search(lowered):
            return found
    return "other"


def is_quantizing(name: str) -> bool:
    """Whether an operator or kernel turns numbers into integers, or back, and nothing else."""
    lowered = name.lower()
    return bool(_QUANTIZING.search(lowered)) and not re.search(r"matmul|conv|gemm|_mm", lowered)


def is_wrapper(name: str) -> bool:
    """Whether an operator only holds others, so that these are what is looked at."""
    return bool(_WRAPPER.search(name))


def is_compiled(name: str) -> bool:
    """Whether a span is one of code that a compiler made."""
    return bool(_COMPILED.match(name))
