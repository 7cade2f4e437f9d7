"""Threads that yield to others: the thread alone, and its child threads."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from own_thread import in_a_thread

from edgeserve.engines.niceness import made_yielding, yield_to_others

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has a niceness per thread")


def niceness_now():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@on_linux
def test_only_the_calling_thread_and_those_that_it_makes_yield():
    before = niceness_now()
    nicer = min(19, before + 3)
    assert in_a_thread(lambda: (yield_to_others(nicer), niceness_now(), in_a_thread(niceness_now))) == (
        "",
        nicer,
        nicer,
    )
    assert niceness_now() == before


@on_linux
def test_what_is_made_yielding_leaves_the_maker_as_it_was():
    before = niceness_now()
    nicer = min(19, before + 3)
    assert made_yielding(nicer, niceness_now) == nicer
    assert niceness_now() == before
    with pytest.raises(ValueError, match="wrong"):
        made_yielding(nicer, lambda: (_ for _ in ()).throw(ValueError("wrong")).__next__())


def test_no_wish_changes_nothing():
    assert yield_to_others(0) == ""
    assert made_yielding(0, threading.get_ident) == threading.get_ident()
