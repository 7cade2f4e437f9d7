"""Prompts read in parts: what a turn reads, that answers stay the same, and how many tokens fit into a time."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.lm import lm_engine as engine_module
from edgeserve.engines.lm.backend import ModelFacts
from edgeserve.engines.lm.lm_engine import LmEngine
from edgeserve.engines.lm.step_loop import parts_of
from edgeserve.engines.lm.turns import tokens_within
from edgeserve.errors import ConfigError
from edgeserve.live.values import item_error

pytest.importorskip("onnx", reason="the onnx package makes the test model; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import lm_models
from lm_control import Recorder

LONG = "The scheduler decides which model runs next. " * 4
ITEMS = [
    {"prompt": LONG, "max_tokens": 9},
    {"prompt": "abc", "max_tokens": 14},
    {"prompt": LONG[7:90], "max_tokens": 5},
    {"prompt": LONG[:64], "max_tokens": 6},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("lm"))
    lm_models.tiny(directory)
    return directory


def made(directory, **options):
    engine = make_engine(
        ModelConfig(name="chat", engine="lm", file="tiny.onnx", batch=(1, 2, 4), options=options),
        [LaneInfo()],
        directory,
    )
    engine.load()
    return engine


@pytest.fixture
def engine(directory):
    engine = made(directory, prefill_tokens=16)
    if not engine.sequence().prefill_tokens:
        pytest.skip("this version of ONNX Runtime cannot read a prompt in parts")
    yield engine
    engine.unload()


@pytest.fixture(scope="module")
def alone(directory):
    """The answer of each item alone, with its prompt read at once."""
    engine = made(directory)
    session = engine.open(LaneInfo(name="cpu0"))
    found = [session.launch(Batch([item], 1)).result()[0].outputs["tokens"].tolist() for item in ITEMS]
    engine.unload()
    return found


def watched(session, monkeypatch):
    """The rows of each call of the back end."""
    calls, backend = [], session._loop._slots.session

    def watch(original):
        def call(rows):
            calls.append(list(rows))
            return original(rows)

        return call

    monkeypatch.setattr(backend, "prefill", watch(backend.prefill))
    monkeypatch.setattr(backend, "decode", watch(backend.decode))
    return calls


def test_no_turn_reads_more_than_its_bound_and_answers_are_those_of_each_alone(engine, alone, monkeypatch):
    session = engine.open(LaneInfo(name="cpu0"))
    calls = watched(session, monkeypatch)
    results = session.launch(Batch(ITEMS, 4)).result()
    assert [result.outputs["tokens"].tolist() for result in results] == alone
    for rows in calls:
        longest = max(len(row.tokens) for row in rows)
        assert longest == 1 or longest * len(rows) <= 16
        assert all((row.start + len(row.tokens)) % 16 == 0 or len(row.tokens) < 16 for row in rows)
    assert max(result.turns for result in results) == len(calls)


def test_a_batch_can_be_cut_after_every_part_and_all_come_to_their_turn(engine, alone):
    session = engine.open(LaneInfo(name="cpu0"))
    states, open_items, turns = {}, dict(enumerate(ITEMS)), 0
    found = {}
    while open_items:
        control = Recorder()
        control.stopping = True
        order = list(open_items)
        results = session.launch(
            Batch([ITEMS[place] for place in order], 4, [states.get(place) for place in order], control=control)
        ).result()
        turns += 1
        for index, place in enumerate(order):
            if index in control.ends:
                found[place] = control.ends[index].outputs["tokens"].tolist()
                del open_items[place]
                continue
            result = results[index]
            assert item_error("chat", result) is None
            assert (result.done, result.turns, result.steps) in ((False, 1, 0), (False, 1, 1))
            states[place] = result.state
        assert turns < 200
    assert [found[place] for place in range(len(ITEMS))] == alone


def test_a_state_that_was_released_amid_its_prompt_begins_again(engine, alone):
    session, other = engine.open(LaneInfo(name="cpu0")), engine.open(LaneInfo(name="cpu1"))
    control = Recorder()
    control.stopping = True
    draw = random.Random(3)
    for release in (True, False):
        state = None
        for _ in range(draw.randint(3, 6)):
            state = session.launch(Batch(ITEMS[:1], 1, [state], control=control)).result()[0].state
        if release:
            state.release()
        answer = other.launch(Batch(ITEMS[:1], 1, [state])).result()[0]
        assert answer.outputs["tokens"].tolist() == alone[0]


def job(waiting, cached=0):
    return SimpleNamespace(sequence=SimpleNamespace(waiting=[0] * waiting, cached=cached, to_encode=0))


@pytest.mark.parametrize(
    ("jobs", "mixes", "counts"),
    [
        ([(100, 0), (5, 0)], False, [32]),
        ([(100, 0), (5, 0)], True, [32]),
        ([(10, 0), (11, 0), (12, 0)], False, [10, 11]),
        ([(10, 0), (11, 0), (11, 0)], True, [10, 11, 11]),
        ([(40, 32), (4, 0)], False, [32]),
        ([(4, 0), (40, 32)], False, [4]),
        ([(4, 32), (20, 0), (9, 0)], True, [4, 20]),
        ([(100, 20)], False, [12]),
        ([], True, []),
    ],
)
def test_what_a_turn_reads(jobs, mixes, counts):
    assert [count for _, count in parts_of([job(*item) for item in jobs], 32, mixes)] == counts


class Timed:
    """A back end's session whose runs take ``fixed`` and ``each`` nanoseconds per token, the first of all longer."""

    def __init__(self, fixed, each):
        self.now, self.fixed, self.each, self.late = 0, fixed, each, 10**9

    def prefill(self, rows):
        self.now += self.fixed + self.each * len(rows[0].tokens) + self.late
        self.late = 0

    def free(self, slot):
        pass


