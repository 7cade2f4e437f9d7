"""The choice of the library, its real absence of a driver, and CUDA's codes as errors."""

from __future__ import annotations

import inspect
import pickle
import sys

import pytest

from edgeserve.engines.cuda import driver as driver_module
from edgeserve.engines.cuda.driver import Driver, is_available, open_driver
from edgeserve.engines.cuda.errors import CudaError, Unsupported, error_of, of_model
from edgeserve.errors import ConfigError, DeviceLost, DeviceMissing, EngineError, OutOfMemory


@pytest.fixture(autouse=True)
def _nothing_is_open(monkeypatch):
    monkeypatch.setattr(driver_module, "_open", {})


@pytest.mark.parametrize(
    ("status", "kind"),
    [(700, DeviceLost), (719, DeviceLost), (2, OutOfMemory), (100, DeviceMissing), (35, DeviceMissing), (1, CudaError)],
)
def test_codes_become_the_errors_that_lanes_understand(status, kind):
    error = error_of("cuStreamSynchronize", status, "CUDA_ERROR_X")
    assert type(error) is kind
    assert f"cuStreamSynchronize failed: CUDA_ERROR_X ({status})" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        error_of("f", 700, "t"),
        error_of("f", 1, "t"),
        error_of("f", 100, "t"),
        OutOfMemory("full", 5, 3),
        Unsupported("none", 801),
        EngineError("other"),
    ],
)
def test_an_error_keeps_its_kind_when_the_model_is_named(error):
    named = of_model("net", error)
    assert type(named) is type(error)
    assert str(named) == f"model 'net': {error}"
    assert vars(named) == vars(error)
    again = pickle.loads(pickle.dumps(named))  # engines in processes of their own send it
    assert vars(again) == vars(named)


def test_an_unknown_library_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cuda-bindings'"):
        open_driver("cuda-binding")


def test_without_any_library_the_mend_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "pycuda", None)
    for name in ("by_bindings", "by_pycuda"):
        monkeypatch.delitem(sys.modules, f"edgeserve.engines.cuda.{name}", raising=False)
    with pytest.raises(DeviceMissing, match=r"cuda-bindings: .*pycuda: .*pip install 'edgeserve-runtime\[gpu\]'"):
        open_driver()
    assert not is_available()


def test_the_real_library_says_that_the_driver_is_missing():
    pytest.importorskip("cuda.bindings", reason="pip install 'edgeserve-runtime[gpu]' (Python 3.10 and later)")
    if is_available():
        pytest.skip("this machine has a CUDA driver and a device")
    with pytest.raises(DeviceMissing, match="doctor"):
        open_driver("cuda-bindings").device_count()


def test_the_bindings_have_every_call_that_the_adapter_makes():
    """The names alone: what they return is checked where there is a device (tests/gpu)."""
    bindings = pytest.importorskip(
        "cuda.bindings.driver", reason="pip install 'edgeserve-runtime[gpu]' (Python 3.10 and later)"
    )
    from edgeserve.engines.cuda import by_bindings

    used = {
        word.split("(")[0]
        for word in inspect.getsource(by_bindings).replace(".", " ").split()
        if word.startswith("cu") and "(" in word and word[2].isupper()
    }
    assert len(used) > 35
    assert [name for name in sorted(used) if not hasattr(bindings, name)] == []


def calls_of(kind):
    return {
        name: list(inspect.signature(function).parameters)
        for name, function in vars(kind).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def test_adapters_follow_the_protocol():
    from cuda_double import CudaDouble

    wanted = calls_of(Driver)
    assert len(wanted) > 35
    kinds = [CudaDouble]
    for name, adapter in (("by_bindings", "BindingsDriver"), ("by_pycuda", "PycudaDriver")):
        try:
            kinds.append(getattr(__import__(f"edgeserve.engines.cuda.{name}", fromlist=[adapter]), adapter))
        except ImportError:
            continue
    for kind in kinds:
        own = calls_of(kind)
        assert {name: own.get(name) for name in wanted} == wanted, kind.__name__
