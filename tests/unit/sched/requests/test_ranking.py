"""A request's own claims rank it among its owner's requests, and beside those of others only where trusted."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from hand_world import Driver

from edgeserve.priority_class import CLASSES

MINE, OTHERS = "uid:7/pid:1 #01", "uid:8/pid:2 #02"
APP = {"model": "m", "slo": "100ms", "value": 2.0}


def world_of(**app: Any) -> Driver:
    return Driver({"m": {1: 10}}, {"a": {**APP, **app}})


def counts(world: Driver, request_id: int) -> Any:
    """The class and the value that the scheduler counts for a request that waits."""
    request = world.scheduler.state.requests[request_id]
    return request.priority_class, request.value


@pytest.mark.parametrize("own", CLASSES)
@pytest.mark.parametrize("priority_class", CLASSES)
@pytest.mark.parametrize("value", [0.0, 1.0, 2.0, 1e15])
@pytest.mark.parametrize("owner", [MINE, "address:10.0.0.1@uid:0 #07", "token:t@uid:0 #07", "key:robot #03"])
def test_nothing_that_a_request_says_raises_it_beside_others(
    own: str, priority_class: str, value: float, owner: str
) -> None:
    world = world_of(**{"class": own})
    for _ in range(3):
        world.arrive("a", client=owner, priority_class=priority_class, value=value)
    for request_id in (1, 2, 3):
        counted, worth = counts(world, request_id)
        assert CLASSES.index(counted) == max(CLASSES.index(own), CLASSES.index(priority_class))
        said = value if counted == priority_class else 1000.0 * value  # a more urgent class is so much more of its own
        assert worth == min(said, 2.0)


@pytest.mark.parametrize(("client", "trusted"), [("", False), ("camera", False), (MINE, True)])
def test_the_application_and_who_is_trusted_are_taken_at_their_word(client: str, trusted: bool) -> None:
    world = world_of()
    world.arrive("a", client=client, trusted=trusted, priority_class="critical", value=1e15)
    assert counts(world, 1) == ("critical", 1e15)


def test_a_story_says_that_a_claim_counts_within_its_client_alone() -> None:
    world = world_of()
    world.arrive("a", client=MINE, priority_class="critical", value=9.0)
    world.arrive("a", client=MINE)
    told = "class critical and value 9 rank it among its client's own alone"
    assert any(told in line for line in world.scheduler.story(1))
    assert not any("rank it" in line for line in world.scheduler.story(2))


MORE: Dict[str, Dict[str, Any]] = {"critical": {"priority_class": "critical"}, "value": {"value": 20.0}}


@pytest.mark.parametrize("claim", sorted(MORE))
def test_of_an_owner_over_its_part_the_least_important_goes(claim: str) -> None:
    world = world_of()
    world.arrive("a", client=OTHERS)
    while not world.ends:
        world.arrive("a", client=MINE)
    refused = max(world.ends)
    assert (world.outcome(refused), world.reason(refused)) == ("rejected", "over_share")
    world.arrive("a", client=MINE, **MORE[claim])
    assert world.ends.pop(refused - 1).reason == "over_share", "the newest of those that wait makes room"
    assert list(world.ends) == [refused] and refused + 1 in world.scheduler.state.requests
    world.arrive("a", client=MINE)
    assert world.reason(refused + 2) == "over_share", "one that says no more than they takes no place of theirs"


@pytest.mark.parametrize("claim", sorted(MORE))
def test_where_places_are_few_an_owners_important_request_takes_one_of_its_own(claim: str) -> None:
    world = world_of(pending_max=3)
    world.arrive("a", client=OTHERS)
    world.arrive("a", client=MINE, count=2)
    world.arrive("a", client=MINE, **MORE[claim])
    assert world.ends[3].reason == "over_share" and set(world.scheduler.state.requests) == {1, 2, 4}
    world.arrive("a", client=MINE, **MORE[claim])
    world.arrive("a", client=MINE, **MORE[claim])
    assert world.outcome(6) == "rejected", "its equals stay"
    assert 1 in world.scheduler.state.requests, "and those of others"


@pytest.mark.parametrize("claim", sorted(MORE))
def test_what_says_less_than_the_owners_others_counts_less(claim: str) -> None:
    world = world_of()
    world.arrive("a", client=MINE, **MORE[claim])
    world.arrive("a", client=MINE)
    world.arrive("a", client=OTHERS)
    assert counts(world, 1)[1] == counts(world, 3)[1] == 2.0
    assert 2.0 / 32 <= counts(world, 2)[1] <= 2.0 / 10
    world.step(at=5000)
    world.arrive("a", client=MINE)
    assert counts(world, 4)[1] == 2.0, "a second later that is forgotten"


@pytest.mark.parametrize("claim", sorted(MORE))
def test_an_owner_alone_has_its_important_requests_served_first(claim: str) -> None:
    """Three times what the lane can do, one request of five important."""
    world = world_of()
    important = set()
    at_ms = free_ms = 0.0
    for number in range(1, 301):
        while world.on_lane and free_ms <= at_ms:
            world.finish("cpu0", at=free_ms)
            free_ms += 10
        if not world.on_lane:
            free_ms = at_ms + 10
        given = MORE[claim] if number % 5 == 0 else {}
        important.update([number] if given else [])
        world.arrive("a", client=MINE, at=at_ms, **given)
        at_ms += 10 / 3
    done = {request_id for request_id, end in world.ends.items() if end.outcome == "completed"}
    assert len(important & done) >= 0.9 * len(important & set(world.ends))
    assert len(done) >= 90, "and the others have the rest"
