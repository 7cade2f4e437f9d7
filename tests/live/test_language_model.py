"""A language model behind the runtime: pieces, company, cancellation; and SmolLM2 where it lies in the asset cache."""

from __future__ import annotations

import json
import os

import llama_double
import lm_models
import pytest
from serving import served

from edgeserve import Client, Runtime
from edgeserve.config.files import resolve_path
from edgeserve.config.loading import load_config
from edgeserve.errors import BadInput, Failed
from edgeserve.fronts.http.chat import read_prompts

CONFIG = """
[app.write]
model = "tiny"
slo = "60s"

[app.write.inputs]
prompt = { dtype = "text" }
max_tokens = { dtype = "any", optional = true }

[model.tiny]
engine = "lm"
file = "FILE"
batch = [1, 2, 4]
options = { chat = CHAT, context = 256 }
"""

SMOLLM2 = "cache:smollm2-135m-onnx/smollm2.onnx"


def runtime_of(tmp_path, file, chat=False, config=CONFIG):
    path = tmp_path / "edge.toml"
    path.write_text(config.replace("FILE", file).replace("CHAT", json.dumps(chat)))
    return Runtime(str(path))


def test_a_crash_of_llama_cpp_costs_its_batch_and_no_other_request(tmp_path, monkeypatch):
    double = llama_double.installed(tmp_path, monkeypatch)
    next(double)
    (tmp_path / "crash_functions.py").write_text("def twice(inputs):\n    return {'y': inputs['x'] * 2}\n")
    file, path = llama_double.write_file(tmp_path / "model.gguf"), tmp_path / "edge.toml"
    path.write_text(
        f"""
[lane.cpu0]
[lane.host]
[app.write]
model = "chat"
slo = "60s"
[app.twice]
model = "twice"
slo = "60s"
[model.chat]
engine = "lm"
file = "{file}"
lanes = ["cpu0"]
batch = [1]
options = {{ context = 64 }}
[model.twice]
engine = "python"
function = "crash_functions:twice"
lanes = ["host"]
"""
    )
    with Runtime(str(path)) as runtime:
        asked = {"max_tokens": 6, "ignore_eos": True}
        before = runtime.infer("write", {"prompt": "abc", **asked})["tokens"].tolist()
        crash = runtime.submit("write", {"prompt": "!", **asked})
        waiting = [runtime.submit("write", {"prompt": "abc", **asked}) for _ in range(3)]
        others = [runtime.submit("twice", {"x": number}) for number in range(20)]
        with pytest.raises(Failed, match=r"killed by SIGABRT\). It wrote: llama.cpp:1: GGML_ASSERT.*started again"):
            crash.result(30)
        assert [future.result(30)["y"] for future in others] == [2 * number for number in range(20)]
        assert [future.result(30)["tokens"].tolist() for future in waiting] == [before] * 3
    next(double, None)


def test_wrong_values_of_a_node_before_are_no_mistake_of_the_client(tmp_path, caplog):
    (tmp_path / "node_functions.py").write_text("def number(inputs):\n    return {'prompt': 5}\n")
    path = tmp_path / "edge.toml"
    path.write_text(
        f"""
[app.write]
[[app.write.node]]
name = "number"
[[app.write.node]]
name = "tiny"
inputs = {{ prompt = "number.prompt" }}
[app.direct]
model = "tiny"
[model.number]
engine = "python"
function = "node_functions:number"
[model.tiny]
engine = "lm"
file = "{lm_models.tiny(str(tmp_path))}"
"""
    )
    with Runtime(str(path)) as runtime:
        with pytest.raises(BadInput, match="input 'prompt' is int, expected a string"):
            runtime.infer("direct", {"prompt": 5}, slo_ms=20_000)
        assert "failure 1 of this model" not in caplog.text
        with pytest.raises(Failed, match="'prompt' is 5; expected text"):
            runtime.infer("write", {}, slo_ms=20_000)
        assert "failure 1 of this model" in caplog.text


