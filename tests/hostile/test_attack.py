"""A short run of ``scripts/dev/hostile.py``; ``make hostile`` makes the long one."""

from __future__ import annotations

from dev import hostile


def test_mutated_messages_harm_nobody() -> None:
    found = hostile.attack(3000, seed=1, rest_s=0.0)
    rows = hostile.check(found).rows
    wrong = [row for row in rows if not row.holds and row.name != "growth of memory"]  # too short for that
    assert not wrong, found
    assert found["messages"] == 3000
    assert found["healthy_asked"] > 20
    assert found["received"] > 1000
    assert sum(found["outcomes"]["echo"].values()) > 10  # good ones were among them


def test_a_seed_makes_the_same_messages() -> None:
    one, other, third = [hostile.Mutator(seed) for seed in "112"]
    messages = [one.message() for _ in range(200)]
    assert messages == [other.message() for _ in range(200)]
    assert messages != [third.message() for _ in range(200)]
