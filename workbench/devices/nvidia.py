"""NVIDIA cards, through the management library: no CUDA context is made.

NVML is read with nvidia-ml-py where that is installed, else with the driver's own
`nvidia-smi`, which says less (no MIG instances).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.device import Device

# First words of the notes that a scheduler acts on.
EXCLUSIVE = "exclusive compute mode"
PROHIBITED = "prohibited compute mode"
MIG = "MIG"
MPS = "MPS"

# The compute capability from which the hardware multiplies a dtype: NVIDIA's CUDA C++
# programming guide, "Arithmetic Instructions" and "Technical Specifications".
_NATIVE_SINCE = {
    "fp32": (0, 0),
    "fp64": (1, 3),
    "fp16": (5, 3),
    "int8": (6, 1),
    "tf32": (8, 0),
    "bf16": (8, 0),
    "fp8": (8, 9),
    "fp4": (10, 0),
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card as the driver lists it, before CUDA's own numbering is applied.

    A MIG instance is a card of its own, with the instance's memory and UUID.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    capability: tuple[int, int] | None
    driver: str | None
    notes: tuple[str, ...] = ()
    parent_uuid: str | None = None


def describe_gpus() -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The cards that CUDA would offer to this process, in CUDA's order, and notes on them.

    Empty where there is no driver. Applies CUDA_VISIBLE_DEVICES.
    """
    cards, notes = _list_cards()
    if not cards:
        return (), ()
    chosen = visible(cards, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if len(chosen) < len(cards) and "CUDA_VISIBLE_DEVICES" in os.environ:
        notes = (*notes, f"CUDA_VISIBLE_DEVICES shows {len(chosen)} of {len(cards)} cards")
    if len({card.name for card in chosen}) > 1 and _order() != "PCI_BUS_ID":
        notes = (
            *notes,
            "cards of different kinds: set CUDA_DEVICE_ORDER=PCI_BUS_ID so that cuda:0 is "
            "the same card here and in CUDA",
        )
    devices = tuple(
        Device(
            id=f"cuda:{number}",
            kind="cuda",
            name=card.name,
            memory_bytes=card.memory_bytes,
            capability=card.capability,
            native=native_dtypes(card.capability),
            driver=card.driver,
            notes=card.notes,
        )
        for number, card in enumerate(chosen)
    )
    return devices, notes


def native_dtypes(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """What a card of this compute capability multiplies in hardware."""
    if capability is None:
        return ("fp32",)
    return tuple(dtype for dtype, since in _NATIVE_SINCE.items() if capability >= since)


def is_exclusive(device: Device) -> bool:
    """Whether only one process at a time may use the device, so that sides must alternate."""
    return any(note.startswith(EXCLUSIVE) for note in device.notes)


def visible(cards: tuple[Card, ...], setting: str | None) -> tuple[Card, ...]:
    """The cards that CUDA_VISIBLE_DEVICES leaves, in its order; every card for None.

    As in CUDA, the list ends at the first entry that names no card or names one twice, and
    only the first MIG instance is seen where the setting names none. A card that is split
    into instances is no device itself.
    """
    whole = tuple(card for card in cards if card.parent_uuid is None)
    instances = tuple(card for card in cards if card.parent_uuid is not None)
    split = {card.parent_uuid for card in instances}
    if setting is None:
        plain = tuple(card for card in whole if card.uuid not in split)
        return plain or instances[:1]
    chosen: list[Card] = []
    for word in (part.strip() for part in setting.split(",")):
        found: Card | None = None
        if word.isdigit():
            found = next((card for card in whole if card.index == int(word)), None)
            if found is not None and found.uuid in split:
                found = next(card for card in instances if card.parent_uuid == found.uuid)
        elif word.startswith(("GPU-", "MIG-")):
            matches = [card for card in cards if card.uuid.startswith(word)]
            found = matches[0] if len(matches) == 1 else None
        if found is None or found in chosen:
            break
        chosen.append(found)
        if found.parent_uuid is not None:
            break
    return tuple(chosen)


def card_of(device_id: str) -> Card:
    """The card behind "cuda:0". Raises LookupError, with the reason, where there is none."""
    cards, notes = _list_cards()
    chosen = visible(cards, os.environ.get("CUDA_VISIBLE_DEVICES"))
    number = device_id.removeprefix("cuda:")
    if number.isdigit() and int(number) < len(chosen):
        return chosen[int(number)]
    raise LookupError(notes[0] if notes else f"there is no {device_id} here")


@contextmanager
def nvml() -> Iterator[Any]:
    """The initialised pynvml module. Raises LookupError, with the reason, where it cannot be."""
    try:
        import pynvml
    except ImportError:
        raise LookupError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise LookupError(f"NVML does not start: {error}") from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _order() -> str:
    return os.environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")


def _list_cards() -> tuple[tuple[Card, ...], tuple[str, ...]]:
    try:
        with nvml() as lib:
            return cards_from_nvml(lib), ()
    except LookupError as error:
        return cards_from_smi(), (str(error),)


def cards_from_nvml(lib: Any) -> tuple[Card, ...]:
    """Every card and MIG instance that an initialised pynvml lists."""
    cards: list[Card] = []
    driver = _text(lib.nvmlSystemGetDriverVersion())
    for index in range(lib.nvmlDeviceGetCount()):
        try:
            handle = lib.nvmlDeviceGetHandleByIndex(index)
        except lib.NVMLError:
            # A card that has fallen off the bus, or that this container may not open.
            continue
        name = _text(lib.nvmlDeviceGetName(handle))
        uuid = _text(lib.nvmlDeviceGetUUID(handle))
        capability = _try(lib, lib.nvmlDeviceGetCudaComputeCapability, handle)
        card = Card(
            index=index,
            uuid=uuid,
            name=name,
            memory_bytes=_memory_bytes(lib, handle),
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            driver=driver,
            notes=_notes(lib, handle),
        )
        cards.append(card)
        cards.extend(_instances(lib, handle, card))
    return tuple(cards)


def _instances(lib: Any, handle: Any, parent: Card) -> Iterator[Card]:
    mode = _try(lib, lib.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != lib.NVML_DEVICE_MIG_ENABLE:
        return
    for index in range(lib.nvmlDeviceGetMaxMigDeviceCount(handle)):
        instance = _try(lib, lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if instance is None:
            continue
        yield Card(
            index=index,
            uuid=_text(lib.nvmlDeviceGetUUID(instance)),
            name=_text(lib.nvmlDeviceGetName(instance)),
            memory_bytes=_memory_bytes(lib, instance),
            capability=parent.capability,
            driver=parent.driver,
            notes=(f"{MIG}: an instance of {parent.name}", *parent.notes),
            parent_uuid=parent.uuid,
        )


def _notes(lib: Any, handle: Any) -> tuple[str, ...]:
    notes = []
    mode = _try(lib, lib.nvmlDeviceGetComputeMode, handle)
    if mode == lib.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
        notes.append(f"{EXCLUSIVE}: one process at a time")
    elif mode == lib.NVML_COMPUTEMODE_PROHIBITED:
        notes.append(f"{PROHIBITED}: no process may use it")
    if mps_control(os.environ).exists():
        notes.append(f"{MPS}: processes share the card through a daemon")
    return tuple(notes)


def mps_control(environ: os._Environ[str] | dict[str, str]) -> Path:
    """Where the control pipe of CUDA's multi-process service is when its daemon runs."""
    return Path(environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"


def _memory_bytes(lib: Any, handle: Any) -> int | None:
    memory = _try(lib, lib.nvmlDeviceGetMemoryInfo, handle)
    return None if memory is None else int(memory.total)


def _try(lib: Any, function: Any, *args: Any) -> Any:
    """The call's value, or None where this card does not support it or forbids it."""
    try:
        return function(*args)
    except lib.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    # Before version 12 the bindings returned bytes.
    return value.decode() if isinstance(value, bytes) else value


_SMI_FIELDS = (
    "index",
    "uuid",
    "name",
    "memory.total",
    "compute_cap",
    "driver_version",
    "compute_mode",
)


def cards_from_smi() -> tuple[Card, ...]:
    """The cards that the driver's `nvidia-smi` lists; () where there is none."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return ()
    try:
        done = subprocess.run(
            [path, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_smi(done.stdout)


def parse_smi(text: str) -> tuple[Card, ...]:
    """Cards from `nvidia-smi --query-gpu`'s lines of comma-separated fields."""
    cards = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(_SMI_FIELDS) or not values[0].isdigit():
            continue
        row = dict(zip(_SMI_FIELDS, values, strict=True))
        major, dot, minor = row["compute_cap"].partition(".")
        exclusive = row["compute_mode"].lower() == "exclusive_process"
        cards.append(
            Card(
                index=int(row["index"]),
                uuid=row["uuid"],
                name=row["name"],
                memory_bytes=(
                    int(row["memory.total"]) << 20 if row["memory.total"].isdigit() else None
                ),
                capability=(int(major), int(minor)) if dot else None,
                driver=row["driver_version"],
                notes=(f"{EXCLUSIVE}: one process at a time",) if exclusive else (),
            )
        )
    return tuple(cards)
