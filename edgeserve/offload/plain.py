"""The values that may come out of a child process: arrays, numbers, texts, their containers, and the answers of
engines.

The parent makes objects of these classes and of no others, so no code of a model or a function in a child runs in the
parent. A state that a child leaves for its next call is one block of bytes to the parent.
"""

from __future__ import annotations

import collections
import io
import pickle
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, Callable, Iterable, List, Tuple

import numpy as np

from edgeserve import errors

_NUMPY = {
    (f"numpy.{home}.{module}", name)
    for home in ("core", "_core")
    for module, name in (
        ("multiarray", "_reconstruct"),
        ("multiarray", "scalar"),
        ("numeric", "_frombuffer"),
    )
}
_PLAIN = {
    *_NUMPY,
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *[("builtins", name) for name in ("complex", "slice", "range")],
    ("collections", "OrderedDict"),
    *[("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")],
    ("decimal", "Decimal"),
    ("_codecs", "encode"),  # bytes within old protocols of numpy
    ("edgeserve.engines.base", "Result"),
    ("edgeserve.engines.base", "Footprint"),
    ("edgeserve.engines.base", "RowFacts"),
    ("edgeserve.engines.cuda.status", "CudaError"),
    ("edgeserve.engines.lm.backend", "ModelFacts"),
    ("edgeserve.offload.plain", "KeptState"),
}

_FILLED = {
    **{("builtins", kind.__name__): kind for kind in (set, frozenset, bytearray)},
    ("collections", "deque"): collections.deque,
}
"""Made of what follows in the pickle: never of a number, or of a range that stands for billions of them."""


class KeptState:
    """A state as its child pickled it."""

    __slots__ = ("data",)

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __reduce__(self) -> Tuple[Any, ...]:
        return KeptState, (self.data,)

    @classmethod
    def of(cls, state: Any) -> KeptState | None:
        """Raises what pickle raises."""
        return None if state is None else cls(np.frombuffer(pickle.dumps(state, protocol=5), np.uint8))

    def state(self) -> Any:
        """The state itself, in the child that made it, or its successor."""
        return pickle.loads(self.data.data)


def _is_plain(module: str, name: str) -> bool:
    if (module, name) in _PLAIN or (module, name) in _FILLED:
        return True
    found = getattr(errors, name, None) if module == errors.__name__ else None
    return isinstance(found, type) and issubclass(found, errors.EdgeServeError)


class _PlainPickler(pickle.Pickler):
    """Refuses in the child what the parent would."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, (np.dtype, np.generic)):
            kind = value if isinstance(value, (type, FunctionType, BuiltinFunctionType)) else type(value)
            if not _is_plain(kind.__module__, kind.__qualname__):
                raise pickle.PicklingError(f"a {kind.__module__}.{kind.__qualname__}")
        return NotImplemented


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if not _is_plain(module, name):
            raise pickle.UnpicklingError(f"a {module}.{name}")
        kind = _FILLED.get((module, name))
        return super().find_class(module, name) if kind is None else partial(_filled, kind)


def _filled(kind: Callable[..., Any], content: Any = (), *more: Any) -> Any:
    if not isinstance(content, (list, tuple, bytes, str)):
        raise pickle.UnpicklingError(f"a {kind.__name__} of a {type(content).__name__}")
    return kind(content, *more) if content else kind((), *more)


def plain_dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any]) -> bytes:
    """Pickle plain values alone, as ``pickle.dumps``. Raises ``PicklingError`` naming any other value."""
    file = io.BytesIO()
    _PlainPickler(file, protocol=5, buffer_callback=buffer_callback).dump(value)
    return file.getvalue()


def plain_loads(data: Any, buffers: Iterable[Any]) -> Any:
    """Unpickle plain values alone, as ``pickle.loads``. Raises ``UnpicklingError`` naming any other class."""
    try:
        return _PlainUnpickler(io.BytesIO(data), buffers=buffers).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # pickle raises many kinds
        raise pickle.UnpicklingError(f"bytes that are no value ({error})") from error


def check_plain(value: Any) -> None:
    """Raises where the value is none."""
    raw: List[pickle.PickleBuffer] = []
    plain_dumps(value, raw.append)
