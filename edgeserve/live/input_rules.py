"""The check of what a request brings against the inputs that its app declares."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

import numpy as np

from edgeserve.config.schema import TensorConfig
from edgeserve.engines.device_arrays import DeviceArray
from edgeserve.errors import ConfigError
from edgeserve.texts import is_text, text_array
from edgeserve.units import counted_axes

OBJECT_KINDS: Mapping[str, Tuple[type, ...]] = {
    "text": (str,),
    "bytes": (bytes, bytearray, memoryview),
    "any": (object,),
}
"""Input dtypes that are no arrays."""


class InputRule:
    """The rule for one declared input."""

    def __init__(self, app: str, name: str, config: TensorConfig) -> None:
        self.name = name
        self.texts = config.dtype == "text" and bool(config.shape)  # an array of them; else it is one string
        self.kinds = None if self.texts else OBJECT_KINDS.get(config.dtype)
        self.shape = config.shape
        self.exact = -1 not in config.shape
        self.optional = config.optional
        try:
            self.dtype: Optional[np.dtype[Any]] = (
                None if self.kinds else np.dtype(object if self.texts else config.dtype)
            )
            if self.dtype is not None and self.dtype.hasobject and not self.texts:
                raise TypeError("texts are said to be texts")
        except TypeError:
            raise ConfigError(
                f"[app.{app}] inputs.{name} dtype = {config.dtype!r}: expected a numpy dtype such as "
                f"'float32' or 'uint8', or one of {', '.join(sorted(OBJECT_KINDS))}"
            ) from None

    def fits(self, value: Any) -> bool:
        if self.kinds is not None:
            return isinstance(value, self.kinds)
        if not isinstance(value, (np.ndarray, DeviceArray)) or value.dtype != self.dtype:
            return False
        if self.texts and not (isinstance(value, np.ndarray) and all(isinstance(text, str) for text in value.flat)):
            return False
        if self.exact:
            same: bool = value.shape == self.shape
            return same
        return len(value.shape) == len(self.shape) and all(
            want in (-1, have) for want, have in zip(self.shape, value.shape)
        )

    def as_declared(self, value: Any) -> Any:
        """Texts in the form that is declared: a string, or an array of strings. Any other value as it is."""
        try:
            if self.texts:
                array = text_array(value)
                is_one = array.ndim == 0 and all(size in (1, -1) for size in self.shape)
                return array.reshape((1,) * len(self.shape)) if is_one else array
            if self.kinds == (str,) and is_text(value) and value.size == 1:
                return text_array(value).item()
        except ValueError:
            pass  # it does not fit, and that is said
        return value

    def mismatch(self, value: Any) -> str:
        """The reason why a value does not fit: what it is, and what was expected."""
        told = f"{describe(value)}, expected {self}"
        if self.kinds is not None or not isinstance(value, (np.ndarray, DeviceArray)):
            return told
        have, want = value.ndim, len(self.shape)
        if have != want:
            batch = (
                f"; leave the batch axis out: a request is one item, such as {self.name}[0]"
                if have == want + 1 and value.shape[0] == 1
                else ""
            )
            return f"{describe(value)} with {counted_axes(have)}, expected {counted_axes(want)}: {self}{batch}"
        if value.dtype != self.dtype:
            return f"{told}; nothing is cast silently: send {self.name}.astype('{self.dtype}')"
        return told

    def __str__(self) -> str:
        if self.kinds is not None:
            return {"text": "a string", "bytes": "bytes"}.get(
                next(name for name, kinds in OBJECT_KINDS.items() if kinds is self.kinds), "anything"
            )
        shape = ", ".join("any" if size < 0 else str(size) for size in self.shape)
        return f"an array of texts [{shape}]" if self.texts else f"a numpy array {self.dtype} [{shape}]"


def describe(value: Any) -> str:
    """A value in an error message: an array by dtype and shape, anything else by its type."""
    if isinstance(value, np.ndarray):
        kind = "texts" if is_text(value) and all(isinstance(text, str) for text in value.flat) else value.dtype
        return f"{kind} [{', '.join(map(str, value.shape))}]"
    if isinstance(value, DeviceArray):
        return f"{value.dtype} [{', '.join(map(str, value.shape))}] on the GPU"
    return type(value).__name__
