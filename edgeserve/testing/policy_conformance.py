"""The contract of every policy: subclass :class:`PolicyConformance`, name the kind, and pytest runs the rest.

    class TestEdf(PolicyConformance):
        kind = "edf"

Soaks (``soak``) and drawn worlds (``policy_worlds``) are among it.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Mapping, Tuple, Type, TypeVar

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.schema import Config
from edgeserve.errors import ConfigError
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.core.scheduler import Scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.policy import Bid, Policy
from edgeserve.sched.protocol.actions import Action, FinishRequest, Outcome, RunBatch
from edgeserve.sched.protocol.events import Event, JobResult, Request, RequestArrived, WorkFinished, WorkRefused
from edgeserve.sched.resources.lanes import Lane
from edgeserve.testing.invariants import check_invariants
from edgeserve.testing.policy_worlds import WorldResult, run_elsewhere, run_world
from edgeserve.testing.soak.run import SoakResult, draw_scenario, soak
from edgeserve.units import NS_PER_MS

_Found = TypeVar("_Found")
_DONE: Dict[type, Dict[Tuple[str, int], Any]] = {}
"""Class of tests -> what its runs found."""


class PolicyConformance:
    """The shared tests. ``kind`` names the policy in ``POLICIES``, or is ``"module:Class"`` on the Python path;
    ``options`` are those of ``[policy.*]``, but in the soak, which has the kind's defaults or draws them.

    ``work_conserving``: an idle lane starts a lone request in the step in which it arrives. ``remembered_max``: how
    many records of ended requests, jobs and works the policy may hold at most, in tables that it bounds.
    ``world_seeds`` are those of ``policy_worlds``; the first of them is run in another process too, where sets have
    another order (``elsewhere``; only a class at the top of its module can be found there). Override what a policy
    means to do otherwise, and say why.
    """

    kind = ""
    options: Mapping[str, Any] = {}
    work_conserving = True
    remembered_max = 0
    elsewhere = True
    soak_seeds: Tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    world_seeds: Tuple[int, ...] = (1, 2, 13)

    @pytest.fixture(autouse=True)
    def _import_kind(self) -> None:
        if ":" in self.kind and self.kind not in POLICIES:
            POLICIES[self.kind] = imported(self.kind)

    def _soaked(self, seed: int) -> SoakResult:
        """The soak's scenario of a seed under this policy, run once for all tests of a class."""
        return self._once(("soak", seed), lambda: soak(seed, policies=(self.kind,)))

    def _world(self, seed: int) -> WorldResult:
        """The same of a world of ``policy_worlds``."""
        return self._once(
            ("world", seed),
            lambda: run_world(seed, self.kind, self.options, remembered_max=self.remembered_max),
        )

    def _once(self, key: Tuple[str, int], run: Callable[[], _Found]) -> _Found:
        done = _DONE.setdefault(type(self), {})
        if key not in done:
            done[key] = run()
        found: _Found = done[key]
        return found

    def make(self, **changes: Any) -> Scheduler:
        """A scheduler with one app of one model of batch sizes 1, 2, 4 (2, 3, 5 ms) under this policy."""
        app = {"model": "m", "slo": "50ms", **changes}
        expected = {"1": "2ms", "2": "3ms", "4": "5ms"}
        return build_scheduler(
            parse_config(
                {
                    "model": {"m": {"engine": "synthetic", "batch": [1, 2, 4], "expected": expected}},
                    "policy": {"p": {"kind": self.kind, **self.options}},
                    "app": {"a": app},
                }
            )
        )

    def test_an_unknown_option_is_refused_by_name(self) -> None:
        with pytest.raises(ConfigError, match="no option 'no_such_option'"):
            POLICIES[self.kind]("p", (), {**self.options, "no_such_option": 1})

    def test_a_lone_request_runs_at_once_and_completes(self) -> None:
        if not self.work_conserving:
            pytest.skip("this policy may let an idle lane wait")
        scheduler = self.make()
        actions = scheduler.step(0, [RequestArrived(Request(1, "a", 0, 50 * NS_PER_MS))])
        assert [type(action) for action in actions] == [RunBatch]
        answers = answer(scheduler, actions[0], 0, 2 * NS_PER_MS)
        assert [(item.request_id, item.outcome) for item in answers] == [(1, Outcome.COMPLETED)]

    def test_requests_without_hope_are_not_left_waiting(self) -> None:
        scheduler = self.make()
        scheduler.step(0, [RequestArrived(Request(index, "a", 0, 50 * NS_PER_MS)) for index in range(100)])
        now_ns, wakes = 0, 0
        while scheduler.open_count and wakes < 1000:
            wake_ns = scheduler.wake_ns
            if wake_ns is None or wake_ns > 50 * NS_PER_MS:
                break
            assert wake_ns > now_ns
            now_ns, wakes = wake_ns, wakes + 1
            scheduler.step(now_ns)
            check_invariants(scheduler.state)
        waiting = [job for policy in scheduler.policies for job in policy.queued()]
        assert waiting == []

    def test_the_deadline_that_a_refusal_says_would_do_is_not_refused(self) -> None:
        """A policy that judges deadlines by rules of its own says so in ``expected_end``."""
        config = parse_config(
            {
                "model": {"m": {"engine": "synthetic", "batch": [1, 2], "expected": {"1": "4ms", "2": "6ms"}}},
                "policy": {"p": {"kind": self.kind, **self.options, "trials": False}},  # a trial is no refusal
                "app": {"a": {"model": "m", "slo": "50ms"}},
            }
        )
        for before in (0, 1, 6):
            for slo_ms in (1, 2, 3, 5, 7):
                end = _end_at_arrival(config, before, slo_ms * NS_PER_MS)
                lacked = end.shortfall if end is not None else None
                if end is not None and lacked is not None and lacked.slo_ns_min is not None:
                    assert lacked.slo_ns_min > slo_ms * NS_PER_MS, f"{slo_ms} ms were not enough: {lacked}"
                    again = _end_at_arrival(config, before, lacked.slo_ns_min)
                    assert again is None or again.reason != end.reason, f"given up: {lacked}; and with that: {again}"

    def test_asking_for_a_bid_changes_nothing(self) -> None:
        count = [0]
        kind = POLICIES[self.kind]
        POLICIES[self.kind] = _asked_twice(kind, count)
        try:
            scheduler = self.make()
        finally:
            POLICIES[self.kind] = kind
        now_ns, out = 0, []  # type: ignore[var-annotated]
        for index in range(200):
            events: List[Event] = [RequestArrived(Request(index, "a", now_ns, now_ns + 50 * NS_PER_MS))]
            while out and out[0][0] <= now_ns:
                done_ns, work = out.pop(0)
                events.append(finished(work, done_ns - NS_PER_MS, done_ns))
            out += [
                (now_ns + 3 * NS_PER_MS, action)
                for action in scheduler.step(now_ns, events)
                if isinstance(action, RunBatch)
            ]
            check_invariants(scheduler.state)
            now_ns += NS_PER_MS
        assert count[0] > 10

    def test_rules_hold_in_drawn_trouble(self) -> None:
        for seed in self.soak_seeds:
            self._soaked(seed)

    def test_rules_hold_while_clocks_heat_power_and_memory_change(self) -> None:
        device_changes = soak(self.soak_seeds[0], policies=(self.kind,), hardware=True).marks.get("DeviceChanged", 0)
        assert device_changes, "no device told of any change: the drawn hardware tests nothing"

    def test_rules_hold_among_language_models(self) -> None:
        for seed in self.soak_seeds[:2]:
            soak(seed, policies=(self.kind,), language=True)

    def test_rules_hold_among_language_models_while_processors_are_busy_and_memory_falls(self) -> None:
        for seed in self.soak_seeds[:2]:
            soak(seed, policies=(self.kind,), language=True, hardware=True)

    def test_equal_runs_decide_equally(self) -> None:
        seed = self.soak_seeds[0]
        assert self._soaked(seed) == soak(seed, policies=(self.kind,))

    def test_its_records_hold_through_lost_lanes_settled_joins_and_batches_without_1(self) -> None:
        """Each batch that started ends by one hook, and nothing of it is remembered."""
        for seed in self.world_seeds:
            self._world(seed)

    def test_its_records_hold_where_jobs_are_over_before_their_batch(self) -> None:
        """Batches of a language model end job by job, are cut, and give up the states of some."""
        seed = self.world_seeds[0]
        run_world(seed, self.kind, self.options, twice=True, remembered_max=self.remembered_max, language=True)

    def test_bids_that_are_asked_twice_decide_nothing_else(self) -> None:
        seed = self.world_seeds[0]
        once = self._world(seed)
        twice = run_world(seed, self.kind, self.options, twice=True, remembered_max=self.remembered_max)
        assert once.digest == twice.digest, f"world {seed}: asking for each bid twice changed later decisions"

    def test_decisions_do_not_depend_on_the_order_of_sets(self) -> None:
        if not self.elsewhere:
            pytest.skip("this policy is not run in another process")
        seed = self.world_seeds[0]
        here = self._world(seed)
        there = run_elsewhere(seed, self.kind, self.options, self.remembered_max)
        assert here.digest == there, f"world {seed}: another process with another PYTHONHASHSEED decides otherwise"

    def test_a_join_that_waits_in_vain_ends_at_the_deadline(self) -> None:
        """One branch is done, the other's lane refuses each batch: the policy may settle the join, and else the request
        ends when its deadline has passed."""
        scheduler = build_scheduler(
            parse_config(
                {
                    "lane": {"l0": {}, "l1": {}},
                    "model": {
                        name: {
                            "engine": "synthetic",
                            "batch": [2, 4],
                            "expected": {"2": "3ms", "4": "5ms"},
                            "lanes": [lane],
                        }
                        for name, lane in (("m", "l0"), ("other", "l1"))
                    },
                    "policy": {"p": {"kind": self.kind, **self.options}},
                    "app": {
                        "a": {
                            "slo": "50ms",
                            "node": [
                                {"name": "left", "model": "m", "after": []},
                                {"name": "right", "model": "other", "after": []},
                                {"name": "end", "model": "m", "after": ["left", "right"], "join": "policy"},
                            ],
                        }
                    },
                }
            )
        )
        takes_ns, ended_ns = 3 * NS_PER_MS, 0
        coming: List[Tuple[int, Event]] = [(0, RequestArrived(Request(1, "a", 0, 50 * NS_PER_MS)))]
        for _ in range(1000):
            times = [at_ns for at_ns in (*[at_ns for at_ns, _ in coming[:1]], scheduler.wake_ns) if at_ns is not None]
            assert times, "the request has no end and nothing is due"
            now_ns = min(times)
            events = [event for at_ns, event in coming if at_ns <= now_ns]
            actions = scheduler.step(now_ns, events)
            check_invariants(scheduler.state)
            coming = coming[len(events) :] + [
                (
                    now_ns + takes_ns,
                    finished(work, now_ns, now_ns + takes_ns)
                    if work.lane == "l0"
                    else WorkRefused(work.work_id, "not now"),
                )
                for work in actions
                if isinstance(work, RunBatch)
            ]
            if any(isinstance(action, FinishRequest) for action in actions):
                ended_ns = now_ns
                break
        assert 0 < ended_ns <= 50 * NS_PER_MS + takes_ns, f"the request ended at {ended_ns} ns (0: never)"

    def test_nothing_is_queued_after_draining(self) -> None:
        from edgeserve.sim.run import simulate

        scenario, _ = draw_scenario(self.soak_seeds[-1], (self.kind,))
        run = simulate(scenario, self.soak_seeds[-1], (), drain=True, settle=True)
        assert [job for policy in run.scheduler.policies for job in policy.queued()] == []


