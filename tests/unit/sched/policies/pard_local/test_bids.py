"""What a cohort offers for the lane, when its members are expected to end, and whom its batches have room for."""

from __future__ import annotations

import pytest
from exact_device import MS, Device, ask, chain, model, with_host_function

from edgeserve.sched.policies.pard_local.choice import Choice
from edgeserve.sched.policies.pard_local.filling import Filling
from edgeserve.sched.policies.pard_local.policy import BURST_PERCENT
from edgeserve.sched.policies.pard_local.remaining_work import CAME_LEN
from edgeserve.sched.policy_api.expected_end import ExpectedEnd
from edgeserve.sched.protocol.events import LaneChanged


class Shared(Device):
    """a (20 + 1 ms a job), b (10 + 2, in pairs) and a function of 1 ms behind it; another policy's c takes 1 ms of the
    same device, and cuts in where it may."""

    def __init__(self):
        times = {
            "a": model(20, 1, lanes=["gpu"]),
            "b": model(10, 2, 2, lanes=["gpu"]),
            "f": model(0, 1, 1, lanes=["host"]),
            "c": model(1, 0, lanes=["gpu"]),
        }
        super().__init__(
            {
                "lane": {"gpu": {}, "host": {}},
                "model": times,
                "policy": {"p": {"kind": "pard_local", "margin": 0.0}, "q": {"kind": "edf"}},
                "app": {
                    "app": {"slo": "500ms", "policy": "p", "node": [{"name": name} for name in "abf"]},
                    "other": {"slo": "500ms", "policy": "q", "model": "c"},
                },
            }
        )
        self.policy = next(policy for policy in self.scheduler.policies if policy.name == "p")
        self.board = self.scheduler.state.board
        self.gpu = self.scheduler.state.lanes["gpu"]
        self.pipeline = self.policy._pipeline_of["app"]

    def five_between(self):
        """Five requests are at b, which waits for c from 25 to 26: their cohort ends at 26 + 14 + 14 + 12 + 1 = 67."""
        self.ask(ask(1, 160), ask(2, 150), ask(3, 140), ask(4, 130, on_late="answer"), ask(5, 120, value=2.0))
        self.now_ns = 24 * MS
        self.ask(ask(9, 30, 24, app="other", value=50.0))
        self.advance(25)
        assert self.batches[-1] == (25.0, "c", [9])
        return self.policy._in_flight.cohorts[0]

    def expected(self, number):
        return self.policy.expected_end(self.policy._members[number].request, None, self.board)


def test_a_cohorts_next_batch_is_worth_all_that_its_members_still_wait_for():
    device = Shared()
    device.five_between()
    bid = device.policy.bid(device.gpu, device.board)
    assert ([job.request.id for job in bid.jobs], bid.model, bid.size, bid.klass) == ([5, 4], "b", 2, "normal")
    assert (bid.expected_ns, bid.remaining_ns) == (14 * MS, 40 * MS)
    assert bid.utility.after_ns == 41 * MS
    assert bid.latest_start_ns == (120 + 26 - 41) * MS  # the tightest is answered 26 ms before the last
    each = 11_500_000  # 28 / 8, 14 / 2 and 1
    assert sorted(bid.utility.rows) == [
        (146 * MS, 2.0 * each, 0),
        (152 * MS, each, 0),
        (155 * MS, each, 130 * MS),
        (160 * MS, each, 0),
        (161 * MS, each, 0),
    ]


def test_a_new_cohorts_first_batch_may_start_at_any_time():
    device = Shared()
    device.ask(ask(9, 30, app="other"))
    device.ask(ask(1, 160), ask(2, 150, klass="background"), ask(3, 140))
    bid = device.policy.bid(device.gpu, device.board)
    assert ([job.request.id for job in bid.jobs], bid.model, bid.size, bid.klass) == ([3, 2, 1], "a", 3, "normal")
    assert (bid.expected_ns, bid.remaining_ns, bid.latest_start_ns) == (23 * MS, (23 + 26) * MS, None)
    assert bid.utility.after_ns == (23 + 26 + 3) * MS  # one stage after the other
    device.advance(1)
    assert device.batches[-1] == (1.0, "a", [1, 2, 3])


def test_members_end_with_their_batch_and_who_waits_ends_alone():
    device = Shared()
    device.five_between()
    assert [device.expected(number) for number in (5, 4, 3, 2, 1)] == [
        ExpectedEnd("gpu", 0, (ends - 25) * MS, ends * MS) for ends in (41, 42, 55, 56, 67)
    ]
    device.ask(ask(6, 300, 25))
    assert device.expected(6) == ExpectedEnd("gpu", 1 * MS, (21 + 12 + 1) * MS, (26 + 34) * MS)


def test_who_must_be_nearly_sure_is_expected_with_that_caution():
    device = Shared()
    cohort = device.five_between()
    device.policy._stage_costs.usual("b", "gpu", device.board)._surprise_ppm = 10_000
    device.ask(ask(6, 300, 25))
    assert device.expected(1).deadline_ns_min == 67 * MS  # it began without a margin
    cohort.is_sure = True
    noise_ns = device.policy._stage_costs.noise_ns(device.pipeline, cohort.left(), {}, "gpu", device.board)
    assert noise_ns == 2_315_000  # 1.4, 1.4 and 1.2 ms
    assert device.expected(1).deadline_ns_min == 67 * MS + noise_ns * 253 // 1000  # 8 of 13 ms are still to be paid


