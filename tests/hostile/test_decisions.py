"""Attacks on the scheduler's time: hints, and one client that requests everything. Virtual time, counted operations."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict, List, Mapping

import pytest
from hand_world import Driver, ended
from scenarios import product_first

from edgeserve.config.loading import parse_config
from edgeserve.errors import BadInput
from edgeserve.live.request import request_of_call, request_validators
from edgeserve.sched.plan.paths import ENTRIES_MAX, repeated
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.budget import OPERATIONS_MAX

FAN = [
    {"name": "find", "model": "m", "fan_out": True},
    {"name": "read", "model": "n"},
    {"name": "join", "model": "m", "gather": True},
]
ATTACKER, OTHER = "pid:1 #01", "pid:2 #02"


# --- hints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", product_first(sorted(POLICIES)))
@pytest.mark.parametrize(
    "hints",
    [
        {"find.parts": 2.0**62, "read.steps": 2.0**62, "work": 2.0**62},
        {"find.steps": 1e7, "read.work": 1e300},
        {"read.steps": 1e4, "find.parts": 256},
    ],
)
def test_no_hint_makes_a_decision_dear(kind: str, hints: Dict[str, float]) -> None:
    if kind.startswith("schemble"):
        pytest.skip("needs an ensemble")
    world = Driver({"m": {1: 10, 4: 20}, "n": {1: 5, 8: 20}}, {"a": FAN}, policy=kind, lane={"cpu0": {}, "cpu1": {}})
    for late in ("answer", "drop", "partial"):
        world.arrive("a", count=8, hints=hints, on_late=late, slo=10_000)
        assert world.scheduler.state.board.budget.left > -OPERATIONS_MAX // 4
    for lane in ("cpu0", "cpu1"):
        if any(work.lane == lane for work in world.on_lane.values()):
            world.finish(lane, at=world.now_ms + 10, parts=3)
            assert world.scheduler.state.board.budget.left > -OPERATIONS_MAX // 4


@pytest.mark.parametrize("kind", product_first(sorted(POLICIES)))
def test_no_number_of_waiting_requests_makes_a_decision_dear(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of Python functions and of C's, since time on a shared machine says little (200,000: about 30 ms)."""
    chain = {"pending_max": 2000, "node": [{"name": "x", "model": "m"}, {"name": "y", "model": "n"}]}
    world = Driver({"m": {1: 10, 4: 25, 16: 80}, "n": {1: 5, 4: 12}}, {"a": chain}, policy=kind)
    monkeypatch.setattr("hand_world.check_now_and_then", lambda state, step: None)
    draw, calls = random.Random(1), 0
    for number in range(1000):
        world.arrive("a", slo=draw.uniform(200, 60_000), at=number * 0.01)

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for _ in range(3):
        calls = 0
        sys.setprofile(count)
        try:
            world.finish("cpu0", at=world.now_ms + 20)
        finally:
            sys.setprofile(None)
        assert calls < 250_000


def test_where_nothing_is_left_to_compute_a_company_is_chosen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeserve.sched.core.scheduler.OPERATIONS_MAX", 0)
    world = Driver({"m": {1: 10, 4: 20}, "n": {1: 5, 8: 20}}, {"a": FAN}, policy="plan")
    world.arrive("a", count=8, hints={"read.steps": 3.0}, slo=10_000)
    assert len(world.on_lane) == 1
    world.finish("cpu0", at=20, parts=2)
    world.step(at=9_999_999)
    assert len(world.ends) == 8


def test_many_steps_are_few_entries_and_take_as_long() -> None:
    batches = [(4, 20), (1, 7)]
    assert repeated(batches, 3) == batches * 3
    for repeats in (129, 1000, 10**9):
        found = repeated(batches, repeats)
        assert len(found) <= ENTRIES_MAX
        assert sum(jobs for jobs, _ in found) == 5 * repeats
        assert sum(time_ns for _, time_ns in found) == 27 * repeats


