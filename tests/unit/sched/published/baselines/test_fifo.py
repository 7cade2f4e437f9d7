"""fifo: first in, first out, as many as the largest batch holds, and no look at a deadline."""

from __future__ import annotations

from hand_world import Driver, ended, ran

MODELS = {"m": {1: 10, 4: 20}, "n": {1: 10, 4: 20}}
APPS = {"a": "m", "b": "n"}


def fifo(**options):
    return Driver(MODELS, APPS, policy={"fifo": options})


def test_the_oldest_chooses_the_model_and_others_of_that_model_go_with_it():
    world = fifo()
    world.arrive("a")
    world.arrive("b", at=1)
    world.arrive("a", at=2, count=2)
    world.arrive("b", at=3)
    assert world.finish(at=10)[1:] == [ran("n", 2, 5, size=4)]
    assert world.finish(at=30)[2:] == [ran("m", 3, 4, size=4)]


def test_a_tight_deadline_overtakes_nobody_and_nothing_is_refused_or_dropped_early():
    world = fifo()
    world.arrive("a", count=4)
    world.arrive("a", at=1, count=4)
    assert world.arrive("a", at=2, slo=5) == []
    assert world.arrive("b", at=2, slo=30) == []
    assert world.pass_time(20) == [ended(9, "dropped", "expired")]
    assert world.finish(at=20)[4:] == [ran("m", 5, 6, 7, 8)]


def test_a_batch_is_at_most_as_large_as_the_largest_size_or_the_option():
    assert fifo().arrive("a", count=9) == [ran("m", 1, 2, 3, 4, size=4)]
    assert fifo(batch_max=1).arrive("a", count=9) == [ran("m", 1, size=1)]
    assert fifo(batch_max=3).arrive("a", count=9) == [ran("m", 1, 2, 3, size=4)]
    assert fifo(batch_max=99).arrive("a", count=9) == [ran("m", 1, 2, 3, 4, size=4)]
