"""Models with an encoder on ONNX Runtime, by a description: answers are those of the same arithmetic in numpy, alone
and in any company; what is counted, read in turns, and refused."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("onnx", reason="the onnx package makes the test model; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import encdec_models

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import EngineError

PROMPTS = ("hello there", "x", "the quick brown fox", "the then")
COUNTS = (9, 17, 5, 12)
ITEMS = [{"prompt": prompt, "max_tokens": count, "ignore_eos": True} for prompt, count in zip(PROMPTS, COUNTS)]


def made(directory, **options):
    file = encdec_models.write(directory)
    config = ModelConfig(name="pair", engine="lm", file=file, batch=(1, 2, 4), options=options)
    engine = make_engine(config, [LaneInfo()], directory)
    engine.load()
    return engine


def run(session, items, states=(), **settings):
    return session.launch(Batch(items, len(items), states, **settings)).result()


def tokens(results):
    return [result.outputs["tokens"].tolist() for result in results]


def test_answers_are_those_of_the_same_arithmetic_alone_and_with_joins_and_leaves(tmp_path):
    engine = made(str(tmp_path))
    session, other = engine.open(LaneInfo(name="cpu0")), engine.open(LaneInfo(name="cpu1"))
    expected = [encdec_models.answer(prompt, count) for prompt, count in zip(PROMPTS, COUNTS)]
    assert all(len(set(answer)) > 2 for answer in expected)
    assert [tokens(run(session, [item]))[0] for item in ITEMS] == expected
    assert tokens(run(session, ITEMS)) == expected
    first = run(session, ITEMS[:2], steps_max=3)
    mixed = run(session, [ITEMS[2], ITEMS[1], ITEMS[3]], [None, first[1].state, None], steps_max=4)
    first[0].state.release()
    states = [first[0].state, mixed[1].state, mixed[0].state, mixed[2].state]
    assert tokens(run(session, ITEMS, states)) == expected
    begun = run(session, ITEMS[:2], steps_max=4)
    assert tokens(run(other, ITEMS[:2], [result.state for result in begun])) == expected[:2]


def test_a_source_is_counted_once_it_is_encoded(tmp_path):
    engine = made(str(tmp_path))
    session, info = engine.open(LaneInfo()), engine.sequence()
    assert info.context_tokens == 24 + 32 and info.bytes_per_token > 8 * 4
    result = run(session, [{**ITEMS[0], "max_tokens": 30}], steps_max=3)[0]
    assert result.state_bytes == (len(PROMPTS[0]) + 1 + 3) * info.bytes_per_token
    assert engine.count_tokens(ITEMS[0]) == len(PROMPTS[0]) + 1
    result.state.release()
    ended = run(session, ITEMS[:1])[0].outputs
    assert (ended["prompt_tokens"], ended["completion_tokens"], ended["finish_reason"]) == (12, 9, "length")


def test_a_long_source_counts_as_the_turns_that_it_takes_and_others_step_between_two(tmp_path):
    engine = made(str(tmp_path), prefill_tokens=8)
    session = engine.open(LaneInfo())
    alone = run(session, [{**ITEMS[2], "max_tokens": 1}])[0]  # 20 tokens to encode, 1 to begin with
    assert (alone.turns, alone.steps) == (3, 1)
    begun = run(session, ITEMS[:1], steps_max=2)
    both = run(session, ITEMS[:3], [begun[0].state, None, None])
    assert tokens(both) == [encdec_models.answer(prompt, count) for prompt, count in zip(PROMPTS[:3], COUNTS)]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"prompt": "a" * 24}, "25 tokens; the encoder takes 24"),
        ({"messages": [{"role": "user", "content": "a"}]}, "chat template"),
        ({"tokens": [1000]}, "token 1000"),
    ],
)
def test_what_the_model_cannot_read_is_refused_alone(tmp_path, item, why):
    wrong, right = run(made(str(tmp_path)).open(LaneInfo()), [item, ITEMS[2]])
    assert right.outputs["tokens"].tolist() == encdec_models.answer(PROMPTS[2], 5)
    with pytest.raises(EngineError, match=why):
        raise wrong.error


@pytest.mark.parametrize(
    ("change", "why"),
    [({"format": "x"}, "format 'x'"), ({"begin": None}, "begin"), ({"decoder": "none.onnx"}, "none.onnx")],
)
def test_a_description_that_is_wrong_says_what(tmp_path, change, why):
    path = tmp_path / encdec_models.write(str(tmp_path))
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(EngineError, match=why):
        make_engine(ModelConfig(name="pair", engine="lm", file="pair.json"), [LaneInfo()], str(tmp_path)).load()
