"""Errors of TensorRT, each kind with its own type and code, each message with the fix."""

from __future__ import annotations

import traceback
from typing import List, Optional

from edgeserve.engines.cuda.status import error_of, status_in
from edgeserve.errors import EngineError, OutOfMemory


class LibraryMissing(EngineError):
    """No TensorRT library can be imported, or it lacks something that this package needs."""

    code = "library_missing"


class ParseFailed(EngineError):
    """TensorRT's ONNX parser refused the model; the message has the parser's own words and the node."""

    code = "parse"


class BuildFailed(EngineError):
    """The builder gave no plan, or the process that builds ended."""

    code = "build"


class BuildOutOfMemory(OutOfMemory):
    """The builder, or the process that builds, had too little memory."""

    code = "build_out_of_memory"


class PlanRefused(EngineError):
    """A plan cannot be deserialized here: another version, another GPU, or a damaged file."""

    code = "plan_refused"


KINDS = {
    kind.code: kind for kind in (LibraryMissing, ParseFailed, BuildFailed, BuildOutOfMemory, PlanRefused, EngineError)
}
"""Code -> type: how an error comes back from the process that builds."""


def failed_by_device(what: str, said: str) -> Optional[EngineError]:
    """The error where the device was the reason that ``what`` failed, by what TensorRT ``said``: no room, or a failure
    of CUDA. ``None`` where it was not."""
    status = status_in(said)
    return None if status is None else error_of(what, status, said)


def forget_locals(error: BaseException) -> None:
    """Let go of what the functions that failed held, above all TensorRT's objects: they must go before their device
    does, and an error may be kept for long."""
    seen: List[BaseException] = []
    one: Optional[BaseException] = error
    while one is not None and one not in seen:
        traceback.clear_frames(one.__traceback__)
        seen.append(one)
        one = one.__cause__ or one.__context__
