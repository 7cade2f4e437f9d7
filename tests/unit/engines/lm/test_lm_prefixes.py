"""Sequences that ended and are kept: answers that go on from them equal the answers of a model without them."""

from __future__ import annotations

import random

import llama_double
import pytest
from lm_control import Recorder

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.lm.prefixes import PREFIX_TOKENS_MIN, HeldTokens, Match, Prefixes
from edgeserve.errors import ConfigError

LANE = LaneInfo(name="cpu0")
SYSTEM = list(range(60, 100))
A, B = "a", "b"


def kept(*sequences, tokens_max=1000, public=()):
    found = Prefixes(tokens_max, public)
    for slot, (tokens, owner) in enumerate(sequences):
        assert found.keep(HeldTokens(slot, tokens, owner)) == []
    return found


def test_the_longest_common_prefix_counts_and_the_last_token_never():
    found = kept((SYSTEM[:20], A), ([*SYSTEM, 1, 2], A), ([*SYSTEM[:30], 5, 5], A))
    assert found.match([*SYSTEM, 1, 7], A, []) == Match(1, 41, False)
    assert found.match([*SYSTEM, 1, 2], A, []) == Match(1, 41, False), "the last token brings the first scores"
    assert found.match([*SYSTEM, 1, 2, 3], A, []) == Match(1, 42, True)
    assert found.match([*SYSTEM[: PREFIX_TOKENS_MIN - 1], 9, 9], A, []) is None
    assert found.match(SYSTEM[:1], A, []) is None


def test_a_running_sequence_is_copied_and_never_taken():
    found, tokens = kept((SYSTEM[:20], A)), [*SYSTEM, 1]
    assert found.match(tokens, A, [HeldTokens(5, SYSTEM, A)]) == Match(5, 40, False)
    assert found.match([*SYSTEM[:20], 1], A, [HeldTokens(5, SYSTEM, A)]) == Match(0, 20, True)


def test_another_owner_has_what_the_configuration_declares_and_no_more():
    tokens = [*SYSTEM, 1, 2, 3]
    assert kept((tokens, A)).match(tokens, B, []) is None
    assert kept((tokens, A)).match(tokens, B, [HeldTokens(4, tokens, A)]) is None
    shared = kept((tokens, A), public=[[9], SYSTEM])
    assert shared.match(tokens, B, []) == Match(0, len(SYSTEM), False)
    assert shared.match(tokens, A, []) == Match(0, len(SYSTEM) + 2, False)


def test_what_saves_least_is_dropped_first_and_what_is_not_used_grows_old():
    found = kept(([1] * 100, A), ([2] * 30, A), ([3] * 40, A))
    assert found.drop() == 1
    found.keep(HeldTokens(1, [4] * 20, A))  # worth 20 more than what was dropped
    found.used(found.match([*[3] * 40, 1], A, []))
    assert [found.drop() for _ in range(3)] == [1, 2, 0] and not found
    found = kept(([1] * 100, A))
    for _ in range(9):  # others come and go
        found.keep(HeldTokens(1, [2] * 30, A))
        if found.drop() == 0:
            return
    raise AssertionError("what nobody uses is kept for ever")


def test_the_tokens_kept_are_bounded():
    found = kept(([1] * 40, A), ([2] * 50, A), tokens_max=100)
    assert found.keep(HeldTokens(2, [3] * 60, A)) == [0, 1]
    assert found.keep(HeldTokens(3, [4] * 101, A)) == [3]
    assert found.keep(HeldTokens(3, [4] * (PREFIX_TOKENS_MIN - 1), A)) == [3]
    assert found.clear() == [2] and not found
    off = Prefixes(0)
    assert off.keep(HeldTokens(0, SYSTEM, A)) == [0] and off.match(SYSTEM, A, [HeldTokens(1, SYSTEM, A)]) is None


# --- engines ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pytest.importorskip("onnx", reason="the onnx package makes the test model; pip install -e '.[test]'")
    pytest.importorskip("onnxruntime", "1.20", reason="older versions cannot read a prompt in parts")
    import lm_models

    directory = str(tmp_path_factory.mktemp("lm"))
    return directory, lm_models.tiny(directory)


@pytest.fixture(
    params=[
        "onnx",
        "llama.cpp's double",
        "llama.cpp itself",
        pytest.param("llama.cpp's double in a process", marks=pytest.mark.nightly),
    ]
)
def make(request, tmp_path, monkeypatch):
    """Makes loaded engines with these options."""
    engines, lane, installed = [], LANE, iter(())
    directory, file = str(tmp_path), "model.gguf"
    if request.param == "onnx":
        directory, file = request.getfixturevalue("tiny")
    elif request.param == "llama.cpp itself":
        pytest.importorskip("llama_cpp", reason="pip install -e '.[lm-llama]'")
        pytest.importorskip("gguf", reason="pip install -e '.[test]'")
        import lm_models

        file = lm_models.gguf(directory)
    else:
        installed = llama_double.installed(tmp_path, monkeypatch)
        next(installed)
        llama_double.write_file(tmp_path / file)
        lane = LANE._replace(apps=2, models=2) if "process" in request.param else LANE

    def made(batch=(1, 2, 4), slots=0, **options):
        config = ModelConfig(name="chat", engine="lm", file=file, batch=batch, slots=slots, options=options)
        engines.append(make_engine(config, [lane], directory))
        engines[-1].load()
        return engines[-1].open(lane)

    yield made
    for engine in engines:
        engine.unload()
    next(installed, None)


def item(prompt, most=6):
    """``!`` ends the double's process."""
    return {"tokens": list(prompt), "max_tokens": most, "ignore_eos": True, "logit_bias": {ord("!"): -100.0}}


