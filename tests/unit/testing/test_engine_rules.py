"""Engines of sequences with one planted bug each: the conformance suite must notice every one, and pass the engine
without a bug."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Type

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import (
    ANSWERED,
    Batch,
    BatchControl,
    Engine,
    Finished,
    LaneInfo,
    Pending,
    Result,
    Session,
    Values,
    run_batch,
)
from edgeserve.engines.synthetic import SyntheticEngine
from edgeserve.errors import EngineError
from edgeserve.testing.engine_conformance import EngineConformance

RULES = [name for name in dir(EngineConformance) if "sequence" in name or "released_state" in name]


class Sequences(SyntheticEngine):
    """Without a bug."""

    def __init__(self) -> None:
        super().__init__(
            ModelConfig("m", "synthetic", batch=(1, 2, 4), options={"c0": "1us", "sequence": {"bytes_per_token": 16}})
        )

    def open(self, lane: LaneInfo) -> Session:
        return Wrapped(self, super().open(lane))

    def asked(self, batch: Batch, session: Session) -> Batch:
        """The batch as the engine gets it."""
        return batch

    def told(self, batch: Batch, results: List[Result]) -> List[Result]:
        """The results as the engine returns them."""
        return results


class Wrapped(Session):
    def __init__(self, engine: Sequences, session: Session) -> None:
        self.engine = engine
        self.session = session

    def launch(self, batch: Batch) -> Pending:
        results = run_batch(self.session, self.engine.asked(batch, self.session))[0]
        return Finished(self.engine.told(batch, results))


class Control(BatchControl):
    """Another control, but for what a bug overrides."""

    def __init__(self, real: BatchControl) -> None:
        self.real = real

    def emit(self, index: int, result: Result) -> None:
        self.real.emit(index, result)

    @property
    def stop(self) -> bool:
        return self.real.stop

    def dropped(self, index: int) -> bool:
        return self.real.dropped(index)


def listening(kind: Type[Control]) -> Callable[[Any, Batch, Session], Batch]:
    return (
        lambda engine, batch, session: batch if batch.control is None else batch._replace(control=kind(batch.control))
    )


class NeverStops(Sequences):
    class Deaf(Control):
        stop = False  # type: ignore[assignment]

    asked = listening(Deaf)


class WorksForDropped(Sequences):
    class Deaf(Control):
        def dropped(self, index: int) -> bool:
            return False

    asked = listening(Deaf)


class TellsAfterTheEnd(Sequences):
    class Chatty(Control):
        def emit(self, index: int, result: Result) -> None:
            self.real.emit(index, result)
            if result.done:
                self.real.emit(index, Result({}, done=False))

    asked = listening(Chatty)


class NeverTells(Sequences):
    """Places hold ANSWERED, but no answer was sent."""

    class Mute(Control):
        def emit(self, index: int, result: Result) -> None:
            if not result.done:
                self.real.emit(index, result)

    asked = listening(Mute)


class AnswersTwice(Sequences):
    def told(self, batch: Batch, results: List[Result]) -> List[Result]:
        return [Result({}) if result is ANSWERED else result for result in results]


class TakesAllSteps(Sequences):
    def asked(self, batch: Batch, session: Session) -> Batch:
        return batch._replace(steps_max=None)


class SaysNoBytes(Sequences):
    def told(self, batch: Batch, results: List[Result]) -> List[Result]:
        for result in results:
            result.state_bytes = 0
        return results


class ForgetsWhatIsReleased(Sequences):
    def asked(self, batch: Batch, session: Session) -> Batch:
        for state in batch.states:
            if state is not None and state.holder is None:
                state.made = 0
        return batch


class RefusesStatesOfOthers(Sequences):
    def asked(self, batch: Batch, session: Session) -> Batch:
        for state in batch.states:
            if state is not None and state.holder not in (None, session):
                raise EngineError("model 'm': the state is of another session")
        return batch


class PiecesGoNowhere(Sequences):
    """The state of a piece is that of the sequence's beginning."""

    class Stale(Control):
        def emit(self, index: int, result: Result) -> None:
            if result.state is not None:
                result.state = type(result.state)(1)
            self.real.emit(index, result)

    asked = listening(Stale)


BUGS = (
    NeverStops,
    WorksForDropped,
    TellsAfterTheEnd,
    NeverTells,
    AnswersTwice,
    TakesAllSteps,
    SaysNoBytes,
    ForgetsWhatIsReleased,
    RefusesStatesOfOthers,
    PiecesGoNowhere,
)


class Suite(EngineConformance):
    name = "m"

    def items(self, count: int) -> List[Values]:
        return [{"x": np.float32(index), "steps": np.int64(4 + index)} for index in range(count)]


Suite.__test__ = False  # type: ignore[attr-defined]  # it is run by hand here


def broken_rules(kind: Type[Sequences]) -> Dict[str, BaseException]:
    found: Dict[str, BaseException] = {}
    for rule in RULES:
        engine: Engine = kind()
        engine.load()
        try:
            getattr(Suite(), rule)(engine)
        except (AssertionError, EngineError, pytest.fail.Exception) as error:
            found[rule] = error
        finally:
            engine.unload()
    return found


def test_there_are_rules_and_a_right_engine_breaks_none():
    assert len(RULES) >= 5
    assert broken_rules(Sequences) == {}


@pytest.mark.parametrize("kind", BUGS, ids=lambda kind: kind.__name__)
def test_every_planted_bug_is_noticed(kind):
    assert broken_rules(kind)
