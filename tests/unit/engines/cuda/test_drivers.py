"""The library for CUDA, the real absence of a driver, and CUDA's codes as errors."""

from __future__ import annotations

import inspect
import pickle
import re
import sys

import pytest

from edgeserve.engines.cuda import driver as driver_module
from edgeserve.engines.cuda.driver import Driver, is_available, open_driver
from edgeserve.engines.cuda.status import CudaError, error_of, of_model
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
        CudaError("none", 801),
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
    for name in ("cuda", *driver_module.BINDINGS):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DeviceMissing, match=r"cuda.bindings.driver: .*cuda.cuda: .*check that the NVIDIA driver"):
        open_driver()
    assert not is_available()


def test_the_real_library_says_that_the_driver_is_missing():
    pytest.importorskip("cuda", reason="pip install 'edgeserve-runtime[gpu]'")
    if is_available():
        pytest.skip("this machine has a CUDA driver and a device")
    with pytest.raises(DeviceMissing, match="doctor"):
        open_driver("cuda-bindings").device_count()


def test_the_bindings_have_every_call_that_the_adapter_makes():
    """The names alone: what they return is checked where there is a device (tests/gpu)."""
    pytest.importorskip("cuda", reason="pip install 'edgeserve-runtime[gpu]'")
    used = set(re.findall(r'"(cu[A-Z]\w+)"', inspect.getsource(Driver))) - {"cuGraphInstantiateWithFlags"}
    assert len(used) > 35
    binding = driver_module.binding()
    if not hasattr(binding, "cuGreenCtxStreamCreate"):  # of CUDA 11: a share of the multiprocessors is refused
        used = {name for name in used if "Green" not in name and "Resource" not in name}
    assert [name for name in sorted(used) if not hasattr(binding, name)] == []


def calls_of(kind):
    return {
        name: list(inspect.signature(function).parameters)
        for name, function in vars(kind).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


def test_the_double_has_the_calls_of_the_driver():
    from cuda_double import CudaDouble

    wanted, own = calls_of(Driver), calls_of(CudaDouble)
    assert len(wanted) > 35
    assert {name: own.get(name) for name in wanted} == wanted
