"""Denormal numbers count as 0 on the threads that request it, on their child threads, and on no other."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest
from own_thread import in_a_thread

from edgeserve.engines import denormals
from edgeserve.engines.denormals import REGISTERS, ROOM_BYTES, flush_to_zero, flushing, is_flushing, with_bits

here = pytest.mark.skipif(platform.machine() not in REGISTERS, reason="the register of this machine is not known")


def flushes():
    """True if numpy computes so on this thread: as a denormal result, and from a denormal operand."""
    small, denormal = np.full(64, 2e-38, np.float32), np.full(64, 1e-39, np.float32)
    return bool((small * np.float32(0.01) == 0).all() and (denormal * np.float32(1e9) == 0).all())


@here
def test_the_calling_thread_and_those_that_it_makes_flush_and_no_other():
    assert in_a_thread(lambda: (flushes(), flush_to_zero(), flushes(), is_flushing(), in_a_thread(flushes))) == (
        False,
        "",
        True,
        True,
        True,
    )
    assert not flushes() and not is_flushing()


@here
def test_a_thread_may_take_it_back():
    assert in_a_thread(lambda: (flush_to_zero(), flush_to_zero(False), flushes(), is_flushing())) == (
        "",
        "",
        False,
        False,
    )


@here
def test_rounding_and_other_arithmetic_stay_as_they_are():
    values = np.random.default_rng(1).standard_normal(1000)
    wanted = np.sqrt(np.abs(values)) / 3
    assert in_a_thread(lambda: (flush_to_zero(), (np.sqrt(np.abs(values)) / 3 == wanted).all()))[1]


@here
@pytest.mark.parametrize("on", [True, False])
def test_what_is_made_within_has_the_setting_and_the_maker_is_as_before(on):
    with flushing(on):
        assert in_a_thread(flushes) is on
    assert not flushes()
    with pytest.raises(ValueError, match="wrong"), flushing(True):
        raise ValueError("wrong")
    assert not flushes()


@here
def test_a_library_that_sets_the_makers_thread_leaves_no_trace():
    """As ONNX Runtime does with the thread that makes the process's first session."""
    with flushing(False):
        flush_to_zero()
    assert not flushes()


@pytest.mark.parametrize(
    ("machine", "before", "after"),
    [
        ("x86_64", {28: 0xA0, 29: 0x1F}, {28: 0xE0, 29: 0x9F}),  # MXCSR 0x1fa0 -> 0x9fe0
        ("aarch64", {0: 0x10, 3: 0x02}, {0: 0x10, 3: 0x03}),  # FPCR 0x02000010 -> 0x03000010
    ],
)
def test_only_the_registers_own_bits_change(machine, before, after):
    """``fenv_t`` as glibc and musl lay it out."""
    room = bytearray(ROOM_BYTES)
    for place, byte in before.items():
        room[place] = byte
    first = bytes(room)
    with_bits(room, REGISTERS[machine], True)
    assert {place: byte for place, byte in enumerate(room) if byte} == after
    with_bits(room, REGISTERS[machine], False)
    assert bytes(room) == first


def test_an_unknown_machine_says_why_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(denormals.platform, "machine", lambda: "riscv64")
    assert "riscv64" in flush_to_zero()
    assert not is_flushing()


FIRST_SESSION = """
import sys
import numpy as np
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import LaneInfo
lane = LaneInfo(threads=2, name="cpu0", flush=True)
engine = make_engine(ModelConfig("m", engine="onnx", file=sys.argv[1]), [lane], ".")
engine.load()
print((np.full(64, 1e-39, np.float32) * np.float32(0.5) == 0).any())
"""


@here
def test_the_thread_that_loads_the_first_network_of_a_process_is_not_changed(tmp_path):
    pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    import onnx_models

    path = str(tmp_path / onnx_models.scaled(str(tmp_path), [1.0]))
    done = subprocess.run([sys.executable, "-c", FIRST_SESSION, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
