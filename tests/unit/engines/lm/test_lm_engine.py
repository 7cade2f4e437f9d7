"""The steps of a batch on a small model of ONNX Runtime: with any end of a batch, each answer has the tokens that it
has alone."""

from __future__ import annotations

import gc
import json
import pickle
import threading

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import ANSWERED, Batch, LaneInfo
from edgeserve.errors import ConfigError, EngineError

pytest.importorskip("onnx", reason="the onnx package makes the test model; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import lm_models
from lm_control import Recorder

PROMPTS = ("Hello there", "x", "The quick brown fox jumps over", "abc")
LENGTHS = (12, 30, 7, 21)
ITEMS = [{"prompt": prompt, "max_tokens": length} for prompt, length in zip(PROMPTS, LENGTHS)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("lm"))
    lm_models.tiny(directory)
    return directory


def made(directory, **settings):
    settings = {"file": "tiny.onnx", "batch": (1, 2, 4), **settings}
    engine = make_engine(ModelConfig(name="chat", engine="lm", **settings), [LaneInfo()], directory)
    engine.load()
    return engine


@pytest.fixture
def engine(directory):
    engine = made(directory)
    yield engine
    engine.unload()


@pytest.fixture
def session(engine):
    return engine.open(LaneInfo(name="cpu0"))


@pytest.fixture(scope="module")
def alone(directory):
    """The answer of each item when nothing else runs."""
    engine = made(directory)
    session = engine.open(LaneInfo(name="cpu0"))
    return [run(session, [item])[0].outputs for item in ITEMS]


def run(session, items, states=(), control=None, **settings):
    return session.launch(Batch(items, len(items), states, control=control, **settings)).result()


def same(outputs, wanted):
    return (
        outputs["text"] == wanted["text"]
        and outputs["tokens"].tolist() == wanted["tokens"].tolist()
        and all(outputs[name] == wanted[name] for name in ("finish_reason", "prompt_tokens", "completion_tokens"))
    )


def held(session):
    """Slots that sequences hold."""
    slots = session._loop._slots
    return sorted(slots._holders)


def test_each_answer_leaves_when_it_is_over_and_its_pieces_are_its_text(session, alone):
    order = []
    control = Recorder(lambda index, result: order.append(index) if result.done else None)
    assert all(result is ANSWERED for result in run(session, ITEMS, control=control))
    assert order == sorted(range(4), key=lambda index: LENGTHS[index])
    for index, wanted in enumerate(alone):
        assert same(control.ends[index].outputs, wanted)
        assert control.text(index) == wanted["text"]
        assert control.tokens(index) == wanted["tokens"].tolist()


def test_steps_are_bounded_and_counted(session, alone):
    states, taken = [None, None], [0, 0]
    outputs = [None, None]
    for _ in range(100):
        left = [index for index in (0, 1) if outputs[index] is None]
        if not left:
            break
        results = run(session, [ITEMS[index] for index in left], [states[index] for index in left], steps_max=4)
        for index, result in zip(left, results):
            assert 1 <= result.steps <= 4
            taken[index] += result.steps
            states[index], outputs[index] = result.state, result.outputs if result.done else None
    assert taken == [12, 30]
    assert all(same(output, wanted) for output, wanted in zip(outputs, alone))


def test_phases_run_alone(session, alone):
    first = run(session, ITEMS[:2], variant="prefill")
    assert [(result.done, result.steps) for result in first] == [(False, 1), (False, 1)]
    rest = run(session, ITEMS[:2], [result.state for result in first], variant="decode")
    assert all(same(result.outputs, wanted) for result, wanted in zip(rest, alone))
    assert [result.steps for result in rest] == [11, 29]
    with pytest.raises(EngineError, match="no phase 'prefil'"):
        run(session, ITEMS[:1], variant="prefil")


def test_the_session_that_a_state_left_is_free_again(engine, session):
    state = run(session, ITEMS[:1], steps_max=5)[0].state
    run(engine.open(LaneInfo(name="cpu1")), ITEMS[:1], [state])
    assert held(session) == []


def test_a_state_that_nobody_keeps_gives_its_memory_back(session):
    result = run(session, ITEMS[:1], steps_max=5)[0]
    assert len(held(session)) == 1
    del result
    gc.collect()
    assert held(session) == []


def test_more_sequences_than_slots_are_computed_again_in_turn(directory, alone):
    engine = made(directory, batch=(1, 2), slots=2)
    session = engine.open(LaneInfo(name="cpu0"))
    states, outputs = [None] * 4, [None] * 4
    while not all(outputs):
        for pair in ((0, 1), (2, 3), (1, 2), (3, 0)):
            pair = [index for index in pair if outputs[index] is None]
            for index, result in zip(
                pair,
                run(session, [ITEMS[index] for index in pair], [states[index] for index in pair], steps_max=3)
                if pair
                else (),
            ):
                states[index], outputs[index] = result.state, result.outputs if result.done else None
            assert len(held(session)) <= 2
    assert all(same(output, wanted) for output, wanted in zip(outputs, alone))
    engine.unload()


def test_a_batch_that_needs_more_slots_than_there_are_is_refused_and_holds_nothing(directory):
    engine = made(directory, batch=(1, 2), slots=2)
    session = engine.open(LaneInfo(name="cpu0"))
    with pytest.raises(EngineError, match="does not fit into 2 slots"):
        run(session, ITEMS)
    assert held(session) == []
    engine.unload()


def test_a_state_released_while_a_batch_runs_is_free_after_that_step(session):
    parked = run(session, ITEMS[:1], steps_max=5)[0].state
    seen = []

    def look(index, result):
        if not result.done:
            releases = threading.Thread(target=parked.release)
            releases.start()
            releases.join(10)
            seen.append(len(held(session)))

    run(session, [ITEMS[1]], control=Recorder(look))
    assert seen[0] in (1, 2)
    assert seen[1:] == [1] * len(seen[1:])
    assert held(session) == []


def test_a_state_of_another_model_is_refused(session):
    assert "is a int" in str(run(session, ITEMS[:1], [5])[0].error)


def test_a_step_that_fails_fails_the_batch_and_leaves_nothing_behind(session, alone, monkeypatch):
    backend = session._loop._slots.session
    parked = run(session, ITEMS[:1], steps_max=2)[0].state

    def fail(rows):
        raise EngineError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", fail)
        with pytest.raises(EngineError, match="no memory"):
            run(session, ITEMS[:2], [parked, None])
    assert held(session) == []
    assert same(run(session, ITEMS[:1], [parked])[0].outputs, alone[0])


def test_stop_strings_stop_tokens_and_the_context_end_an_answer(session, alone):
    tokens = alone[1]["tokens"].tolist()
    text = alone[1]["text"]
    place = next(place for place in range(3, len(text)) if text[place].isascii() and text.index(text[place]) == place)
    stopped = run(session, [{**ITEMS[1], "stop": text[place]}])[0].outputs
    assert (stopped["finish_reason"], stopped["text"]) == ("stop", text[:place])
    assert stopped["tokens"].tolist() == tokens[: len(stopped["tokens"])]
    full = run(session, [{"prompt": "y" * 250, "max_tokens": 100}])[0].outputs
    assert (full["finish_reason"], full["completion_tokens"]) == ("length", 6)


def test_the_token_that_ends_an_answer_is_counted_and_not_shown(directory, alone):
    tokens = alone[0]["tokens"].tolist()
    ends = next(place for place in range(1, len(tokens)) if tokens.index(tokens[place]) == place)
    lm_models.tiny(directory, "ended", stops=[tokens[ends]])
    engine = made(directory, file="ended.onnx")
    session = engine.open(LaneInfo(name="cpu0"))
    answer = run(session, [ITEMS[0]])[0].outputs
    assert answer["tokens"].tolist() == tokens[:ends]
    assert (answer["finish_reason"], answer["completion_tokens"]) == ("stop", ends + 1)
    passed = run(session, [{**ITEMS[0], "ignore_eos": True}])[0].outputs
    assert passed["tokens"].tolist() == tokens
    engine.unload()


def test_draws_follow_the_seed_also_when_the_answer_is_computed_again(session):
    item = {**ITEMS[1], "temperature": 5.0, "ignore_eos": True, "seed": 7}
    wanted = run(session, [item])[0].outputs
    first = run(session, [item, {**item, "seed": 8}], steps_max=9)
    first[0].state.release()
    rest = run(session, [item, item], [result.state for result in first])
    assert rest[0].outputs["tokens"].tolist() == wanted["tokens"].tolist()
    assert rest[1].outputs["tokens"].tolist() != wanted["tokens"].tolist()
    one, other = run(session, [{**ITEMS[1], "temperature": 5.0, "ignore_eos": True}] * 2)
    assert one.outputs["tokens"].tolist() != other.outputs["tokens"].tolist()


def test_a_long_prompt_is_filled_in_turns_and_others_go_on_meanwhile(session, alone, monkeypatch):
    monkeypatch.setattr("edgeserve.engines.lm.step_loop.PREFILL_TOKENS_MAX", 32)
    long = {"prompt": "The scheduler decides. " * 8, "max_tokens": 3}
    wanted = run(session, [long])[0].outputs
    ends = []
    started = run(session, [ITEMS[2]], steps_max=1)
    control = Recorder(lambda index, result: ends.append(index) if result.done else None)
    run(session, [long, ITEMS[2]], [None, started[0].state], control=control)
    assert control.ends[0].outputs["tokens"].tolist() == wanted["tokens"].tolist()
    assert same(control.ends[1].outputs, alone[2])
    assert ends == [1, 0]  # six turns of the prompt, in each of which the other made a step


def test_what_the_scheduler_is_told(engine):
    info = engine.sequence()
    shape = lm_models.SHAPE
    assert info.context_tokens == shape.context
    assert info.bytes_per_token == shape.layers * 2 * shape.kv_heads * shape.head_size * 4
    assert info.slots == 4
    state = run(engine.open(LaneInfo()), ITEMS[:1], steps_max=3)[0]
    assert state.state_bytes == (len(PROMPTS[0]) + 2) * info.bytes_per_token


def test_tokens_of_a_prompt_are_counted_without_loading(directory):
    engine = make_engine(ModelConfig(name="chat", engine="lm", file="tiny.onnx"), [LaneInfo()], directory)
    assert engine.count_tokens({"prompt": "hé"}) == 3
    assert engine.count_tokens({"tokens": np.arange(5)}) == 5


def test_a_conversation_that_is_shortened_is_counted_as_it_is_run(directory):
    talk = {"messages": [{"role": "user", "content": f"turn {number}"} for number in range(40)], "max_tokens": 3}
    whole = made(directory).count_tokens(talk)
    engine = made(directory, options={"long_conversation": "shorten"})
    counted = engine.count_tokens(talk)
    assert counted < 256 < whole
    answer = run(engine.open(LaneInfo()), [{**talk, "ignore_eos": True}])[0].outputs
    assert (answer["prompt_tokens"], answer["completion_tokens"]) == (counted, 3)


def test_probabilities_survive_an_interruption(directory):
    asked = {"prompt": "Hello", "max_tokens": 6, "ignore_eos": True, "logprobs": 2}
    engine = made(directory)
    whole = json.loads(run(engine.open(LaneInfo()), [asked])[0].outputs["logprobs"])
    assert len(whole) == 6 and all(len(entry["top_logprobs"]) == 2 for entry in whole)
    part = run(engine.open(LaneInfo()), [asked], steps_max=2)[0]
    rest = run(engine.open(LaneInfo()), [asked], [pickle.loads(pickle.dumps(part.state))])[0]
    again = json.loads(rest.outputs["logprobs"])
    assert [entry["bytes"] for entry in again] == [entry["bytes"] for entry in whole]
    assert np.allclose([entry["logprob"] for entry in again], [entry["logprob"] for entry in whole], atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"file": "tiny.bin"}, "expected a name that ends in"),
        ({"options": {"backend": "onx"}}, "onnx"),
        ({"options": {"backend": "onnx-encoder"}}, "options.backend = 'onnx-encoder': .* 'FOLDER/config.json'"),
        ({"file": "pair.json"}, "file = 'pair.json': expected a name .* 'FOLDER/config.json'"),
        ({"options": {"max_token": 5}}, "max_tokens"),
        ({"options": {"context": 4}}, "from 8"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(directory, settings, said):
    with pytest.raises(ConfigError, match=said):
        made(directory, **settings)


def test_a_context_beyond_the_graph_is_refused_and_a_shorter_one_bounds_prompts(directory):
    with pytest.raises(EngineError, match="made for 256 tokens"):
        made(directory, options={"context": 512})
    engine = made(directory, options={"context": 16})
    result = run(engine.open(LaneInfo()), [{"prompt": "x" * 20}])[0]
    assert "at most 15 fit" in str(result.error)
    engine.unload()


def test_a_lane_of_a_gpu_is_refused(directory):
    engine = make_engine(
        ModelConfig(name="chat", engine="lm", file="tiny.onnx"), [LaneInfo("cuda", name="gpu0")], directory
    )
    with pytest.raises(EngineError, match="runs on CPU lanes"):
        engine.load()


@pytest.mark.parametrize(("version", "count"), [("1.19.2", 2), ("1.20.0", 1), ("2.0.0", 1)])
def test_lanes_share_a_session_of_onnx_runtime_where_it_bears_that(directory, monkeypatch, version, count):
    monkeypatch.setattr("onnxruntime.__version__", version)
    lanes = [LaneInfo(name="a"), LaneInfo(name="b")]
    engine = made(directory)
    try:
        opened = {id(engine.open(lane)._loop._slots.session._session) for lane in (*lanes, *lanes)}
        assert len(opened) == count
    finally:
        engine.unload()


def test_every_seed_has_draws_of_its_own(session):
    item = {**ITEMS[1], "temperature": 5.0, "ignore_eos": True}
    found = [
        run(session, [{**item, "seed": seed}])[0].outputs["tokens"].tolist() for seed in (3, -3, -1, 1, 0, -(2**63))
    ]
    assert len({tuple(tokens) for tokens in found}) == len(found)
