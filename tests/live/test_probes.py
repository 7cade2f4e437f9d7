"""The online profiler on real lanes: samples are the times alone, nothing is retained in the end, answers are
untouched."""

from __future__ import annotations

from typing import Any, List

import pytest
from serving import LIB, function, wait_until

from edgeserve.config.loading import parse_config
from edgeserve.live.retained_inputs import RetainedInputs
from edgeserve.runtime import Runtime
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.published.common.edf import Edf
from edgeserve.sched.published.orloj.sampler import Sample, Sampler

TIMES_MS = (20, 60, 20, 60, 20, 60, 20, 60)


class Sampling(Edf):
    """edf that samples every job."""

    made: List[Any] = []

    def __init__(self, name: str, apps: Any, options: Any) -> None:
        super().__init__(name, apps, options)
        self.sampler = Sampler(name, apps, share=1.0, budget=1.0, retained_max=8)
        self.samples: List[Sample] = []
        Sampling.made.append(self)

    def on_ready(self, job: Any, board: Any) -> None:
        super().on_ready(job, board)
        self.sampler.on_ready(job, board)

    def bid(self, lane: Any, board: Any) -> Any:
        return super().bid(lane, board) or self.sampler.offer(lane, board)

    def on_finished(self, work: Any, started_ns: int, finished_ns: int, board: Any) -> None:
        sample = self.sampler.finished(work, started_ns, finished_ns, board)
        if sample is not None:
            self.samples.append(sample)

    def next_wakeup_ns(self, board: Any) -> Any:
        return self.sampler.next_wakeup_ns(board)


def config(**server: Any) -> Any:
    nap = function("nap", "nap_example", batch=[1, 8], options={"batched": True})
    return parse_config(
        {
            "server": server,
            "policy": {"p": {"kind": "sampling"}},
            "app": {"nap": {"model": "nap", "slo": "20s"}},
            "model": {"nap": nap},
        },
        directory=LIB,
    )


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "sampling", Sampling)


def test_the_samples_are_the_times_alone_and_the_apps_counts_know_nothing_of_probes() -> None:
    with Runtime(config()) as runtime:
        policy = Sampling.made[-1]
        futures = [runtime.submit("nap", {"ms": ms}, hints={"length": ms}) for ms in TIMES_MS]
        assert [future.result(20)["ms"] for future in futures] == list(TIMES_MS)
        wait_until(lambda: len(policy.samples) >= len(TIMES_MS))
        world = runtime._core.world  # type: ignore[union-attr]
        assert (len(world.retained), world.retained.bytes) == (0, 0)
        stats = runtime.stats()
        runtime.check()
    samples = list(policy.samples)
    probed = [sample for sample in samples if sample.probed]
    assert sorted(sample.hints["length"] for sample in samples) == sorted(TIMES_MS)
    assert len(probed) >= 6
    for sample in samples:  # a sleep is never shorter; how much longer is the machine's business, the order is not
        assert sample.hints["length"] * 10**6 <= sample.alone_ns
    quickest = {ms: min(sample.alone_ns for sample in samples if sample.hints["length"] == ms) for ms in (20, 60)}
    assert quickest[20] < 60 * 10**6 <= quickest[60]
    assert stats["lanes"]["cpu0"]["probes"] == len(probed)
    assert stats["apps"]["nap"]["accepted"] == stats["apps"]["nap"]["outcomes"]["completed"] == len(TIMES_MS)
    assert stats["open"] == 0


def test_stopping_lets_go_of_what_is_kept() -> None:
    with Runtime(config()) as runtime:
        world = runtime._core.world  # type: ignore[union-attr]
        futures = [runtime.submit("nap", {"ms": 30}) for _ in range(8)]
        for future in futures:
            future.result(20)
    assert len(world.retained) == 0 and world.retained.bytes == 0


def test_a_probe_whose_inputs_found_no_room_keeps_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetainedInputs.__init__, "__defaults__", (0,))
    with Runtime(config()) as runtime:
        for _ in range(2):
            futures = [runtime.submit("nap", {"ms": 1}) for _ in range(8)]
            assert [future.result(20)["ms"] for future in futures] == [1] * 8
        wait_until(lambda: runtime.stats()["lanes"]["cpu0"]["refused"])  # the scheduler was told
        assert runtime.stats()["lanes"]["cpu0"]["in_flight"] == 0
        runtime.check()
