"""The hub of ``examples/chat`` as it is configured, with a small language model that was never trained in the place of
the real one: both apps, streams over the bus, and short answers beside a long one.

The voice detector is left out: no test fetches it for this.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, Iterator

import lm_models
import pytest

from edgeserve import Runtime
from edgeserve.commands.lm_model.graph import random_tensors, write_model
from edgeserve.config.loading import parse_config
from edgeserve.config.toml_files import read_toml
from edgeserve.engines.functions import import_function
from edgeserve.live.request import language_model
from edgeserve.predict.serving.answer_lengths import answer_lengths
from edgeserve.predict.serving.predictors import Predictors

CHAT = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "examples", "chat")
CONTEXT = 32768  # a byte is a token of the test model
LONG = 30_000  # takes seconds; with this seed the model does not end before


def example_module(name: str) -> Any:
    return sys.modules[import_function(f"{name}:main", CHAT, "test_chat_example").__module__]


def tables(directory: str) -> Dict[str, Any]:
    """The example's configuration with the small model."""
    table = read_toml(os.path.join(CHAT, "edge.toml"))
    del table["app"]["ears"], table["model"]["voice"], table["lane"]["cpu1"]
    chat = table["model"]["chat"]
    chat["file"] = os.path.join(directory, "tiny.onnx")
    shape = lm_models.SHAPE._replace(context=CONTEXT)
    write_model(chat["file"], shape, random_tensors(shape, seed=2), lm_models.ABOUT)
    chat["options"].update(context=CONTEXT, max_tokens=LONG)
    return table


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory) -> str:
    return f"ipc://{tmp_path_factory.mktemp('bus')}/hub"


@pytest.fixture(scope="module")
def hub(tmp_path_factory, endpoint) -> Iterator[Runtime]:
    table = tables(str(tmp_path_factory.mktemp("chat")))
    table.setdefault("server", {})["endpoint"] = endpoint
    with Runtime(parse_config(table, CHAT), serve=True) as runtime:
        yield runtime


def test_ten_intents_are_answered_while_a_long_answer_is_being_written(hub):
    long = hub.submit("assistant", {"prompt": "Tell me everything.", "max_tokens": LONG}, slo_ms=600_000)
    for future in [hub.submit("intents", {"said": f"Sentence {number}"}, slo_ms=60_000) for number in range(10)]:
        assert set(future.result(60)) == {"thing"}
    assert not long.done()
    assert long.cancel()


def test_the_client_prints_the_answer_as_it_streams(hub, endpoint, capsys):
    said = {"messages": json.dumps([{"role": "user", "content": "Is the window open?"}]), "max_tokens": 20}
    answer = hub.infer("assistant", said)
    assert example_module("chat").main(["Is the window open?", "--endpoint", endpoint, "--tokens", "20"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{answer['text']}\n[{answer['completion_tokens']} tokens, ")


def test_the_load_records_lengths_that_can_be_fitted(hub, endpoint, capsys, tmp_path):
    record = tmp_path / "prompts.jsonl"
    load = example_module("load")
    assert (
        load.main(["--endpoint", endpoint, "--rooms", "0", "--seconds", "0.5", "--rate", "12", "--record", str(record)])
        == 0
    )
    printed = capsys.readouterr().out
    assert "one long answer, ten short ones" in printed
    assert load.mixed(0.5, 12, 0.25, 1) == load.mixed(0.5, 12, 0.25, 1) != load.mixed(0.5, 12, 0.25, 2)
    asked = [question for question in load.mixed(0.5, 12, 0.25, 1) if question.app == "assistant"]
    recorded = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert sorted(entry["text"] for entry in recorded) == sorted(question.inputs["prompt"] for question in asked)
    assert all(1 <= entry["tokens"] <= 160 for entry in recorded)


def test_a_conversation_is_predicted_with_its_spread(tmp_path):
    config = parse_config(tables(str(tmp_path)), CHAT)
    app = config.apps["assistant"]
    predictors = Predictors(app, CHAT, answer_lengths(app, language_model(app, config), config).predictors)
    hints = predictors.on_arrival(
        None, {"messages": json.dumps([{"role": "user", "content": "What is the capital?"}])}, lambda: 0
    )
    assert set(hints) == {"steps", "steps_sd"} and 1 < hints["steps"] < 192 and 0.1 < hints["steps_sd"] < 2
    assert not predictors.failed()


def test_what_the_model_says_is_one_of_the_things_or_none():
    hub = sys.modules[import_function("hub:act", CHAT, "test_chat_example").__module__]
    assert hub.act({"text": " Lights.\n"})["thing"] == "light"
    assert hub.act({"text": "a window"})["thing"] == ""
    assert [message["role"] for message in json.loads(hub.frame({"said": "Dark."})["messages"])][-1] == "user"