@pytest.mark.parametrize(
    ("hint", "value", "mend"),
    [
        ("find.parts", 257, "parts_max of node 'find'"),
        ("read.steps", 65_537, "expected at most 65536$"),
        ("work", 1e6 + 1, "expected at most 1e.06$"),
        ("join.work", 2.0**62, "expected at most 1e.06$"),
    ],
)
def test_a_declared_hint_beyond_its_bound_is_refused(hint: str, value: float, mend: str) -> None:
    config = parse_config(
        {"model": {"m": {"engine": "synthetic"}, "n": {"engine": "synthetic"}}, "app": {"a": {"node": FAN}}}
    )
    check = request_validators(config)["a"].check
    with pytest.raises(BadInput, match=mend):
        check(request_of_call("a", {}, hints={hint: value}), None, 0)  # type: ignore[arg-type]
    check(request_of_call("a", {}, hints={hint: 2}), None, 0)  # type: ignore[arg-type]


# --- shares -----------------------------------------------------------------------------------------------------------


def served(
    rates: Dict[str, float],
    policy: str = "edf",
    seconds: float = 4.0,
    costs: Mapping[str, int] | None = None,
    slos: Mapping[str, int] | None = None,
    seed: int | None = None,
    lanes: int = 1,
) -> Dict[str, int]:
    """Requests in time by client, at these rates (per second), each for an app of its own: 10 ms of one lane within 100
    ms, unless said. With a seed arrivals are random, else regular. ``lanes``: one more app may run on all of them, and
    has no requests."""
    costs, slos = {**dict.fromkeys(rates, 10), **(costs or {})}, {**dict.fromkeys(rates, 100), **(slos or {})}
    names = {client: f"a{place}" for place, client in enumerate(rates)}
    apps = {names[client]: {"model": f"m{costs[client]}", "slo": f"{slos[client]}ms"} for client in rates}
    world = Driver(
        {**{f"m{cost}": {1: cost, "lanes": ["cpu0"]} for cost in costs.values()}, "all": {1: 10}},
        {**apps, "all": "all"},
        policy=policy,
        lane={f"cpu{number}": {} for number in range(lanes)},
    )
    arrivals = []
    for client, rate in rates.items():
        draw = random.Random(f"{seed}/{client}")
        at_ms = 0.0
        while at_ms < seconds * 1000:
            arrivals.append((at_ms, client))
            at_ms += 1000 / rate if seed is None else 1000 * draw.expovariate(rate)
    clients: List[str] = []
    free_ms = 0.0
    for at_ms, client in sorted(arrivals):
        while world.on_lane and free_ms <= at_ms:
            world.finish("cpu0", at=free_ms)
            free_ms += running_ms(world)
        idle = not world.on_lane
        clients.append(client)
        world.arrive(names[client], client=client, at=at_ms)
        if idle:
            free_ms = at_ms + running_ms(world)
    found = dict.fromkeys(rates, 0)
    for request_id, end in world.ends.items():
        found[clients[request_id - 1]] += end.outcome == "completed"
    return found


def running_ms(world: Driver) -> int:
    """The time of the batch on the lane; 0 without one."""
    return next((int(work.model[1:]) for work in world.on_lane.values()), 0)


@pytest.mark.parametrize("policy", ["edf", "fifo", "clockwork", "plan"])
def test_who_asks_most_does_not_take_the_lane_from_the_others(policy: str) -> None:
    alone = served({OTHER: 40}, policy)[OTHER]
    both = served({ATTACKER: 300, OTHER: 40}, policy)
    assert both[OTHER] >= 0.95 * alone
    assert both[ATTACKER] + both[OTHER] >= 380  # and the lane is used


@pytest.mark.parametrize("rate", [50, 200])
@pytest.mark.parametrize("slo", [20, 50])
def test_what_another_client_does_not_use_of_its_part_is_anybodys(rate: int, slo: int) -> None:
    """A detector of 15 ms beside another process's requests of 1 ms, on a lane of which 35 or 50 % is wanted."""
    for seed in range(2):
        given: Dict[str, Any] = {"costs": {ATTACKER: 15, OTHER: 1}, "slos": {ATTACKER: 50, OTHER: slo}, "seed": seed}
        alone = served({ATTACKER: 20}, **given)[ATTACKER]
        both = served({ATTACKER: 20, OTHER: rate}, **given)
        assert both[ATTACKER] >= 0.98 * alone
        assert both[OTHER] >= 0.97 * served({OTHER: rate}, **given)[OTHER]