def imported(kind: str) -> Type[Policy]:
    """The policy class that ``"module:Class"`` names. Raises :class:`ConfigError` where there is none."""
    module, _, name = kind.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"PolicyConformance: kind = {kind!r} cannot be imported: {error}. Expected 'module:Class' of "
            f"a module on the Python path, or one of {', '.join(sorted(POLICIES))}"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(
            f"PolicyConformance: kind = {kind!r} is a {type(found).__name__}; expected a subclass of "
            "edgeserve.sched.policy_api.policy.Policy"
        )
    return found


def finished(work: RunBatch, started_ns: int, finished_ns: int) -> WorkFinished:
    """A lane's answer: every job of the batch is done."""
    return WorkFinished(work.work_id, started_ns, finished_ns, tuple(JobResult(job) for job in work.jobs))


def answer(scheduler: Scheduler, work: Action, started_ns: int, finished_ns: int) -> List[FinishRequest]:
    """Tell the scheduler that a batch is done; the outcomes that follow."""
    assert isinstance(work, RunBatch)
    actions = scheduler.step(finished_ns, [finished(work, started_ns, finished_ns)])
    return [action for action in actions if isinstance(action, FinishRequest)]


def _end_at_arrival(config: Config, before: int, slo_ns: int) -> FinishRequest | None:
    """The end of a request that comes behind ``before`` others, of which one runs; None when it is not given up at
    once."""
    scheduler, now_ns = build_scheduler(config), NS_PER_MS
    scheduler.step(0, [RequestArrived(Request(index, "a", 0, 500 * NS_PER_MS)) for index in range(before)])
    for action in scheduler.step(now_ns, [RequestArrived(Request(before, "a", now_ns, now_ns + slo_ns))]):
        if isinstance(action, FinishRequest) and action.request_id == before:
            return action
    return None


def _asked_twice(kind: Type[Policy], count: List[int]) -> Type[Policy]:
    """A policy that asks ``kind`` for each bid twice, compares the answers, and counts the bids."""

    class AskedTwice(kind):  # type: ignore[valid-type,misc]
        def bid(self, lane: Lane, board: Board) -> Bid | None:
            first, second = super().bid(lane, board), super().bid(lane, board)
            assert repr(first) == repr(second)
            assert first is None or second is None or list(first.jobs) == list(second.jobs)
            count[0] += first is not None
            return first  # type: ignore[no-any-return]

    return AskedTwice
