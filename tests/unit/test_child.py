"""A child process: it ends with its lifeline, within its time, and what it wrote last is known."""

from __future__ import annotations

import signal
import subprocess

import pytest

from edgeserve.child import Child, how_it_ended, safe_environment

UNTIL_CUT = "import sys; sys.stdin.read(); sys.exit(7)"
FOR_EVER = "import time; print('begun', flush=True); time.sleep(600)"
WRITES = "import sys; [print('line', number, file=sys.stderr) for number in range(50)]; sys.exit(3)"
TAKES = (
    "from edgeserve.child import end_with, take_lifeline; import sys, time; line = take_lifeline(); end_with(line); "
)


def test_a_child_ends_by_itself_when_its_lifeline_is_cut():
    child = Child(["-c", UNTIL_CUT])
    assert not child.has_ended
    assert child.end(30) == 7
    assert child.has_ended and child.end() == 7, "as often as one likes"


def test_a_child_that_does_not_end_in_time_is_killed():
    child = Child(["-c", FOR_EVER], stdout=subprocess.PIPE)
    assert child.process.stdout.readline() == b"begun\n"
    assert child.end(0.05) == -signal.SIGKILL
    child.process.stdout.close()


def test_a_child_that_holds_the_interpreter_ends_with_its_lifeline():
    busy = TAKES + "print(repr(sys.stdin.read()), flush=True); sum(range(10**11))"
    child = Child(["-c", busy], safe_environment(), stdout=subprocess.PIPE)
    assert child.process.stdout.readline() == b"''\n", "nothing is to be read from the standard input"
    assert child.end(30) == -signal.SIGIO
    child.process.stdout.close()


@pytest.mark.parametrize("passes_on", [False, True])
def test_the_last_lines_of_a_child_are_kept(passes_on, capsys):
    child = Child(["-c", WRITES], lines=3, passes_on=passes_on)
    assert child.process.wait(30) == 3
    assert child.last_lines() == ["line 47", "line 48", "line 49"]
    assert ("line 0" in capsys.readouterr().err) is passes_on
    child.end()
    child.forget_lines()
    assert child.last_lines() == []


def test_what_is_handed_to_a_child_is_read_to_its_end():
    child = Child(["-c", "import sys; print(len(sys.stdin.read()))"], stdout=subprocess.PIPE)
    child.hand(b"x" * 1_000_000)
    assert child.process.stdout.read() == b"1000000\n"
    child.process.stdout.close()
    assert child.end(30) == 0
    with pytest.raises(ValueError, match="closed"):
        child.hand(b"more")


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit status 0"), (3, "exit status 3"), (-9, "killed by SIGKILL"), (-99, "killed by signal 99")],
)
def test_an_exit_status_in_words(status, words):
    assert how_it_ended(status) == words
