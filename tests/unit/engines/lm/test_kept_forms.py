"""Forms of answers are compiled within bounds, and kept for their owner alone."""

from __future__ import annotations

import gc
import json
import os
import pickle
import time

import psutil
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import PREPARED, Batch, LaneInfo
from edgeserve.engines.lm import kept_forms
from edgeserve.engines.lm.kept_forms import Cost, Forms
from edgeserve.errors import Rejected, WrongInput

MB = 1 << 20


class Compiler:
    """Stands for the library: each form has this size; what was tried and compiled is counted."""

    def __init__(self, size=MB):
        self.size, self.tried, self.compiled = size, [], []

    def form(self, kept, grammar, owner="a"):
        return kept.form(grammar, owner, self.attempt, self.compile)

    def attempt(self, grammar):
        self.tried.append(grammar)
        return Cost(5, self.size)

    def compile(self, grammar):
        self.compiled.append(grammar)
        return Matcher()


class Matcher:
    def deep_copy(self):
        return Matcher()


def test_a_form_is_compiled_once_for_its_owner_and_again_for_another():
    kept, library = Forms("m", "v"), Compiler()
    first = library.form(kept, "x")
    again = library.form(kept, "x")
    assert (first.took_ns, again.took_ns, library.compiled) == (10, 0, ["x"])
    other = library.form(kept, "x", "b")
    assert other.took_ns == 10 and library.compiled == ["x", "x"], "times would tell what the other has asked for"
    assert first.matcher() is not again.matcher()


def test_what_is_kept_is_bounded_in_bytes_and_the_greediest_makes_room():
    kept, library = Forms("m", "v"), Compiler(size=20 * MB)
    library.form(kept, "modest", "b")
    for number in range(5):
        library.form(kept, f"x{number}", "a")
        gc.collect()
    assert sum(kept.kept_bytes().values()) <= kept_forms.KEPT_BYTES_MAX
    library.form(kept, "modest", "b")
    assert library.compiled.count("modest") == 1, "what another asks for has not cost this owner its own"


def test_a_form_counts_at_least_its_text():
    kept, library = Forms("m", "v"), Compiler(size=0)
    library.form(kept, "x" * 60_000)
    assert kept.kept_bytes() == {"a": 480_000}


def test_forms_in_use_are_bounded_too_and_for_one_owner_at_half_of_it():
    kept, library = Forms("m", "v"), Compiler(size=40 * MB)
    using = [library.form(kept, f"x{number}") for number in range(3)]
    with pytest.raises(Rejected, match="send fewer different forms") as caught:
        library.form(kept, "one more")
    assert caught.value.reason == "over_share" and library.compiled == ["x0", "x1", "x2"]
    using += [library.form(kept, "theirs", "b")]
    using.clear()
    gc.collect()
    assert library.form(kept, "one more").bytes == 40 * MB


def test_a_form_travels_without_what_was_compiled():
    kept, library = Forms("m", "v"), Compiler()
    form = library.form(kept, "x")
    there = pickle.loads(pickle.dumps(form))
    assert form.is_for("v") and not form.is_for("w") and not there.is_for("v") and there.grammar == "x"


# --- on the library, with a trial in a process of its own -------------------------------------------------------------

SLOW = {  # seconds, each of them
    "one number": {"type": "integer", "multipleOf": 999983},
    "many numbers": {
        "type": "object",
        "properties": {f"a{i}": {"type": "integer", "multipleOf": 19999 + 2 * i} for i in range(40)},
        "required": [f"a{i}" for i in range(40)],
    },
    "55 kB of names": {"type": "object", "properties": {f"{i:x}": {} for i in range(5000)}},
}


def asked(schema):
    return {"response_format": json.dumps({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})}


@pytest.fixture
def engine(tmp_path):
    pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")
    pytest.importorskip("onnx", reason="the onnx package makes the test model; pip install -e '.[test]'")
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    import lm_models

    model = ModelConfig(name="chat", engine="lm", file=lm_models.tiny(str(tmp_path)), batch=(1, 2))
    engine = make_engine(model, [LaneInfo(name="a")], str(tmp_path))
    engine.load()
    yield engine
    engine.unload()


def test_a_form_that_takes_too_long_is_refused_in_time_and_the_next_one_compiles(engine):
    simple = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert engine.prepare(asked(simple), "me").took_ns > 0
    for name, schema in SLOW.items():
        began = time.process_time()
        with pytest.raises(WrongInput, match="'chat'.*takes longer than 250ms of processor time"):
            engine.prepare(asked(schema), "me")
        assert time.process_time() - began < 0.2, f"{name}: this process has not compiled it"
        assert engine.prepare(asked({**simple, "title": name}), "me").took_ns > 0
    assert len(psutil.Process().children(recursive=True)) == 1, "no trial is left running"


def test_what_was_prepared_is_what_the_answer_is_held_to(engine):
    item = asked({"enum": ["yes", "no"]})
    form = engine.prepare(item, "me")
    session = engine.open(LaneInfo(name="a"))
    items = [{"prompt": "p", **item, PREPARED: form}, {"prompt": "p", **item}]
    results = session.launch(Batch(items, 2, owners=("me", "me"))).result()
    assert [json.loads(result.outputs["text"]) for result in results] in (["yes", "yes"], ["no", "no"])
    assert engine.prepare({}, "me") is None and engine.prepare({"tools": "[]"}, "me") is None


def test_the_process_of_trials_ends_with_its_engine(engine):
    engine.prepare(asked({"enum": ["yes"]}), "me")
    (child,) = psutil.Process().children()
    engine.unload()
    child.wait(10)
    assert not psutil.pid_exists(child.pid) or os.getpid() != child.ppid()
