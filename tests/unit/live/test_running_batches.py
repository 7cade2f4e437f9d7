"""Batches of sequence models while they run: what is emitted reaches clients and the scheduler once, and in order."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.base import ANSWERED, Batch, Result, Written
from edgeserve.errors import EngineError
from edgeserve.live.request import LiveRequest, RequestValidator, request_of_call
from edgeserve.live.responders import RequestFuture
from edgeserve.live.running_batches import RunningBatch, RunningBatches
from edgeserve.live.value_flow import AppPlan
from edgeserve.live.values import RequestValues, rest_of
from edgeserve.sched.protocol.actions import CutBatch, LeaveOut, RunBatch
from edgeserve.sched.protocol.events import BatchProgress, JobId


class Listener:
    """A responder that keeps pieces; ``problem`` is what it says of the next."""

    def __init__(self) -> None:
        self.pieces: List[Any] = []
        self.problem = ""

    def piece(self, request: Any, outputs: Dict[str, Any]) -> str:
        self.pieces.append(outputs)
        return self.problem


class State:
    released = 0

    def release(self) -> None:
        self.released += 1


class World:
    """The tables around running batches, and what came of them."""

    def __init__(self, count: int = 2, listening: bool = True) -> None:
        self.values = RequestValues()
        self.posted: List[RunningBatch] = []
        self.cancelled: List[Any] = []
        self.batches = RunningBatches(self.values, self.posted.append, lambda action, error: str(error), self.cancel)
        config = parse_config({"app": {"a": {"model": "lm"}}, "model": {"lm": {"engine": "synthetic"}}})
        plan = AppPlan(config.apps["a"])
        self.node = next(iter(plan.nodes))
        self.requests = []
        for number in range(1, count + 1):
            request = request_of_call("a", {})
            RequestValidator(plan).check(request, RequestFuture(lambda future: None), 0)
            request.id = number
            self.values.add(request)
            request.pieces, request.responder = listening, Listener()
            self.requests.append(request)
        self.batch = self.launch()

    def launch(self) -> RunningBatch:
        jobs = tuple(JobId(request.id, self.node, ()) for request in self.requests)
        for job in jobs:
            self.values.launch(job)
        self.action = RunBatch(1, "cpu", "lm", jobs, len(jobs), 0, 2**62, 10, 100)
        return self.batches.begin(self.action)

    def cancel(self, request: LiveRequest, events: List[Any], reason: str) -> None:
        self.cancelled.append((request.id, reason))

    def look(self) -> List[Any]:
        events: List[Any] = []
        self.batches.look(self.batch, events)
        return events

    def pieces(self, number: int) -> List[Any]:
        return self.requests[number - 1].responder.pieces


def piece(value: Any, **more: Any) -> Result:
    return Result({"text": value}, done=False, **more)


def test_pieces_go_to_their_request_in_order_and_one_mail_tells_of_many():
    world = World()
    for index, text in ((0, "a"), (1, "x"), (0, "b")):
        world.batch.emit(index, piece(text))
    assert world.posted == [world.batch] and world.look() == []
    assert (world.pieces(1), world.pieces(2)) == ([{"text": "a"}, {"text": "b"}], [{"text": "x"}])
    world.batch.emit(0, piece("c"))
    assert world.posted == [world.batch] * 2, "what came after the look was not told"


def test_pieces_that_nobody_wants_cost_no_mail():
    world = World(listening=False)
    world.batch.emit(0, piece("a", state=State()))
    assert world.posted == []


def test_an_item_that_is_over_is_told_once():
    world = World()
    world.batch.emit(1, Result({"text": "all"}, steps=3))
    world.batch.emit(1, Result({"text": "again"}))
    (news,) = world.look()
    assert isinstance(news, BatchProgress) and news.work_id == 1
    assert [(result.job.request_id, result.status, result.steps) for result in news.results] == [(2, "done", 3)]
    assert world.requests[1].outputs == {"text": "all"} and world.requests[1].running == 0
    jobs, results = world.batches.rest(world.batch, [Result({"text": "other"}), ANSWERED])
    assert [job.request_id for job in jobs] == [1] and results[0].outputs == {"text": "other"}


def test_an_item_that_failed_is_told_with_its_reason():
    world = World()
    world.batch.emit(0, Result({}, error=EngineError("no such token")))
    assert world.look()[0].results[0].reason == "no such token"


def test_an_item_that_was_never_told_cannot_be_answered():
    world = World()
    _, results = world.batches.rest(world.batch, [ANSWERED, Result({})])
    assert "did not emit" in str(results[0].error) and results[1].error is None


def test_a_piece_that_is_no_table_cancels_its_request():
    world = World()
    world.batch.emit(0, Result(["a"], done=False))  # type: ignore[arg-type]  # engines are users' code
    world.look()
    assert world.cancelled[0][0] == 1 and "no dict" in world.cancelled[0][1]


def test_pieces_of_a_request_that_has_ended_go_nowhere():
    world = World()
    world.batch.emit(0, piece("a"))
    world.values.end(world.requests[0])
    world.look()
    assert world.pieces(1) == []


def test_an_engine_sees_the_cut_and_who_was_dropped():
    world = World()
    assert not world.batch.stop and not world.batch.dropped(1)
    world.batches.cut(CutBatch(7, "cpu"))
    assert not world.batch.stop
    world.batches.cut(CutBatch(1, "cpu"))
    world.batches.drop(2)
    assert world.batch.stop and [world.batch.dropped(index) for index in range(2)] == [False, True]
    world.batches.leave_out(LeaveOut(world.action.jobs[0]))
    assert world.batch.dropped(0)


def test_items_that_are_left_out_of_a_batch_are_counted_anew():
    world = World(count=3)
    control = Batch([{}, {}, {}], 4, control=world.batch).without({0}).control
    assert control is not None
    control.emit(1, Result({"text": "third"}))
    world.batches.drop(2)
    world.batches.cut(CutBatch(1, "cpu"))
    assert world.look()[0].results[0].job.request_id == 3
    assert [control.dropped(index) for index in range(2)] == [True, False] and control.stop


@pytest.mark.parametrize(("state", "failed"), [(True, []), (False, [1])])
def test_after_a_lost_lane_items_go_on_from_their_last_piece_or_fail(state, failed):
    """One whose pieces were sent without a state would send them twice."""
    world = World()
    kept = State() if state else None
    world.batch.emit(0, piece("a", state=kept))
    events: List[Any] = []
    world.batches.lane_down("another", events)
    assert events == [] and not world.batch.closed
    world.batches.lane_down("cpu", events)
    assert [result.job.request_id for news in events for result in news.results] == failed
    world.batch.emit(0, piece("b"))
    assert world.look() == [] and world.pieces(1) == [{"text": "a"}], "a lost lane's engine was listened to"
    if state:
        again = world.values.launch(world.action.jobs[0])[1]
        assert again is kept


def test_a_state_is_released_when_it_is_dropped_kept_when_only_its_memory_goes():
    world = World(count=1)
    state, job = State(), world.action.jobs[0]
    world.values.returned(job, Result({}, done=False, state=state))
    world.values.release_job_state(job)
    assert state.released == 1 and world.values.launch(job)[1] is state
    world.values.drop_job_state(job)
    assert state.released == 2 and world.values.launch(job)[1] is None


def test_the_state_of_a_request_that_has_ended_is_released():
    world = World(count=1)
    state = State()
    world.values.end(world.requests[0])
    world.values.returned(world.action.jobs[0], Result({}, done=False, state=state))
    assert state.released == 1


def test_a_state_that_cannot_be_released_ends_nothing(caplog):
    class Broken(State):
        def release(self) -> None:
            raise RuntimeError("broken")

    world = World(count=1)
    world.values.returned(world.action.jobs[0], Result({}, done=False, state=Broken()))
    world.values.drop_job_state(world.action.jobs[0])
    assert "RuntimeError: broken" in caplog.text


# --- what sequences have written --------------------------------------------------------------------------------------


class Writing(State):
    """A state that says what it has written."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)

    def written(self) -> Any:
        outputs = {"text": "".join(self.words), "tokens": np.arange(len(self.words)), "finish_reason": "length"}
        return Written(outputs, f"{len(self.words)} words") if self.words else None


