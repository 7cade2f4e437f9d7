"""Arrays of other libraries on the GPU: what the two protocols say of them, and what cannot be taken."""

from __future__ import annotations

import ctypes
import pickle
import types

import numpy as np
import pytest

from edgeserve import Runtime
from edgeserve.config.loading import parse_config
from edgeserve.engines.collate import Slot, fit
from edgeserve.engines.device_arrays import LEGACY_STREAM, DeviceArray, _DLTensor, on_device
from edgeserve.errors import BadInput, WrongInput


def interface(**changes):
    about = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3, "stream": 7}
    return types.SimpleNamespace(__cuda_array_interface__={**about, **changes})


@pytest.mark.parametrize(
    ("changes", "stream"),
    [({}, 7), ({"stream": None}, None), ({"version": 2}, LEGACY_STREAM), ({"strides": (12, 4)}, 7)],
)
def test_the_array_interface_of_cuda(changes, stream):
    array = on_device(interface(**changes))
    assert (array.pointer, array.shape, array.dtype, array.nbytes) == (4096, (2, 3), np.float32, 24)
    assert array.stream == stream
    assert (
        on_device(array) is array
        and on_device(types.SimpleNamespace(**{"__cuda_array_interface__": array.__cuda_array_interface__})).pointer
        == 4096
    )


class OfDlpack:
    """A tensor of another library, ``[2, 3]`` of float16 at byte 64 of its memory."""

    def __init__(self, kind=2, code=2, bits=16, strides=None):
        self.kind = kind
        self.asked = []
        self._shape = (ctypes.c_int64 * 2)(2, 3)
        self._strides = (ctypes.c_int64 * 2)(*strides) if strides else None
        self._tensor = _DLTensor(4096, kind, 0, 2, code, bits, 1, self._shape, self._strides, 64)

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, stream=None):
        self.asked.append(stream)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._tensor), b"dltensor", None)


def test_dlpack():
    tensor = OfDlpack(strides=(3, 1))
    array = on_device(tensor)
    assert (array.pointer, array.shape, array.dtype, array.stream) == (4160, (2, 3), np.float16, LEGACY_STREAM)
    assert tensor.asked == [LEGACY_STREAM], "the other library orders its work before that stream's"
    assert on_device(OfDlpack(kind=1)) is None, "on the host"
    assert on_device(np.zeros(3)) is None and on_device("text") is None


@pytest.mark.parametrize(
    "given", [interface(strides=(4, 8)), OfDlpack(strides=(1, 2)), OfDlpack(code=4), OfDlpack(code=3)]
)
def test_what_is_in_another_order_or_of_no_type_of_numpys_is_refused(given):
    with pytest.raises(BadInput, match="on the GPU"):
        on_device(given)


def test_what_its_library_keeps_is_refused_in_its_words(monkeypatch):
    """As torch does with a tensor that needs gradients."""

    def refuse(self, stream=None):
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    monkeypatch.setattr(OfDlpack, "__dlpack__", refuse)
    with pytest.raises(BadInput, match="does not hand over: Can't export .*detach"):
        on_device(OfDlpack())


def test_other_engines_say_that_they_take_no_such_input():
    array = on_device(interface())
    with pytest.raises(
        WrongInput, match="it lies on the GPU, and engine = 'tensorrt' or 'torch' there alone takes such inputs"
    ):
        fit(Slot("x", np.float32, (2, 3)), array)
    with pytest.raises(TypeError, match="cannot leave its process"):
        pickle.dumps(array)


def test_a_call_of_the_embedded_runtime_is_checked_as_others_are():
    config = parse_config(
        {
            "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
            "app": {"a": {"model": "m", "slo": "10s", "inputs": {"x": {"dtype": "float32", "shape": [2, 4]}}}},
        }
    )
    with Runtime(config) as runtime:
        with pytest.raises(BadInput, match=r"input 'x' is float32 \[2, 3\] on the GPU, expected"):
            runtime.infer("a", {"x": interface()})
        assert isinstance(runtime.infer("a", {"x": interface(shape=(2, 4))})["x"], DeviceArray)


def test_a_library_with_both_is_asked_by_dlpack_since_that_orders_its_streams():
    tensor = OfDlpack(strides=(3, 1))
    tensor.__cuda_array_interface__ = interface(version=2).__cuda_array_interface__
    assert on_device(tensor).dtype == np.float16
    assert tensor.asked == [LEGACY_STREAM]


@pytest.mark.parametrize(("module", "stream"), [("pycuda.gpuarray", LEGACY_STREAM), ("numba.cuda", None)])
def test_arrays_of_pycuda_are_awaited_on_the_default_stream(module, stream):
    kind = type("GPUArray", (), {"__module__": module})
    array = kind()
    array.__cuda_array_interface__ = interface(version=3, stream=None).__cuda_array_interface__
    assert on_device(array).stream == stream