def test_a_cohorts_batch_has_room_for_as_long_as_its_members_have_time():
    device = Shared()
    cohort = device.five_between()

    def room():
        return device.policy._filling(cohort, 67 * MS, device.gpu, device.board)

    assert room() == Filling("gpu", (146 - 67) * MS, (67 + 25 + 40) * MS, 1)
    device.policy._stage_costs.usual("b", "gpu", device.board)._surprise_ppm = 10_000
    assert room().slack_ns == (146 - 67) * MS - 2_315_000
    came, full_ns = device.pipeline.came, 10_500_000
    came.extend([25 * MS] * (CAME_LEN - 1))
    came[0] = 25 * MS - full_ns * CAME_LEN * 100 // BURST_PERCENT
    assert (CAME_LEN, BURST_PERCENT, len(came)) == (32, 130, 32)
    assert room().slack_ns == 0  # more come than full batches could serve
    came[0] -= 1
    assert room().slack_ns > 0


def test_nothing_that_takes_longer_is_added_while_another_cohort_needs_the_lane():
    device = Device(with_host_function())
    device.ask(ask(1, 500))
    device.now_ns = 1 * MS
    device.ask(ask(2, 400, klass="background"))
    policy, board = device.scheduler.policies[0], device.scheduler.state.board

    def room(number):
        cohort = policy._members[number].cohort
        return policy._filling(cohort, 100 * MS, device.scheduler.state.lanes["gpu"], board)

    device.advance(10)  # 1 is at the function, 2 at a
    assert room(1) == Filling("gpu", 0, (100 + 10 + 4) * MS, 1) and room(2).slack_ns == 0
    device.advance(20)  # 1 is at b, its last
    assert room(1).slack_ns == 0
    assert room(2) == Filling("gpu", (400 - 100) * MS, (100 + 10 + 4) * MS, 2)


def test_cohorts_keep_up_if_they_serve_as_many_as_come():
    device = Shared()
    device.now_ns = 320 * MS
    device.ask(ask(1, 900, 320))

    def keeps_up(members, time_ns):
        return device.policy._keeps_up(Choice(range(members), time_ns), device.pipeline, device.board)

    came = device.pipeline.came
    came.clear()
    came.extend([0] * (CAME_LEN - 1))
    assert keeps_up(1, 10**12)  # too few to tell
    came.append(319 * MS)
    assert keeps_up(4, 40 * MS) and not keeps_up(4, 40 * MS + 1)
    assert not keeps_up(0, 1)


@pytest.mark.parametrize(
    ("last_ms", "until_ms", "due_ms"),
    [
        (315, 345, [905, 915]),
        (315, 346, [905, 915, 925]),
        (310, 320, []),
        (310, 321, [900]),
        (300, 331, [900, 910]),  # one would have come at 310
        (310, 9000, range(900, 900 + 320, 10)),
    ],
)
def test_requests_to_come_are_expected_at_the_rate_of_the_last_ones(last_ms, until_ms, due_ms):
    device = Shared()
    device.now_ns = 320 * MS
    device.ask(ask(1, 900, 320))
    member, came = device.policy._members[1], device.pipeline.came
    came.clear()
    came.extend([0] * (CAME_LEN - 1))
    assert device.policy._to_come(device.pipeline, member, until_ms * MS, device.board) == []
    came.append(last_ms * MS)
    found = device.policy._to_come(device.pipeline, member, until_ms * MS, device.board)
    assert [ns / MS for ns in found] == list(due_ms)
    member.due_ns = 902 * MS
    found = device.policy._to_come(device.pipeline, member, until_ms * MS, device.board)
    assert [ns / MS for ns in found] == [max(902, ms) for ms in due_ms]


def test_a_function_at_the_entry_runs_for_the_home_with_the_fewest_cohorts_that_is_free_first():
    device = Device(
        {
            "lane": {"g0": {}, "g1": {}, "host": {}},
            "model": {"f": model(1, 0, 1, lanes=["host"]), "a": model(20, 2, lanes=["g0", "g1"])},
            "policy": {"p": {"kind": "pard_local", "margin": 0.0}},
            "app": {"app": {"slo": "500ms", "node": [{"name": "f"}, {"name": "a"}]}},
        }
    )
    policy, board, lanes = device.scheduler.policies[0], device.scheduler.state.board, device.scheduler.state.lanes
    pipeline = policy._pipeline_of["app"]
    device.step()
    assert [policy._home_for(pipeline, lanes[name], board) for name in ("host", "g0", "g1")] == ["g0", "g0", "g1"]
    device.ask(ask(1, 400))
    device.advance(1)
    assert policy._home_for(pipeline, lanes["host"], board) == "g1"
    device.now_ns = 5 * MS
    device.ask(ask(2, 400, 5))
    device.advance(6)
    assert [lanes[name].available_ns(board.now_ns) for name in ("g0", "g1")] == [23 * MS, 28 * MS]
    assert policy._home_for(pipeline, lanes["host"], board) == "g0"
    device.step(LaneChanged("g0", up=False))
    assert policy._home_for(pipeline, lanes["host"], board) == "g1"


def test_the_price_counts_the_time_that_batches_took():
    device = Device(chain(price=1.0))
    for at_ms in (0, 20):
        device.now_ns = at_ms * MS
        device.ask(ask(1 + at_ms, at_ms + 90, at_ms))
        device.advance()
    assert device.scheduler.policies[0]._price._busy_ns == 20 * MS