def run(session, prompts, owners=(), states=(), most=6, **settings):
    items = [item(prompt, most) for prompt in prompts]
    owners = owners or [A] * len(items)
    return session.launch(Batch(items, len(items), states, owners=owners, **settings)).result()


def tokens(result):
    return result.outputs["tokens"].tolist()


def cached(results):
    assert all(result.cached == result.outputs["cached_tokens"] for result in results)
    return [result.cached for result in results]


def test_a_prompt_goes_on_from_what_is_in_memory(make):
    off, session = make(prefix_cache=False), make()
    prompts = [[*SYSTEM, 1, 2], [*SYSTEM, 3], [*SYSTEM[:25], 4, 4]]
    wanted = [tokens(run(off, [prompt])[0]) for prompt in prompts]
    assert cached(run(off, prompts[:1])) == [0]
    first = run(session, prompts[:1])
    assert cached(first) == [0] and tokens(first[0]) == wanted[0]
    rest = run(session, prompts[1:])
    assert cached(rest) == [40, 25] and [tokens(result) for result in rest] == wanted[1:]
    talk = [*prompts[0], *wanted[0], 7, 7]  # and so does a conversation, but for its last token that was not computed
    answer = run(session, [talk])[0]
    assert answer.cached == len(talk) - 3 and tokens(answer) == tokens(run(off, [talk])[0])


def test_owners_do_not_learn_of_each_other_but_for_what_is_declared(make):
    prompt = [*map(ord, "Rooms of our building: two, small."), 10, 11, 12, 13]
    session = make()
    assert [run(session, [prompt], [owner])[0].cached for owner in (A, B, A, B)] == [0, 0, 37, 37]
    session = make(shared_prefix="Rooms of our building: two, small.")
    assert [run(session, [prompt], [owner])[0].cached for owner in (A, B, A)] == [0, 34, 37]


def test_a_beginning_is_shared_where_the_template_knows_no_system(tmp_path):
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    pytest.importorskip("onnxruntime", "1.20", reason="older versions cannot read a prompt in parts")
    lm_models = pytest.importorskip("lm_models", reason="pip install -e '.[test]'")
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    file = lm_models.tiny(str(tmp_path), chat_template=template)
    options = {"shared_prefix": "Rooms of our building: two, small."}
    engine = make_engine(ModelConfig("chat", "lm", file=file, options=options), [LaneInfo()], str(tmp_path))
    engine.load()
    session, prompt = engine.open(LaneInfo(name="cpu0")), [*map(ord, options["shared_prefix"]), 10]
    assert [run(session, [prompt], [owner])[0].cached for owner in (A, B)] == [0, 34]


def test_running_answers_have_their_slots_and_a_small_cache_keeps_little(make):
    session = make(slots=4)
    prompts = [[first, *SYSTEM] for first in range(6)]
    run(session, prompts[:4])
    begun = run(session, prompts[:4], steps_max=2)
    assert all(result.done is False for result in begun), "four that are kept give way to four that run"
    run(session, prompts[4:5])  # the one that waited longest loses its memory to it
    rest = run(session, prompts[:4], states=[result.state for result in begun])
    off = make(prefix_cache=False)
    assert [tokens(result) for result in rest] == [tokens(run(off, [prompt])[0]) for prompt in prompts[:4]]
    small = make(prefix_cache="1B")
    assert cached(run(small, prompts[:1]) + run(small, prompts[:1])) == [0, 0]


def test_an_option_that_is_no_size_is_refused(make):
    with pytest.raises(ConfigError, match=r"options.prefix_cache = 64: expected a size with a unit.*, or false"):
        make(prefix_cache=64)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_answers_are_those_without(make, seed):
    """Joins, leaves, cuts and cancels: prompts that begin alike, of three owners, in batches of changing company."""
    draw = random.Random(seed)
    off, session = make(prefix_cache=False), make(slots=5)
    heads = [[draw.randrange(40, 250) for _ in range(draw.randrange(16, 50))] for _ in range(3)]
    waiting, wanted, found = [], {}, 0
    for number in range(40):
        talks = [prompt + answer for prompt, answer in wanted.values()]
        head = draw.choice(heads + talks[-4:])[:90]
        prompt = [*head[: draw.choice((16, 99, 99))], *[draw.randrange(40, 250) for _ in range(draw.randrange(1, 8))]]
        wanted[number] = (prompt, tokens(run(off, [prompt])[0]))
        waiting.append((number, prompt, draw.choice((A, A, B)), None))
        if len(waiting) < draw.randrange(1, 5):
            continue
        batch = [waiting.pop(draw.randrange(len(waiting))) for _ in range(min(4, len(waiting)))]
        settings = {"steps_max": draw.choice((1, 3))} if draw.random() < 0.5 else {}
        control = Recorder()
        control.gone = {0} if draw.random() < 0.1 else set()
        items = [item(prompt) for _, prompt, _, _ in batch]
        owners, states = [owner for _, _, owner, _ in batch], [state for *_, state in batch]
        results = session.launch(Batch(items, len(items), states, owners=owners, control=control, **settings)).result()
        for index, (number, prompt, owner, _) in enumerate(batch):
            result = control.ends.get(index, results[index])
            if not result.done:
                waiting.append((number, prompt, owner, result.state))
            elif result.outputs:
                assert tokens(result) == wanted[number][1]
                found += result.cached > 0
    assert found > 5


def test_measurements_keep_and_reuse_nothing(make):
    session, prompt = make(), [*SYSTEM, 1]
    assert cached(run(session, [prompt])) == [0]
    for _ in range(2):  # of batches without owners
        (result,) = session.launch(Batch([item([*SYSTEM, 2])], 1)).result()
        assert result.cached == 0
    assert cached(run(session, [[*SYSTEM, 2, 2]])) == [40]