def begun_of(events: List[Any]) -> List[int]:
    return [job.request_id for event in events for job in event.begun]


def test_an_item_that_has_written_is_told_of_once_though_nobody_listens():
    world = World(listening=False)
    for request in world.requests:
        request.on_late = "partial"
    state = Writing("a")
    world.batch.emit(0, piece("a", state=state))
    world.batch.emit(0, piece("b", state=state))
    world.batch.emit(1, piece("", state=Writing()))
    assert world.posted == [world.batch]
    assert begun_of(world.look()) == [1], "the other one has written nothing yet"
    world.batch.emit(0, piece("c", state=state))
    assert world.look() == [] and world.pieces(1) == []
    unfinished = [Result({}, done=False, state=state), Result({}, done=False, state=Writing("x"))]
    events: List[Any] = []
    world.batches.ended(1, events, unfinished)
    assert begun_of(events) == [2], "at the latest when it comes back"


def test_an_item_whose_client_wants_all_or_nothing_is_not():
    world = World(listening=False)
    world.requests[0].on_late = "drop"
    world.requests[1].on_late = "answer"
    for index in range(2):
        world.batch.emit(index, piece("a", state=Writing("a")))
    assert begun_of(world.look()) == [2]


def test_what_it_has_written_is_its_answer_and_its_client_gets_the_rest_of_the_pieces():
    world = World()
    job, state = world.action.jobs[0], Writing("a")
    world.batch.emit(0, piece("a", state=state))
    world.look()
    state.words += ["b", "c"]  # of which no piece has told yet
    world.values.keep_written(job, world.batches.state_of(job))
    request = world.requests[0]
    assert request.outputs is not None and request.outputs["text"] == "abc" and request.written == ("3 words",)
    assert [each["text"] for each in world.pieces(1)] == ["a", "bc"]
    world.batch.emit(0, piece("d", state=state))
    world.batch.emit(0, Result({"text": "abcd"}))
    world.look()
    assert len(world.pieces(1)) == 2 and request.outputs["text"] == "abc", "what comes later is for nobody"


