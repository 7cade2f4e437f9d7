"""A language model's back end in a process of its own: the same answers, and a crash that costs its batch alone."""

from __future__ import annotations

import threading

import llama_double
import psutil
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.engines.hold import NAME
from edgeserve.engines.lm.remote import RemoteSession
from edgeserve.engines.lm.sampling import Best
from edgeserve.engines.turns import Turns
from edgeserve.errors import EngineError, ProcessEnded

LANE = LaneInfo(name="cpu0", models=1, apps=2)
ITEMS = [{"prompt": prompt, "max_tokens": 9, "ignore_eos": True} for prompt in ("Hello there", "x", "the quick brown")]
BOOM = {"prompt": "!", "max_tokens": 9}


@pytest.fixture(autouse=True)
def _double(tmp_path, monkeypatch):
    yield from llama_double.installed(tmp_path, monkeypatch)


def made(tmp_path, lane=LANE, file="model.gguf", **options):
    llama_double.write_file(tmp_path / file)
    config = ModelConfig(name="chat", engine="lm", file=file, batch=(1, 2, 4), options=options)
    return make_engine(config, [lane], str(tmp_path))


@pytest.fixture
def engine(tmp_path):
    engine = made(tmp_path)
    engine.load()
    yield engine
    engine.unload()


def run(session, items, states=(), **settings):
    return session.launch(Batch(items, len(items), states, **settings)).result()


def tokens(results):
    return [result.outputs["tokens"].tolist() for result in results]


def children():
    return psutil.Process().children()


def test_answers_are_those_of_this_process_and_a_crash_costs_its_batch_alone(engine, tmp_path):
    here = made(tmp_path, LaneInfo(name="cpu0"), "here.gguf", process=False)
    here.load()
    alone = tokens(run(here.open(LaneInfo(name="cpu0")), ITEMS))
    session = engine.open(LANE)
    assert len(children()) == 1
    assert tokens(run(session, ITEMS)) == alone
    begun = run(session, ITEMS[:2], steps_max=4)
    with pytest.raises(
        ProcessEnded,
        match=r"'chat': its process ended during prefill\(\) \(killed by SIGABRT\). "
        r"It wrote: llama.cpp:1: GGML_ASSERT\(all is well\) failed; it is started again",
    ):
        run(session, [BOOM, ITEMS[2]])
    states = [result.state for result in begun]
    assert tokens(run(session, [*ITEMS[:2], ITEMS[2]], [*states, None])) == alone, "what it held is computed again"
    session.launch(Batch(ITEMS[:1], 1, steps_max=2))
    (child,) = children()
    child.kill()  # between two batches: of no batch
    child.wait(10)
    assert tokens(run(session, ITEMS)) == alone
    here.unload()


def test_a_process_that_comes_back_with_another_file_answers_nothing_until_a_reload(engine, tmp_path):
    session = engine.open(LANE)
    run(session, ITEMS)
    llama_double.write_file(tmp_path / "next.gguf")
    (tmp_path / "next.gguf").replace(tmp_path / "model.gguf")
    assert tokens(run(session, ITEMS)), "it has what it has read"
    (child,) = children()
    child.kill()
    child.wait(10)
    for _ in range(2):
        with pytest.raises(EngineError, match="its files are others than it was loaded from; reload it"):
            run(session, ITEMS)
    engine.unload()
    engine.load()
    assert tokens(run(engine.open(LANE), ITEMS))


def test_each_step_waits_for_its_processs_turn_on_the_gpu(engine):
    turns = Turns()
    session = engine.open(LANE._replace(common={NAME: turns}))
    assert engine.takes_turns, "else the lane would hold the turn over a whole answer"
    other, answers = turns.wait("another process", "gpu1"), []
    thread = threading.Thread(target=lambda: answers.append(tokens(run(session, ITEMS[:1]))))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "a step would run beside the other's kernels"
    other.leave()
    thread.join(10)
    assert len(answers[0][0]) == 9
    assert turns.enter("another process", "gpu1") is not None, "the turn is free after the last step"


def test_a_call_waits_for_the_next_process_only_where_nobody_waits_for_the_call(tmp_path):
    engine = made(tmp_path, LANE._replace(models=2))
    engine.load()
    session = engine.open(LANE)
    with pytest.raises(ProcessEnded, match="SIGABRT"):
        run(session, [BOOM])
    with pytest.raises(EngineError, match="another is being started"):
        run(session, ITEMS)
    engine.unload()
    assert not children()


@pytest.mark.nightly
def test_a_model_is_tried_before_it_is_loaded_here_and_its_tokenizer_before_it_is_read_here(tmp_path):
    alone = LANE._replace(apps=1)
    for lane, file, item in (
        (alone, "abort.gguf", None),
        (alone, "weights-abort.gguf", None),
        (LANE, "abort.gguf", {}),
    ):
        engine = made(tmp_path, lane, file)
        with pytest.raises(EngineError, match=rf"a trial of .*{file}: llama.cpp ends its process") as caught:
            engine.load() if item is None else engine.count_tokens({"prompt": "x"})
        assert "llama.cpp:2: GGML_ASSERT(known) failed" in str(caught.value)
    engine = made(tmp_path, LANE, "weights-abort.gguf")
    with pytest.raises(EngineError, match=r"'chat': its process ended during load\(\) \(killed by SIGABRT\)"):
        engine.load()
    engine = made(tmp_path, alone)
    engine.load()
    assert not children(), "one app alone has its model in this process"
    assert engine.count_tokens({"prompt": "abc"}) == 3
    engine.unload()


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ({}, 1),
        ({"temperature": 1.0, "top_k": 5, "seed": 3}, 5),
        ({"temperature": 1.0, "seed": 3}, llama_double.VOCABULARY),
        ({"logprobs": 2}, llama_double.VOCABULARY),
        ({"repeat_penalty": 1.2}, llama_double.VOCABULARY),
    ],
)
def test_of_a_step_only_the_scores_that_are_read_come_from_the_process(tmp_path, monkeypatch, more, most):
    items = [{**item, **more} for item in ITEMS]
    sizes = []
    ran = RemoteSession._run

    def noted(self, verb, rows):
        found = ran(self, verb, rows)
        sizes.extend(len(scores.tokens) if isinstance(scores, Best) else len(scores) for scores in found)
        return found

    monkeypatch.setattr(RemoteSession, "_run", noted)
    answers = []
    for process in (True, False):
        engine = made(tmp_path, process=process)
        engine.load()
        try:
            answers.append(tokens(run(engine.open(LANE), items)))
        finally:
            engine.unload()
    assert set(sizes) == {most} and answers[0] == answers[1]
