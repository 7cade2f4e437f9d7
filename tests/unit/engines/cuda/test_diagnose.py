"""The doctor's findings on the library for CUDA, pycuda beside it, and shares of the multiprocessors."""

from __future__ import annotations

import importlib.util
import types

import pytest
from cuda_double import CudaDouble

from edgeserve.config.schema import Config, DeviceConfig, LaneConfig
from edgeserve.engines.cuda import diagnose, driver
from edgeserve.errors import DeviceMissing


def config(*shares):
    lanes = {f"l{place}": LaneConfig(f"l{place}", "gpu", sms=sms) for place, sms in enumerate(shares)}
    return Config(devices={"gpu": DeviceConfig("gpu", "cuda")}, lanes=lanes)


@pytest.fixture
def here(monkeypatch):
    """The installed binding: ``plain`` for no binding, ``pycuda``."""

    def install(*names):
        monkeypatch.setitem(driver._open, "cuda-bindings", CudaDouble())
        made = diagnose.PlainBinding.__new__(diagnose.PlainBinding) if "plain" in names else types.ModuleType("driver")
        monkeypatch.setattr(diagnose, "binding", lambda: made)
        found = importlib.util.find_spec("json") if "pycuda" in names else None
        monkeypatch.setattr(diagnose.importlib.util, "find_spec", lambda name: found)

    return install


@pytest.mark.parametrize(
    ("names", "subjects"),
    [((), {"cuda library": "good"}), (("plain", "pycuda"), {"cuda library": "note", "pycuda": "note"})],
)
def test_which_library_is_called_and_pycuda_beside_it(here, names, subjects):
    here(*names)
    found = diagnose.findings(config(0))
    assert {subject: status for subject, status, _, _ in found} == subjects
    assert all("autoprimaryctx" in mend for subject, _, _, mend in found if subject == "pycuda")
    assert all("pip install" in mend for _, status, _, mend in found[:1] if status == "note")
    assert diagnose.findings(Config()) == []


def test_shares_beyond_the_gpu_are_said_before_a_start(here):
    here()
    assert [each[0] for each in diagnose.findings(config(8, 8))] == ["cuda library"]
    assert diagnose.findings(config(8, 12))[1] == (
        "multiprocessors",
        "wrong",
        "lanes of GPU 0 want 20 multiprocessors for themselves, and it has 16",
        "lower [lane.NAME] sms",
    )


def test_without_a_library_that_is_said_where_it_is_needed(monkeypatch):
    def missing(choice="auto"):
        raise DeviceMissing("no library")

    monkeypatch.setattr(diagnose, "open_driver", missing)
    monkeypatch.setattr(diagnose, "is_available", lambda: False)
    assert diagnose.findings(None) == []
    assert diagnose.findings(config(0))[0][:3] == ("cuda library", "wrong", "no library")