def test_one_that_waits_ends_with_its_state_and_one_whose_batch_failed_with_its_last_piece():
    world = World()
    first, second = world.action.jobs
    world.batch.emit(1, piece("x", state=Writing("x")))
    world.batches.ended(1, [])
    world.values.returned(first, Result({}, done=False, state=Writing("a", "b")))
    world.values.keep_written(first, world.batches.state_of(first))
    world.batches.keep_states(world.batch)
    world.values.returned(second, None, "the engine raised")
    world.values.keep_written(second, world.batches.state_of(second))
    assert [request.outputs["text"] for request in world.requests if request.outputs] == ["ab", "x"]
    assert [each["text"] for each in world.pieces(1)] == ["ab"], "it had sent no piece: the answer is one"


@pytest.mark.parametrize("says", [RuntimeError("broken"), "abc", Written(["text"], "")])
def test_an_engine_that_breaks_its_word_ends_nothing_else(caplog, says):
    class Broken(Writing):
        def written(self) -> Any:
            if isinstance(says, Exception):
                raise says
            return says

    world = World(count=1)
    world.values.keep_written(world.action.jobs[0], Broken())
    assert world.requests[0].written == ("",) and "written() of its state" in caplog.text


def test_the_rest_of_an_answer_is_what_its_pieces_have_not_told():
    told = [{"text": "ab", "tokens": np.array([1, 2]), "logprobs": "[1, 2]"}, {"text": "", "tokens": np.array([3])}]
    outputs = {"text": "abc", "tokens": np.array([1, 2, 3, 4]), "logprobs": "[1, 2, 3, 4]", "finish_reason": "length"}
    rest = rest_of(outputs, told)
    assert rest["text"] == "c" and rest["tokens"].tolist() == [4] and sorted(rest) == ["text", "tokens"]
    assert rest_of({"text": "ab", "tokens": np.array([1, 2, 3])}, told) == {}
    assert rest_of({"text": "other"}, told) == {}, "an answer that is no continuation is told as a whole alone"
