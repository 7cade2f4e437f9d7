"""The life of an engine's process: in any order of events, every batch ends exactly once."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, Dict, List, Tuple
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.errors import EngineError
from edgeserve.offload import remote
from edgeserve.offload.remote import Remote, TookTooLong

WAIT_S = 10.0
PAUSE_S = 0.002  # instead of half a second


def until(what: Any) -> None:
    due = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < due, "it did not happen"
        time.sleep(0)


class Child:
    """Stands in for a child process: a question waits until :meth:`does` says what comes of it."""

    made: List[Child] = []
    refusals = 0  # so many of the next ones do not start
    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.pid = next(self._numbers)
        self.has_ended = False
        self.asked: Any = None
        self._told = threading.Event()
        self._what = ""
        Child.made.append(self)

    def ask(self, verb: str, argument: Any, timeout_s: float) -> Tuple[bool, Any]:
        if verb == "load":
            if Child.refusals:
                Child.refusals -= 1
                raise EOFError
            return True, "ready"
        self.asked = argument
        self._told.wait(WAIT_S)
        self._told.clear()
        self.asked = None
        if self.has_ended or self._what == "crash":
            raise EOFError
        if self._what == "hang":
            raise TookTooLong
        return (True, argument) if self._what == "answer" else (False, EngineError("on purpose"))

    def does(self, what: str) -> None:
        self._what = what
        self._told.set()

    def end(self) -> int:
        self.has_ended = True
        self._told.set()
        return -9

    kill = close = end

    def last_lines(self) -> str:
        return ""


class Lives(RuleBasedStateMachine):
    """A rule looks itself whether it applies: threads decide it, and what Hypothesis draws may not depend on them."""

    @initialize(waits=st.booleans(), restarts_max=st.integers(0, 2))
    def begin(self, waits: bool, restarts_max: int) -> None:
        Child.made, Child.refusals = [], 0
        self.patches = [
            mock.patch.object(remote, "AskedChild", Child),
            mock.patch.object(remote, "PAUSE_S", PAUSE_S),
            mock.patch.object(remote, "PAUSE_S_MAX", 4 * PAUSE_S),
        ]
        for one in self.patches:
            one.start()
        self.remote = Remote("h:H", ModelConfig("m", "python"), LaneInfo(), (), 10**9, restarts_max, 10**9, waits)
        self.numbers = itertools.count()
        self.threads: Dict[int, threading.Thread] = {}
        self.found: Dict[int, List[Any]] = {}
        self.is_loaded = False
        self.load(0)

    def run(self, number: int) -> None:
        try:
            self.found[number].append(self.remote.call("run", number))
        except EngineError as error:
            self.found[number].append(error)

    def asked(self) -> List[Child]:
        return [child for child in Child.made if child.asked is not None and not child.has_ended]

    @rule(refusals=st.integers(0, 2))
    def load(self, refusals: int) -> None:
        if self.is_loaded:
            return
        Child.refusals = refusals
        try:
            assert self.remote.load() == self.remote.load() == "ready"
            self.is_loaded = True
        except EngineError:
            assert refusals and self.remote.pid is None
        Child.refusals = 0

    @rule()
    def batch(self) -> None:
        number = next(self.numbers)
        self.found[number] = []
        thread = self.threads[number] = threading.Thread(target=self.run, args=(number,), daemon=True)
        thread.start()
        until(lambda: self.asked() or not thread.is_alive())

    def tell(self, what: str) -> int:
        (child,) = self.asked()
        number: int = child.asked
        child.does(what)
        self.threads[number].join(WAIT_S)
        until(lambda: self.asked() or not any(thread.is_alive() for thread in self.threads.values()))
        return number

    @rule(what=st.sampled_from(["answer", "crash", "hang", "raise"]), refusals=st.integers(0, 2))
    def ends(self, what: str, refusals: int) -> None:
        """A batch that runs ends so; the process is not back before so many more starts."""
        if not self.asked():
            return
        Child.refusals = 0 if what in ("answer", "raise") else refusals
        number = self.tell(what)
        (end,) = self.found[number]
        assert end == number if what == "answer" else isinstance(end, EngineError)

    @rule(times=st.integers(1, 4))
    def crash_in_a_row(self, times: int) -> None:
        if not (self.is_loaded and not self.asked()):
            return
        for _ in range(times):
            self.batch()
            if self.asked():
                self.ends("crash", 0)

    @rule(refusals=st.integers(0, 1))
    def crash_between_calls(self, refusals: int) -> None:
        if not (self.is_loaded and not self.asked()):
            return
        Child.refusals = refusals
        for child in Child.made:
            child.end()

    @rule()
    def unload(self) -> None:
        if self.is_loaded:
            self.unloaded()

    def unloaded(self) -> None:
        self.remote.unload()
        self.is_loaded = False
        for thread in self.threads.values():
            thread.join(WAIT_S)
        assert self.remote.pid is None and all(child.has_ended for child in Child.made)
        with pytest.raises(EngineError, match="is not loaded; call load"):
            self.remote.call("run", -1)

    @rule()
    def it_comes_back(self) -> None:
        """After any trouble, within a bound, it answers; a pause ends without a call."""
        if not (self.is_loaded and not self.asked()):
            return
        until(lambda: not self.remote.trouble())

        def serves() -> bool:
            try:
                return self.remote.present() > 0
            except EngineError:
                return False

        until(serves)
        self.batch()
        self.ends("answer", 0)

    @invariant()
    def one_question_at_a_time_and_one_end_each(self) -> None:
        assert len(self.asked()) <= 1
        for number, thread in self.threads.items():
            assert len(self.found[number]) <= 1
            assert bool(self.found[number]) or thread.is_alive()

    def teardown(self) -> None:
        if not hasattr(self, "remote"):
            return
        self.unloaded()
        assert all(len(ends) == 1 for ends in self.found.values()), self.found
        for thread in threading.enumerate():  # what started another in spite of it would be seen
            if thread.name.endswith("-restart"):
                thread.join(WAIT_S)
        assert all(child.has_ended for child in Child.made)
        for one in self.patches:
            one.stop()


TestLives = Lives.TestCase
TestLives.settings = settings(stateful_step_count=20)


def test_an_interrupted_call_takes_its_process_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would be the next call's."""
    Child.made, Child.refusals = [], 0
    monkeypatch.setattr(remote, "AskedChild", Child)
    one = Remote("h:H", ModelConfig("m", "python"), LaneInfo(), (), 10**9, 3)
    one.load()
    first = Child.made[0]
    monkeypatch.setattr(first, "ask", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        one.call("run", 1)
    assert first.has_ended
    one.present()
    threading.Timer(0.05, lambda: Child.made[-1].does("answer")).start()
    assert one.call("run", 2) == 2
    one.unload()
