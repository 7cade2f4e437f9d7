"""tegrastats as a process: started, silent, killed, missing and started again, with real children of this test."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from edgeserve.device.state import DeviceState
from edgeserve.device.tegrastats import RETRY_NS_MAX, RETRY_NS_MIN, TegrastatsSource, start_process
from edgeserve.units import NS_PER_S

LINE = "RAM 1000/4000MB (lfb 1x4MB) CPU [10%@100,off] GR3D_FREQ 50%@[300] tj@50C VDD_IN 3000mW/3000mW"
WAIT_S = 30.0  # a loaded machine starts a Python in seconds


class Children:
    """Starts children of this test in tegrastats' place; ``text`` is what the next one writes, once :meth:`wrote` lets
    it, before it waits."""

    def __init__(self, gate, text=f"{LINE}\n", then="time.sleep(600)"):
        self.gate, self.text, self.then = gate, text, then
        self.started = []
        self.commands = []

    def start(self, command):
        self.commands.append(list(command))
        gate = self.gate / str(len(self.started))
        program = "\n".join(
            [
                "import os, sys, time",
                f"while not os.path.exists({str(gate)!r}): time.sleep(0.005)",
                f"sys.stdout.write({self.text!r}); sys.stdout.flush()",
                self.then,
            ]
        )
        self.started.append(start_process([sys.executable, "-c", program]))
        return self.started[-1]

    def wrote(self):
        """Let the newest child write, and wait until it has, or has ended."""
        (self.gate / str(len(self.started) - 1)).touch()
        assert select.select([self.started[-1].stdout], [], [], WAIT_S)[0]


@pytest.fixture
def children(tmp_path):
    made = Children(tmp_path)
    yield made
    for child in made.started:
        if child.poll() is None:
            child.kill()
        child.wait(WAIT_S)


def read_when_written(source, children, now_ns):
    source.read(now_ns)
    children.wrote()
    return source.read(now_ns)


def test_a_line_is_read_without_waiting_and_only_whole(children):
    children.text = f"{LINE}\nRAM 9/9MB (lfb"
    source = TegrastatsSource(start=children.start)
    assert source.read(0) == DeviceState()  # nothing yet, and no wait
    children.wrote()
    state = source.read(1)
    assert (state.power_w, state.gpu_load, state.cpu_cores_online, state.temperature_c) == (3.0, 0.5, 1, 50.0)
    assert state.memory_total_bytes == 4000 << 20
    assert children.commands == [["tegrastats", "--interval", "1000"]]
    source.close()
    assert children.started[0].returncode is not None


def test_an_old_line_tells_nothing(children):
    source = TegrastatsSource(start=children.start)
    assert read_when_written(source, children, 0).power_w == 3.0
    assert source.read(3 * NS_PER_S).power_w == 3.0
    assert source.read(3 * NS_PER_S + 1) == DeviceState()
    source.close()


def test_a_killed_child_is_none_then_started_again(children):
    source = TegrastatsSource(start=children.start)
    assert read_when_written(source, children, 0).power_w == 3.0
    children.started[0].send_signal(signal.SIGKILL)
    children.started[0].wait(WAIT_S)
    source.read(NS_PER_S)
    assert "ended" in source.trouble
    assert source.starts == 1  # not at once: it waits a second
    children.text = ""
    assert source.read(4 * NS_PER_S) == DeviceState()  # a new child, and the old line is too old
    assert source.starts == 2
    source.close()


def test_a_child_that_falls_silent_is_started_again(children):
    source = TegrastatsSource(start=children.start)
    assert read_when_written(source, children, 0).power_w == 3.0
    assert source.read(11 * NS_PER_S) == DeviceState()
    assert "silent" in source.trouble
    assert children.started[0].wait(WAIT_S) == -signal.SIGKILL
    assert read_when_written(source, children, 12 * NS_PER_S).power_w == 3.0
    assert (source.starts, source.trouble) == (2, "")
    source.close()


def test_after_a_line_the_pause_is_short_again(children):
    source = TegrastatsSource(start=children.start)
    for second in (0, 10, 20):  # each child ends, and each pause would be longer than the one before
        assert read_when_written(source, children, second * NS_PER_S).power_w == 3.0
        children.started[-1].kill()
        children.started[-1].wait(WAIT_S)
        source.read(second * NS_PER_S + 1)
        assert source.trouble
    source.read(21 * NS_PER_S + 1)
    assert source.starts == 4
    source.close()


def test_a_missing_program_is_none_and_tried_ever_more_rarely():
    starts = []

    def missing(command):
        starts.append(command)
        raise FileNotFoundError(2, "No such file or directory")

    source = TegrastatsSource(start=missing)
    second_ns, tried_at_s = NS_PER_S, []
    for second in range(300):
        before = len(starts)
        assert source.read(second * second_ns) == DeviceState()
        if len(starts) > before:
            tried_at_s.append(second)
    assert tried_at_s[:7] == [0, 1, 3, 7, 15, 31, 63]
    assert all(later - earlier == RETRY_NS_MAX // NS_PER_S for earlier, later in zip(tried_at_s[6:], tried_at_s[7:]))
    assert "No such file" in source.trouble
    assert RETRY_NS_MIN == NS_PER_S


def test_a_child_that_ends_at_once_is_not_started_at_each_reading(children):
    children.text, children.then = "tegrastats: cannot run as this user\n", "sys.exit(3)"
    source = TegrastatsSource(start=children.start)
    source.read(0)
    children.wrote()
    children.started[0].wait(WAIT_S)
    for turn in range(10):
        assert source.read(turn * NS_PER_S // 10) == DeviceState()
    assert source.starts == 1
    assert "status 3" in source.trouble


def test_a_child_that_writes_without_end_does_not_hold_the_reader(children):
    children.text, children.then = "", "while True: sys.stdout.write('x' * 65536)"
    source = TegrastatsSource(start=children.start)
    source.read(0)
    children.wrote()
    assert source.read(1) == DeviceState()
    assert source.read(2) == DeviceState()
    source.close()


def test_closing_ends_only_its_own_child(children):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        source = TegrastatsSource(start=children.start)
        source.read(0)
        source.close()
        assert children.started[0].poll() is not None
        assert other.poll() is None
        source.close()  # again: nothing
    finally:
        other.kill()
        other.wait(WAIT_S)


def test_the_real_start_gives_a_pipe_that_does_not_block():
    process = start_process([sys.executable, "-c", "print('x')"])
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    assert process.wait(WAIT_S) == 0
    assert os.read(process.stdout.fileno(), 10) == b"x\n"
    process.stdout.close()
