"""Exceptions of torch as the errors of a model.

On the CPU torch raises RuntimeError for nearly everything; on CUDA a type of its own where the device has no room, and
since 2.8 one for the device's failures, whose text is the same as before.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

import torch
from numpy.typing import NDArray

from edgeserve.engines.cuda.status import OUT_OF_MEMORY, error_of, of_model, status_in
from edgeserve.errors import EngineError, OutOfMemory

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def failure_of(model: str, error: Exception, feeds: Dict[str, NDArray[Any]], device: torch.device) -> EngineError:
    """The error for what was raised while ``model`` loaded, or ran on ``feeds``."""
    if isinstance(error, EngineError):
        return of_model(model, error)
    of_device = failed_by_device(model, error, device)
    if of_device is not None:
        return of_device
    text = str(error).strip() or type(error).__name__
    first = _first_line(text)
    if "no kernel image" in text:
        first += (
            f". This build of torch {torch.__version__} has no code for the device (it has "
            f"{' '.join(torch.cuda.get_arch_list())}): install the build that belongs to it, on a Jetson "
            "NVIDIA's own"
        )
    shown = ", ".join(f"{name} {value.dtype}{list(value.shape)}" for name, value in feeds.items())
    return EngineError(f"model {model!r} failed on {shown or 'loading'}: {type(error).__name__}: {first}")


def failed_by_device(model: str, error: Exception, device: torch.device) -> Optional[EngineError]:
    """The error of ``model`` where the device was the reason: no room, or a failure of CUDA; ``None`` where not."""
    text = str(error).strip()
    if is_out_of_memory(error, text):
        return _no_room(model, text, device)
    status = status_in(text)
    if status is None:
        return None
    return of_model(model, error_of("a CUDA call of torch", status, _first_line(text)))


def _first_line(text: str) -> str:
    """The line that says why. The interpreter of TorchScript tells where first, and why in its last line."""
    lines = [line for line in text.split("\n") if line.strip()]
    return lines[-1 if "TorchScript interpreter" in lines[0] else 0].strip()


def is_out_of_memory(error: Exception, text: str) -> bool:
    """True if torch found no room."""
    kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    return isinstance(error, (kind, MemoryError)) or "can't allocate memory" in text or status_in(text) == OUT_OF_MEMORY


def asked_bytes(text: str) -> Optional[int]:
    """The bytes that torch's message says were asked for: ``Tried to allocate 20.00 GiB``, ``tried to allocate 800
    bytes``."""
    found = re.search(r"ried to allocate ([\d.]+) ?([KMG]?)i?B?", text)
    return int(float(found.group(1)) * _UNITS[found.group(2)]) if found else None


def _no_room(model: str, text: str, device: torch.device) -> OutOfMemory:
    free: Optional[int] = None
    if device.type == "cuda":
        try:
            free = int(torch.cuda.mem_get_info(device)[0])
        except RuntimeError:
            pass  # the message then has no number
    first = text.split("\n")[0].rstrip(".")
    return OutOfMemory(
        f"model {model!r}: torch found no room on {device}: {first}. Load fewer models at a time "
        f"([device.NAME] memory), or use smaller batch sizes ([model.{model}] batch)",
        asked_bytes(text),
        free,
    )