@pytest.mark.parametrize(
    ("fixed", "each", "bound", "tokens"),
    [(20, 1, 100, 64), (20, 1, 51, 16), (20, 1, 52, 32), (20, 1, 5, 8), (20, 0, 100, 512), (20, 1, 10_000, 512)],
)
def test_as_many_tokens_as_fit_into_a_turn(fixed, each, bound, tokens):
    session = Timed(fixed, each)
    assert tokens_within(session, bound, 512, ModelFacts(2048, 256, 1, 1), lambda: session.now) == tokens


def test_the_first_lane_measures_how_many_tokens_a_turn_reads(directory):
    engine = made(directory, turn="1us")
    if not engine.backend().continues:
        pytest.skip("this version of ONNX Runtime cannot read a prompt in parts")
    assert engine.sequence().prefill_tokens == 0
    ticks = iter(range(0, 10**9, 10**6))
    engine.open(LaneInfo(name="cpu0", clock_ns=lambda: next(ticks)))
    assert engine.sequence().prefill_tokens == 8
    engine.unload()


@pytest.mark.parametrize(
    ("models", "options", "tokens"),
    [
        ((1,), {}, 512),
        ((1, 1), {}, 512),
        ((2,), {}, 64),
        ((1, 2), {}, 64),
        ((0,), {}, 64),
        ((), {}, 64),
        ((1,), {"turn": "100ms"}, 64),
        ((1,), {"prefill_tokens": 16}, 16),
    ],
)
def test_turns_are_long_only_where_no_other_model_is_on_its_lanes(directory, monkeypatch, models, options, tokens):
    monkeypatch.setattr(engine_module, "tokens_within", lambda *arguments: 64)
    lanes = [LaneInfo(name="cpu0", models=count, clock_ns=lambda: 0) for count in models]
    engine = LmEngine(ModelConfig(name="chat", engine="lm", file="tiny.onnx", options=options), lanes, directory)
    engine.load()
    if not engine.backend().continues:
        pytest.skip("this version of ONNX Runtime cannot read a prompt in parts")
    engine.open(LaneInfo(name="cpu0", clock_ns=lambda: 0))
    assert engine.sequence().prefill_tokens == tokens
    engine.unload()


def test_a_part_that_is_too_small_is_refused(directory):
    with pytest.raises(ConfigError, match="prefill_tokens"):
        made(directory, prefill_tokens=4)
