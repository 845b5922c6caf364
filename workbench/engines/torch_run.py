"""Running a module: the flags, the copies in and out, the call. Portable functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.structure import bind_inputs, flatten_outputs
from workbench.engines.source import checked_arrays
from workbench.levers.step import portable

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@portable
def set_torch_flags(flags: dict[str, Any]) -> None:
    """Set torch's global flags for this process, as they were where the model came from.

    The old switches first and then each leaf of the new interface: where both are set and
    agree, code that asks either gets an answer.
    """
    import torch

    if "default_dtype" in flags:
        torch.set_default_dtype(getattr(torch, flags["default_dtype"]))
    if "num_threads" in flags:
        torch.set_num_threads(flags["num_threads"])
    if "float32_matmul_precision" in flags:
        torch.set_float32_matmul_precision(flags["float32_matmul_precision"])
    if flags.get("deterministic"):
        torch.use_deterministic_algorithms(True)
    if "cudnn_benchmark" in flags:
        torch.backends.cudnn.benchmark = flags["cudnn_benchmark"]
    convolution = flags.get("cudnn_conv_fp32_precision", "none")
    if convolution != "none" and convolution == flags.get("cudnn_rnn_fp32_precision"):
        torch.backends.cudnn.allow_tf32 = convolution == "tf32"
    leaves: tuple[tuple[str, Any], ...] = (
        ("cuda_matmul_fp32_precision", torch.backends.cuda.matmul),
        ("cudnn_conv_fp32_precision", getattr(torch.backends.cudnn, "conv", None)),
        ("cudnn_rnn_fp32_precision", getattr(torch.backends.cudnn, "rnn", None)),
    )
    for name, holder in leaves:
        # "none" means that the leaf follows the switch above it.
        if flags.get(name, "none") != "none" and hasattr(holder, "fp32_precision"):
            holder.fp32_precision = flags[name]


@portable
def make_place(source: dict[str, Any], device: str) -> Callable[[dict[str, Any]], Any]:
    """A function that copies arrays to the device and binds them to the model's arguments."""
    import torch

    narrow = [s["name"] for s in source["inputs"] if s["dtype"] == "bfloat16"]

    def place(inputs: dict[str, Any]) -> tuple[Any, Any]:
        arrays = checked_arrays(inputs, source["inputs"])
        # A copy even on a CPU: a model that writes to its input must not write to ours.
        tensors = {name: torch.tensor(array, device=device) for name, array in arrays.items()}
        for name in narrow:
            tensors[name] = tensors[name].to(torch.bfloat16)
        return bind_inputs(source["call"], tensors)

    return place


@portable
def make_call(module: torch.nn.Module) -> Callable[[Any], Any]:
    """A function that runs the module on placed inputs, without autograd."""
    import torch

    def call(placed: tuple[Any, Any]) -> Any:
        args, kwargs = placed
        with torch.inference_mode():
            return module(*args, **kwargs)

    return call


@portable
def make_fetch() -> Callable[[Any], dict[str, Any]]:
    """A function that copies outputs to numpy arrays by dotted name.

    Formats that numpy lacks (bfloat16, the 8-bit floats) come as float32.
    """
    import torch

    def fetch(raw: Any) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        for name, value in flatten_outputs(raw).items():
            arrays[name] = value
            if isinstance(value, torch.Tensor):
                tensor = value.detach()
                if tensor.dtype == torch.bfloat16 or "float8" in str(tensor.dtype):
                    tensor = tensor.float()
                arrays[name] = tensor.cpu().resolve_conj().resolve_neg().numpy()
        return arrays

    return fetch


@portable
def make_synchronize(device: str) -> Callable[[], None]:
    """A function that waits for the device; it does nothing on a CPU."""
    if device == "cpu":
        return lambda: None
    import torch

    def synchronize() -> None:
        torch.cuda.synchronize(device)

    return synchronize


@portable
def use_device(device: str) -> int:
    """Make a GPU the one that streams and graphs are made on.

    Returns the bytes in use on it now, by everyone and with this process's own context: what
    the model adds is counted from there.
    """
    import torch

    torch.cuda.init()
    torch.cuda.set_device(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return int(total_bytes - free_bytes)


@portable
def make_events(device: str) -> tuple[Callable[[], Any], Callable[[Any, Any], float]]:
    """Two functions: one marks a place in the GPU's queue, one tells the seconds between two.

    A mark tells its time only when the GPU has reached it: synchronize first.
    """
    import torch

    def record_event() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def elapsed_s(earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) * 1e-3

    return record_event, elapsed_s


@portable
def with_events(pipeline: Any, device: str) -> Any:
    """Let whoever times the pipeline take the GPU's own times."""
    pipeline.record_event, pipeline.elapsed_s = make_events(device)
    return pipeline


@portable
def make_memory(used_before: int = 0, *, device: str) -> Callable[[], dict[str, Any]]:
    """A function that reads the GPU allocator, in bytes; {} on a CPU, which has none.

    "device_used_bytes" is what is in use on the device beyond `used_before`: cuDNN's and
    other libraries' own memory is in it, and a neighbour's if that changes meanwhile.
    """
    if device == "cpu":
        return dict
    import torch

    def memory() -> dict[str, Any]:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return {
            "allocator_bytes": torch.cuda.memory_allocated(device),
            "allocator_peak_bytes": torch.cuda.max_memory_allocated(device),
            "allocator_reserved_bytes": torch.cuda.memory_reserved(device),
            "device_used_bytes": max(total_bytes - free_bytes - used_before, 0),
        }

    return memory
