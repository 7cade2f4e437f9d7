"""LiteLLM and LangChain, as programs use them, before the front: the cases that were held once stay held.

Their packages are many and change often, so they are installed anew into an environment of their own; nightly.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv

import pytest
from http_front import FrontThread
from serving import function, served

from edgeserve.fronts.http.settings import HttpConfig

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PACKAGES = ("litellm", "langchain-openai", "langchain-ollama")

BEGIN = """
import asyncio, json, sys
place = sys.argv[1]
TALK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one two"}]
CALLED = [*TALK, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "a", "type": "function", "function": {"name": "lamp", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": ""}, {"role": "user", "content": "three"}]
TOOL = {"type": "function", "function": {"name": "lamp", "description": "switch it", "parameters": {
    "type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}}}
told = lambda value: print("TOLD", json.dumps(value))
"""

LITELLM = (
    BEGIN
    + """
import litellm
litellm.suppress_debug_info = True
OPENAI = {"api_base": place + "/v1", "api_key": "none"}
OLLAMA = {"api_base": place}
"""
)

LANGCHAIN = (
    BEGIN
    + """
from langchain_openai import ChatOpenAI
from langchain_ollama import ChatOllama
def openai(model="chat", **more):
    return ChatOpenAI(model=model, base_url=place + "/v1", api_key="none", max_retries=0, **more)
def ollama(model="chat", **more):
    return ChatOllama(model=model, base_url=place, **more)
"""
)

CASES = {
    "litellm, OpenAI: a conversation": (
        LITELLM,
        "told(litellm.completion('openai/chat', TALK, **OPENAI).choices[0].message.content)",
        "one two",
    ),
    "litellm, OpenAI: a call without content before": (
        LITELLM,
        "told(litellm.completion('openai/chat', CALLED, **OPENAI).choices[0].message.content)",
        "three",
    ),
    "litellm, OpenAI: a stream": (
        LITELLM,
        "told(''.join(c.choices[0].delta.content or '' for c in "
        "litellm.completion('openai/chat', TALK, stream=True, **OPENAI)))",
        "one two",
    ),
    "litellm, OpenAI: a function": (
        LITELLM,
        "c = litellm.completion('openai/caller', TALK, tools=[TOOL], **OPENAI).choices[0].message.tool_calls[0]\n"
        "told([c.function.name, json.loads(c.function.arguments)])",
        ["lamp", {"room": "one two"}],
    ),
    "litellm, OpenAI: no such model": (
        LITELLM,
        "try:\n    litellm.completion('openai/nothing', TALK, num_retries=0, **OPENAI)\n"
        "except litellm.NotFoundError as error:\n    told(error.status_code)",
        404,
    ),
    "litellm, Ollama: a stream": (
        LITELLM,
        "told(''.join(c.choices[0].delta.content or '' for c in "
        "litellm.completion('ollama_chat/chat', TALK, stream=True, **OLLAMA)))",
        "one two",
    ),
    "langchain, OpenAI: a conversation": (LANGCHAIN, "told(openai().invoke(TALK).content)", "one two"),
    "langchain, OpenAI: a call without content before": (LANGCHAIN, "told(openai().invoke(CALLED).content)", "three"),
    "langchain, OpenAI: a stream": (
        LANGCHAIN,
        "told(''.join(c.content for c in openai(stream_usage=True).stream(TALK)))",
        "one two",
    ),
    "langchain, OpenAI: a function": (
        LANGCHAIN,
        "(c,) = openai('caller').bind_tools([TOOL]).invoke(TALK).tool_calls\ntold([c['name'], c['args']])",
        ["lamp", {"room": "one two"}],
    ),
    "langchain, OpenAI: responses": (LANGCHAIN, "told(openai(use_responses_api=True).invoke(TALK).text)", "one two"),
    "langchain, Ollama: a stream": (
        LANGCHAIN,
        "told(''.join(c.content for c in ollama(num_ctx=512, keep_alive='5m').stream(TALK)))",
        "one two",
    ),
    "langchain, Ollama: a function": (
        LANGCHAIN,
        "(c,) = ollama('caller').bind_tools([TOOL]).invoke(TALK).tool_calls\ntold([c['name'], c['args']])",
        ["lamp", {"room": "one two"}],
    ),
}
"""Case -> how its program begins, what it does, what it tells."""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment with the packages; of the one that ``EDGESERVE_FRAMEWORKS`` names, if set."""
    folder = os.environ.get("EDGESERVE_FRAMEWORKS") or str(tmp_path_factory.mktemp("frameworks"))
    path = os.path.join(folder, "bin", "python")
    if not os.path.exists(path):
        venv.create(folder, with_pip=True)
        done = subprocess.run([path, "-m", "pip", "install", "-q", *PACKAGES], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"pip install {' '.join(PACKAGES)}: {done.stderr.strip().splitlines()[-1][:200]}")
    return path


@pytest.fixture(scope="module")
def front():
    text = {"dtype": "text"}
    talks = {"messages": text, "max_tokens": {"dtype": "int32", "optional": True}}
    calls = {"messages": text, "tools": {**text, "optional": True}}
    tables = {
        "model": {
            "chat": function("chat", "example_chat", "http_functions"),
            "caller": function("call_lamp", "example_chat", "http_functions"),
        },
        "app": {
            "chat": {"model": "chat", "slo": "60s", "inputs": talks},
            "caller": {"model": "caller", "slo": "60s", "inputs": calls},
        },
    }
    with served(tables) as (runtime, _), FrontThread(runtime.endpoints[0], HttpConfig(listen="127.0.0.1:0")) as thread:
        yield thread


@pytest.mark.parametrize("case", CASES)
def test_a_framework_is_answered(python, front, case):
    begin, does, tells = CASES[case]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [python, "-c", begin + does, f"http://{front.http}"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**environment, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    lines = [line[len("TOLD ") :] for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert done.returncode == 0 and lines, done.stderr[-2000:]
    assert json.loads(lines[-1]) == tells