def test_requests_that_cannot_be_served_take_no_part_from_others() -> None:
    both = served({ATTACKER: 300, OTHER: 40}, slos={ATTACKER: 5}, seed=1)
    assert both[OTHER] >= 0.98 * served({OTHER: 40}, seed=1)[OTHER]


def test_a_flood_on_one_of_four_lanes_is_one_although_a_model_runs_on_all_of_them() -> None:
    rates = {ATTACKER: 300.0, OTHER: 40.0}
    assert served(rates, lanes=4)[OTHER] >= 0.95 * served({OTHER: 40}, lanes=4)[OTHER]


def test_who_floods_one_set_of_lanes_keeps_its_part_of_the_others() -> None:
    """One process asks far too much of the host's lanes, and little of the GPU, as another one does."""
    models = {"see": {1: 10, "lanes": ["gpu0"]}, "cut": {1: 10, "lanes": ["cpu0"]}}
    world = Driver(
        models,
        {"see": {"model": "see", "slo": "60ms"}, "cut": {"model": "cut", "slo": "60ms"}},
        lane={"gpu0": {}, "cpu0": {}},
    )
    world.arrive("cut", client=OTHER)
    world.arrive("see", client=OTHER)
    for _ in range(50):
        world.arrive("cut", client=ATTACKER)
    for _ in range(3):
        world.arrive("see", client=ATTACKER)
    ends = [(end.outcome, end.reason) for end in world.ends.values()]
    assert set(ends) == {("rejected", "over_share")} and not any(request > 52 for request in world.ends)


def test_work_that_ends_long_after_its_clients_went_ends_nothing_else() -> None:
    world = Driver({"m": {1: 10, 4: 20}}, {"a": {"model": "m", "slo": "9s"}})
    for client in (ATTACKER, OTHER):
        world.arrive("a", count=2, client=client)
    for request_id in range(1, 5):
        world.cancel(request_id)
    world.finish("cpu0", at=3000)
    assert {end.outcome for end in world.ends.values()} == {"cancelled"} and not world.on_lane


def test_one_owners_many_connections_have_one_share() -> None:
    crowd = {f"pid:1 #{index:02x}": 30.0 for index in range(10)}
    found = served({**crowd, OTHER: 40})
    assert found[OTHER] >= 0.95 * 160


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_user_with_twelve_processes_has_no_more_than_one_with_one(seed: int) -> None:
    crowd = {f"uid:1/pid:{number} #{number:02x}": 30.0 for number in range(12)}
    found = served({**crowd, "uid:2/pid:99 #63": 60}, seed=seed)
    alone = served({"uid:1/pid:1 #01": 360, "uid:2/pid:99 #63": 60}, seed=seed)
    assert found["uid:2/pid:99 #63"] >= 0.95 * alone["uid:2/pid:99 #63"]
    counts = [found[name] for name in crowd]
    assert min(counts) >= 0.4 * sum(counts) / len(counts), "its processes share its part"


def test_a_client_alone_has_the_whole_lane_and_so_have_names_without_owners() -> None:
    assert served({ATTACKER: 300})[ATTACKER] == served({"x": 300})["x"]
    unowned = served({"x": 300, "y": 40})
    assert unowned["y"] < 100  # as before: shares need to know whose connections they are


def test_places_are_shared_across_apps() -> None:
    apps = {name: {"model": "m", "pending_max": 4} for name in "abcd"}
    world = Driver({"m": {1: 10}}, {**apps, "idle": "m"}, server={"pending_max": 16})
    for name in "abcd":
        world.arrive(name, count=4, client="greedy", slo=10_000)
    assert world.arrive("a", client="greedy", slo=10_000)[0] == ended(17, "rejected", "queue_full")
    assert world.arrive("idle", client="greedy", slo=10_000) == [ended(18, "rejected", "server_full")]
    found = world.arrive("idle", client="other", slo=10_000)
    assert found == [ended(16, "dropped", "over_share")]
    assert 19 in world.scheduler.state.requests