def test_answers_stream_and_are_the_same_in_company(tmp_path):
    lm_models.tiny(str(tmp_path))
    with runtime_of(tmp_path, "tiny.onnx") as runtime:
        prompts = [f"prompt number {number}" for number in range(6)]
        alone = [
            runtime.infer("write", {"prompt": prompt, "max_tokens": 8 + 4 * place})
            for place, prompt in enumerate(prompts)
        ]
        futures = [
            runtime.submit("write", {"prompt": prompt, "max_tokens": 8 + 4 * place})
            for place, prompt in enumerate(prompts)
        ]
        for future, wanted in zip(futures, alone):
            answer = future.result(60)
            assert answer["tokens"].tolist() == wanted["tokens"].tolist()
            assert answer["text"] == wanted["text"]
        with runtime.stream("write", {"prompt": prompts[5], "max_tokens": 28}) as stream:
            pieces = list(stream)
            assert "".join([piece["text"] for piece in pieces]) == stream.answer()["text"] == alone[5]["text"]
        counted = runtime.stats()["apps"]["write"]["predictions"]  # the tokens of each prompt
        assert counted["count"] == 13


@pytest.mark.skipif(
    not os.path.isfile(resolve_path(SMOLLM2, ".")),
    reason="SmolLM2 is not in the asset cache; docs/guide/language-models.md has the two commands",
)
def test_smollm2_knows_the_capital_of_france(tmp_path):
    pytest.importorskip("tokenizers", reason="pip install -e '.[lm]'")
    pytest.importorskip("jinja2", reason="pip install -e '.[lm]'")
    with open(resolve_path(SMOLLM2, ".").replace(".onnx", ".json"), encoding="utf-8") as file:
        weights = json.load(file)["weights"]
    if weights != "float32":
        pytest.skip(f"its weights in the asset cache are {weights}; what it says is known for float32")
    with runtime_of(tmp_path, SMOLLM2, chat=True) as runtime:
        answer = runtime.infer("write", {"prompt": "What is the capital of France?", "max_tokens": 12})
    assert answer["text"] == "The capital of France is Paris."
    assert answer["finish_reason"] == "stop"


def test_each_client_goes_on_from_its_own_prompts(tmp_path):
    pytest.importorskip("onnxruntime", "1.20", reason="older versions cannot read a prompt in parts")
    lm_models.tiny(str(tmp_path))
    asked = {"prompt": "The rules of the house are these: none.", "max_tokens": 4}
    path = tmp_path / "edge.toml"
    path.write_text(CONFIG.replace("FILE", "tiny.onnx").replace("CHAT", "false") + "slots = 8\n")
    with Runtime(load_config(str(path)), serve=True) as runtime, Client(runtime.endpoints[0]) as client:
        infer = [
            lambda: runtime.infer("write", asked),
            lambda: client.infer("write", asked),
            lambda: client.submit("write", asked, origin="token:a").result(60),
            lambda: client.submit("write", asked, origin="token:b").result(60),
        ]
        answers = [ask() for ask in (*infer, *infer)]
        stats = runtime.stats()["apps"]["write"]
    assert [answer["cached_tokens"] for answer in answers] == [0] * 4 + [len(asked["prompt"]) - 1] * 4
    assert len({tuple(answer["tokens"].tolist()) for answer in answers}) == 1
    assert 0.0 < stats["prompt_cached"]["tiny"] < 1.0


@pytest.mark.parametrize("of_model", [True, False])
def test_each_of_several_choices_draws_for_itself_and_a_seed_repeats_them_all(tmp_path, of_model):
    seed = {"seed": 7}
    options = {"temperature": 2.0, "max_tokens": 12, **(seed if of_model else {})}
    model = {"engine": "lm", "file": lm_models.tiny(str(tmp_path)), "options": options}
    tables = {"model": {"tiny": model}, "app": {"write": {"model": "tiny", "slo": "60s"}}}
    body = {"model": "write", "prompt": "The", "n": 3, **({} if of_model else seed)}
    with served(tables, str(tmp_path)) as (_, client):
        asks = read_prompts(body, client.apps()["write"]["inputs"]).asks
        texts = [[client.infer("write", ask)["text"] for ask in asks] for _ in range(2)]
        assert texts[0] == texts[1] and len(set(texts[0])) == 3
