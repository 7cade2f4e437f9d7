"""OpenAI's own client requests answers in a form and tool calls: an untrained model behind the HTTP front."""

from __future__ import annotations

from typing import Literal

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.fronts.http.settings import HttpConfig
from edgeserve.runtime import Runtime

pytest.importorskip("llguidance", reason="llguidance has no wheel for this Python")

import lm_models
from http_front import FrontThread

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

INPUTS = ("messages", "max_tokens", "temperature", "seed", "response_format", "tools", "tool_choice")
ASKED = [{"role": "user", "content": "lamp"}]


class Lamp(pydantic.BaseModel):
    """The schema of the answers."""

    room: Literal["kitchen", "hall"]
    on: bool


@pytest.fixture(scope="module")
def openai():
    """Imported here: the library takes a second, in each process that collects."""
    return pytest.importorskip("openai", reason="openai is not installed")


@pytest.fixture(scope="module")
def client(module_folder, openai):
    folder = module_folder
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{% if tools %}<tool_call>?{% endif %}"
    lm_models.tiny(str(folder), chat_template=template)
    config = parse_config(
        {
            "server": {"endpoint": f"ipc://{folder}/bus/socket"},
            "model": {"tiny": {"engine": "lm", "file": "tiny.onnx", "batch": [1, 2]}},
            "app": {
                "tiny": {
                    "model": "tiny",
                    "slo": "60s",
                    "inputs": {name: {"dtype": "any", "optional": True} for name in INPUTS},
                }
            },
        },
        directory=str(folder),
    )
    with Runtime(config, serve=True) as runtime:
        with FrontThread(runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as front:
            with openai.OpenAI(base_url=f"http://{front.http}/v1", api_key="none", max_retries=0) as client:
                yield client


def test_an_answer_parses_as_the_class_that_was_asked_for(client):
    for seed in range(3):
        answer = client.chat.completions.parse(
            model="tiny", messages=ASKED, response_format=Lamp, max_tokens=200, temperature=1, seed=seed
        )
        assert isinstance(answer.choices[0].message.parsed, Lamp) and answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_parses_as_the_class_of_its_arguments(client, openai, stream):
    asked = {
        "model": "tiny",
        "messages": ASKED,
        "tools": [openai.pydantic_function_tool(Lamp)],
        "tool_choice": "required",
        "max_tokens": 200,
        "temperature": 1,
        "seed": 4,
    }
    if stream:
        with client.chat.completions.stream(**asked) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.parse(**asked)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls" and not message.content
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Lamp)
    called = {**message.model_dump(exclude_none=True, include={"role", "content"}), "content": None}
    calls = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls]
    talk = [*ASKED, {**called, "tool_calls": calls}, {"role": "tool", "tool_call_id": calls[0]["id"], "content": "ok"}]
    again = client.chat.completions.create(model="tiny", messages=talk, max_tokens=3)
    assert again.usage.completion_tokens == 3


def test_a_schema_that_is_none_is_a_bad_request(client, openai):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "foo"}}}
    with pytest.raises(openai.BadRequestError, match="Invalid type: foo"):
        client.chat.completions.create(model="tiny", messages=ASKED, response_format=form)
