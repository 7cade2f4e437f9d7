"""Rules of every back end, on llama.cpp (its double, and itself where it is installed) and on transformers."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import weakref
from dataclasses import replace

import llama_double
import numpy as np
import pytest
import saved_llama

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import ConfigError, DeviceLost, EngineError, OutOfMemory, WrongInput

PROMPTS = ("Hello there", "x", "The quick brown fox jumps over the dog", "the then")
ITEMS = [
    {"prompt": prompt, "max_tokens": length, "ignore_eos": True} for prompt, length in zip(PROMPTS, (9, 17, 5, 12))
]
CONTEXT = llama_double.CONTEXT
LLAMA = "edgeserve.engines.lm.llama_backend"


def doubled(monkeypatch, **overrides):
    """The back end of llama.cpp on a double."""
    double = llama_double.module(**overrides)
    monkeypatch.setitem(sys.modules, "llama_cpp", double)
    llama_double.forget(monkeypatch)
    package = importlib.import_module("edgeserve.engines.lm")
    monkeypatch.setattr(package, "llama_backend", importlib.import_module(LLAMA), raising=False)
    return double


def model_file(kind, tmp_path, monkeypatch, template="", adds_first=False):
    """The file of a model whose control tokens are <|im_start|> and <|im_end|>: the one that begins a sequence, which
    it has before every text where ``adds_first``, and the one that ends a turn."""
    directory = str(tmp_path)
    if kind == "llama.cpp's double":
        doubled(
            monkeypatch,
            vocab_get_add_bos=lambda vocabulary: adds_first,
            model_chat_template=lambda model, name: template.encode() or b"chatml",
        )
        return llama_double.write_file(tmp_path / "model.gguf")
    if kind == "transformers":
        return saved_llama.save(directory, template, adds_first)
    if kind == "onnx":
        pytest.importorskip("onnx", reason="pip install -e '.[test]'")
        pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
        import lm_models

        return lm_models.tiny(
            directory,
            first=[256] if adds_first else [],
            chat_template=template,
            bos_token="<|im_start|>",
            eos_token="<|im_end|>",
        )
    pytest.importorskip("gguf", reason="pip install -e '.[lm-convert]'")
    import lm_models

    file = lm_models.gguf(directory, template=template, adds_first=adds_first)
    if kind == "llama.cpp":
        pytest.importorskip("llama_cpp", reason="pip install -e '.[lm-llama]' (builds llama.cpp, about ten minutes)")
        return file
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    pytest.importorskip("tokenizers", reason="pip install -e '.[lm]'")
    from edgeserve.commands.lm_model.__main__ import convert

    convert(os.path.join(directory, file), os.path.join(directory, "out.onnx"), "float32", 64)
    return "out.onnx"


@pytest.fixture(params=["llama.cpp's double", "llama.cpp", "transformers"])
def engine(request, tmp_path, monkeypatch):
    engine = make_engine(
        ModelConfig(
            name="chat",
            engine="lm",
            file=model_file(request.param, tmp_path, monkeypatch),
            batch=(1, 2, 4),
            options={"context": 64},
        ),
        [LaneInfo()],
        str(tmp_path),
    )
    engine.load()
    yield engine
    engine.unload()


def run(session, items, states=(), **settings):
    return session.launch(Batch(items, len(items), states, **settings)).result()


def tokens(results):
    return [result.outputs["tokens"].tolist() for result in results]


def test_batches_cuts_releases_and_other_sessions_change_no_token(engine):
    session = engine.open(LaneInfo(name="cpu0"))
    alone = [tokens(run(session, [item]))[0] for item in ITEMS]
    assert len({tuple(answer) for answer in alone}) == 4
    assert tokens(run(session, ITEMS)) == alone
    first = run(session, ITEMS[:2], steps_max=3)
    mixed = run(session, [ITEMS[2], ITEMS[1], ITEMS[3]], [None, first[1].state, None], steps_max=4)
    first[0].state.release()
    ends = run(
        session,
        [ITEMS[0], ITEMS[1], ITEMS[2], ITEMS[3]],
        [first[0].state, mixed[1].state, mixed[0].state, mixed[2].state],
    )
    assert tokens(ends) == alone
    begun = run(session, ITEMS[:2], steps_max=4)
    other = engine.open(LaneInfo(name="cpu1"))
    assert tokens(run(other, ITEMS[:2], [result.state for result in begun])) == alone[:2]


def test_half_of_a_character_is_the_clients_error(engine):
    (result,) = run(engine.open(LaneInfo()), [{"prompt": "a\ud800"}])
    assert isinstance(result.error, WrongInput) and "half of a character" in str(result.error)


def test_text_goes_to_tokens_and_back(engine):
    tokenizer = engine.language("cpu0").tokenizer
    text = "naïve 東京: the 12 <|im_end|>"
    plain, special = tokenizer.encode(text), tokenizer.encode(text, special=True)
    assert b"".join([tokenizer.piece(token) for token in plain]).decode() == text
    assert set(tokenizer.stops) & set(special)
    assert not set(tokenizer.stops) & set(plain)
    assert b"".join([tokenizer.piece(token) for token in special]).decode() == text.replace("<|im_end|>", "")
    assert tokenizer.special_texts[0] in ("<|im_start|>", "<|im_end|>")


TURNS = "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize("kind", ["llama.cpp's double", "llama.cpp", "transformers", "onnx", "onnx from gguf"])
@pytest.mark.parametrize(
    ("template", "adds_first", "begins"),
    [
        (TURNS, True, True),
        ("{{ bos_token }}" + TURNS, True, True),
        ("{{ bos_token }}" + TURNS, False, True),
        (TURNS, False, False),
    ],
    ids=["added", "added and written", "written", "neither"],
)
def test_conversations_have_the_first_token_once_and_the_ends_of_turns(
    tmp_path, monkeypatch, kind, template, adds_first, begins
):
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    file = model_file(kind, tmp_path, monkeypatch, template, adds_first)
    engine = make_engine(ModelConfig(name="chat", engine="lm", file=file), [LaneInfo()], str(tmp_path))
    engine.load()
    language = engine.language("cpu0")
    begin, end = [language.tokenizer.encode(name, special=True) for name in ("<|im_start|>", "<|im_end|>")]
    plain = [language.tokenizer.encode(text) for text in ("[user] the<", "[bot] other")]
    asked = language.reader.read(
        {"messages": [{"role": "user", "content": "the<|im_start|><"}, {"role": "bot", "content": "other"}]}
    )
    assert list(asked.prompt) == [*(begin if begins else []), *plain[0], *end, *plain[1], *end]
    prompt = language.reader.read({"prompt": "the"}).prompt
    assert list(prompt) == [*(begin if adds_first else []), *language.tokenizer.encode("the")]
    engine.unload()


@pytest.mark.parametrize("where", ["generation_config.json", "config.json"])
def test_an_answer_of_transformers_ends_where_its_own_generate_ends(tmp_path, where):
    """Chat models end a turn with a token that generation_config.json names, and a sequence with the tokenizer's."""

    def answered(**more):
        engine = make_engine(ModelConfig(name="chat", engine="lm", file=file), [LaneInfo()], str(tmp_path))
        engine.load()
        (result,) = run(engine.open(LaneInfo()), [{"prompt": "the", "max_tokens": 12, **more}])
        return result.outputs["tokens"].tolist(), result.outputs["finish_reason"]

    file = saved_llama.save(str(tmp_path))
    whole, _ = answered(ignore_eos=True)
    if where == "config.json":
        (tmp_path / "generation_config.json").unlink()  # what it lacks counts then
    about = json.loads((tmp_path / where).read_text())
    (tmp_path / where).write_text(json.dumps({**about, "eos_token_id": [257, whole[3]]}))
    assert answered() == (whole[: whole.index(whole[3])], "stop")


@pytest.mark.parametrize(
    ("family", "settings", "says"),
    [
        ("Mamba", {"num_hidden_layers": 1}, "keep no keys and values"),
        ("Bloom", {"n_layer": 1, "n_head": 4}, "takes no position_ids"),
        ("GPT2", {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 0}, "set \\[model.chat\\] options.context"),
    ],
)
def test_a_model_of_transformers_that_cannot_be_served_is_not_loaded(tmp_path, family, settings, says):
    """Each of its requests would fail in a step."""
    file = saved_llama.save(str(tmp_path))
    transformers = importlib.import_module("transformers")
    size = {} if family == "GPT2" else {"hidden_size": 32}
    config = getattr(transformers, f"{family}Config")(vocab_size=258, **size, **settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(str(tmp_path))
    with pytest.raises(EngineError, match=says):
        make_engine(ModelConfig(name="chat", engine="lm", file=file), [LaneInfo()], str(tmp_path)).load()


def test_of_several_chat_templates_the_default_one_is_used(tmp_path):
    pytest.importorskip("jinja2", reason="pip install -e '.[test]'")
    file = saved_llama.save(str(tmp_path), {"default": TURNS, "rag": "{{ 1 }}"})
    engine = make_engine(ModelConfig(name="chat", engine="lm", file=file), [LaneInfo()], str(tmp_path))
    engine.load()
    prompt = engine.language("cpu0").reader.read({"messages": [{"role": "user", "content": "the"}]}).prompt
    assert list(prompt) == [*engine.language("cpu0").tokenizer.encode("[user] the"), 257]


def test_the_scheduler_is_told_of_memory_and_bounds(engine):
    info = engine.sequence()
    assert (info.context_tokens, info.slots) == (64, 4)
    assert info.bytes_per_token > 0 or engine.load().work_bytes > 0, "as answers grow, or reserved"
    assert "at most 63 fit" in str(run(engine.open(LaneInfo()), [{"tokens": [1] * 64}])[0].error)


def test_sequences_may_fill_the_context_all_at_once(engine):
    full = [{"tokens": [index + 1] * 40, "max_tokens": 100, "ignore_eos": True} for index in range(4)]
    results = run(engine.open(LaneInfo()), full)
    assert [result.outputs["completion_tokens"] for result in results] == [24] * 4


# --- llama.cpp alone -------------------------------------------------------------------------------------------------


@pytest.fixture
def llama_file(tmp_path):
    file = llama_double.write_file(tmp_path / "model.gguf")
    return ModelConfig(name="chat", engine="lm", file=file, batch=(1, 2)), str(tmp_path)


@pytest.mark.parametrize(
    ("model_bytes", "moved"), [(10**6, [0, 1, 2]), (1000, [0, 1, 3])], ids=["moves", "too large to move"]
)
def test_llama_cpp_gets_neighbours_in_the_order_of_their_numbers(tmp_path, monkeypatch, model_bytes, moved):
    llama_double.write_file(tmp_path / "model.gguf")
    double = doubled(monkeypatch, model_size=lambda model: model_bytes)
    config = ModelConfig(name="chat", engine="lm", file="model.gguf", batch=(1, 2, 4))
    engine = make_engine(config, [LaneInfo()], str(tmp_path))
    engine.load()
    session = engine.open(LaneInfo())
    alone = [tokens(run(session, [item]))[0] for item in ITEMS]
    states = [result.state for result in run(session, ITEMS, steps_max=6)]  # the third has ended
    double.calls.clear()
    rest = [3, 1, 0]
    results = run(session, [ITEMS[index] for index in rest], [states[index] for index in rest])
    assert [number for number, _ in double.calls[0]] == moved, "others would be runs of their own inside llama.cpp"
    assert tokens(results) == [alone[index] for index in rest], "each answer goes to its own item"
    assert not any(double.contexts[0].sequences.values())


@pytest.mark.parametrize(("slots", "options", "reserved"), [(4, {}, 5), (4, {"prefix_cache": False}, 4), (1, {}, 1)])
def test_llama_cpp_reserves_one_more_sequence_only_where_some_are_kept(tmp_path, monkeypatch, slots, options, reserved):
    llama_double.write_file(tmp_path / "model.gguf")
    double = doubled(monkeypatch, model_size=lambda model: 10**6)
    config = ModelConfig(name="chat", engine="lm", file="model.gguf", batch=(1,), slots=slots, options=options)
    engine = make_engine(config, [LaneInfo()], str(tmp_path))
    engine.load()
    engine.open(LaneInfo())
    assert len(double.contexts[0].sequences) == reserved


def kept_bytes(engine):
    """The memory that a llama.cpp session of two slots reserves for keys and values, beside the scores of a batch."""
    return engine.load().work_bytes - llama_double.VOCABULARY * 512 * 4


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_llama_cpp_reserves_is_counted_once_per_lane_and_not_again_as_answers_grow(llama_file, monkeypatch, lanes):
    doubled(monkeypatch)
    infos = [LaneInfo(name=f"cpu{number}") for number in range(lanes)]
    engine = make_engine(llama_file[0], infos, llama_file[1])
    first = make_engine(llama_file[0], infos[:1], llama_file[1]).load().work_bytes
    assert engine.load().work_bytes == lanes * first > lanes * CONTEXT * 2
    assert engine.sequence().bytes_per_token == 0
    (result,) = run(engine.open(infos[0]), ITEMS[:1], steps_max=2)
    assert result.state_bytes == 0


@pytest.mark.parametrize(
    ("has_gpu", "lane", "options", "main_gpu", "layers"),
    [
        (True, LaneInfo(), {}, -1, 0),
        (False, LaneInfo(), {}, -1, 0),
        (True, LaneInfo("cuda", device_index=1), {}, 1, 10_000),
        (True, LaneInfo("cuda", device_index=1), {"gpu_layers": 0}, 1, 0),
        (False, LaneInfo("cuda", device_index=1), {"gpu_layers": 0}, -1, 0),
    ],
    ids=["cpu", "cpu alone", "second gpu", "weights on the host", "no gpu in the library"],
)
def test_a_model_lies_on_its_lanes_device_and_on_no_other(
    llama_file, monkeypatch, has_gpu, lane, options, main_gpu, layers
):
    opened, contexts = [], []
    double = doubled(monkeypatch, supports_gpu_offload=lambda: has_gpu)
    load, begin = double.llama_model_load_from_file, double.llama_init_from_model
    double.llama_model_load_from_file = lambda path, settings: opened.append(settings) or load(path, settings)
    double.llama_init_from_model = lambda model, settings: contexts.append(settings) or begin(model, settings)
    engine = make_engine(replace(llama_file[0], options=options), [lane], llama_file[1])
    engine.load()
    engine.open(lane)
    vocabulary, weights = opened
    assert (vocabulary.main_gpu, vocabulary.split_mode) == (-1, 0), "no context of CUDA for a tokenizer"
    assert (weights.main_gpu, weights.split_mode, weights.n_gpu_layers) == (main_gpu, 0, layers)
    assert (vocabulary.use_mmap, weights.use_mmap) == (True, layers == 0), "no second copy beside what lies on the GPU"
    assert contexts[0].offload_kqv == contexts[0].op_offload == (lane.device_kind == "cuda")


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        ({}, 3 * 2 * (16 + 16)),
        ({"attention.key_length": 32, "attention.value_length": 32}, 3 * 2 * (32 + 32)),
        ({"attention.key_length": 24, "attention.value_length": 8}, 3 * 2 * (24 + 8)),
        ({"attention.head_count_kv": None}, 3 * 4 * (16 + 16)),
        ({"attention.head_count_kv": [0, 4, 2]}, (0 + 4 + 2) * (16 + 16)),
    ],
    ids=["by the embedding", "Qwen3, Gemma", "unequal", "one for each head", "layers that differ"],
)
def test_a_token_is_counted_with_what_its_keys_and_values_take(llama_file, monkeypatch, tmp_path, facts, kept):
    doubled(monkeypatch)
    llama_double.write_file(tmp_path / "model.gguf", **facts)
    engine = make_engine(llama_file[0], [LaneInfo()], llama_file[1])
    assert kept_bytes(engine) == CONTEXT * (2 + 1) * 2 * kept, "llama.cpp keeps two bytes for each number"


@pytest.mark.parametrize(
    ("options", "settings", "kept"),
    [
        ({}, (1, 1, -1), (2 + 2) * 3 * 2 * 32),
        ({"type_k": "q8_0", "type_v": "q4_0", "flash_attn": True}, (8, 2, 1), (34 + 18) * 3 * 2 * 32 // 32),
        ({"type_k": "f32", "flash_attn": False}, (0, 1, 0), (4 + 2) * 3 * 2 * 32),
    ],
)
def test_keys_and_values_are_kept_and_counted_as_asked(llama_file, monkeypatch, tmp_path, options, settings, kept):
    asked = []
    double = doubled(monkeypatch)
    inner = double.llama_init_from_model
    monkeypatch.setattr(double, "llama_init_from_model", lambda model, s: asked.append(s) or inner(model, s))
    llama_double.write_file(tmp_path / "model.gguf", **{"attention.key_length": 32, "attention.value_length": 32})
    engine = make_engine(replace(llama_file[0], options=options), [LaneInfo()], llama_file[1])
    engine.load()
    engine.open(LaneInfo())
    assert (asked[0].type_k, asked[0].type_v, asked[0].flash_attn_type) == settings
    assert kept_bytes(engine) == CONTEXT * (2 + 1) * kept


def test_what_cannot_be_kept_is_refused(llama_file, monkeypatch):
    doubled(monkeypatch)
    for options, says in [
        ({"type_k": "q8"}, "did you mean 'q8_0'"),
        ({"type_v": "q8_0", "flash_attn": False}, "flash"),
    ]:
        with pytest.raises(ConfigError, match=says):
            make_engine(replace(llama_file[0], options=options), [LaneInfo()], llama_file[1]).load()


def test_what_llama_cpp_says_of_a_failure_is_in_the_message_once(llama_file, monkeypatch):
    said = []

    def load(path, settings):
        for level, line in said:
            double.log(level, line, None)
        return None

    double = doubled(monkeypatch, model_load_from_file=load)
    said += [(2, b"loading\n"), (4, b"error loading model: unknown model architecture: 'x'\n"), (3, b"careful\n")]
    said += [(4, b"\n"), (4, b"failed to load \xff\n")]
    expected = (
        r"memory for it\. llama.cpp said: error loading model: unknown model architecture: 'x'; failed to load .$"
    )
    for _ in range(2):
        with pytest.raises(EngineError, match=expected):
            make_engine(llama_file[0], [LaneInfo()], llama_file[1]).load()
    said[:] = [(4, b"alloc_tensor_range: failed to allocate CUDA0 buffer of size 9\n")]
    with pytest.raises(OutOfMemory, match="CUDA0 buffer"):
        make_engine(llama_file[0], [LaneInfo()], llama_file[1]).load()
    said.clear()
    with pytest.raises(EngineError, match=r"memory for it$"):
        make_engine(llama_file[0], [LaneInfo()], llama_file[1]).load()


def test_a_step_that_llama_cpp_refuses_fails_the_batch_and_the_next_one_runs(llama_file, monkeypatch):
    double = doubled(monkeypatch)
    engine = make_engine(llama_file[0], [LaneInfo()], llama_file[1])
    engine.load()
    session = engine.open(LaneInfo())
    works = double.llama_decode
    double.llama_decode = lambda context, batch: double.log(4, b"init: failed to find a slot\n", None) or 1
    with pytest.raises(EngineError, match="no room in its memory. llama.cpp said: init: failed to find a slot"):
        run(session, ITEMS[:1])
    double.llama_decode = works
    assert len(tokens(run(session, ITEMS[:1]))[0]) == 9


def test_what_llama_cpp_cannot_do_is_said_with_the_mend(llama_file, monkeypatch, tmp_path):
    doubled(monkeypatch, init_from_model=lambda model, settings: None)
    engine = make_engine(llama_file[0], [LaneInfo()], llama_file[1])
    engine.load()
    with pytest.raises(OutOfMemory, match="options.context"):
        engine.open(LaneInfo())
    with pytest.raises(EngineError, match="GGML_CUDA"):
        make_engine(llama_file[0], [LaneInfo("cuda")], llama_file[1]).load()
    doubled(monkeypatch, model_load_from_file=lambda path, settings: None)
    with pytest.raises(EngineError, match="cannot load"):
        make_engine(llama_file[0], [LaneInfo()], llama_file[1]).load()
    (tmp_path / "model.gguf").write_bytes(b"none")
    with pytest.raises(EngineError, match="model 'chat': .*does not begin with GGUF"):
        make_engine(llama_file[0], [LaneInfo()], llama_file[1]).load()


@pytest.mark.parametrize(
    ("overrides", "architecture"),
    [
        ({"model_has_encoder": lambda model: True}, "t5"),
        ({"model_has_decoder": lambda model: False}, "t5encoder"),
        ({}, "bert"),
    ],
)
def test_a_model_that_is_not_a_decoder_alone_is_refused_before_its_weights_are_read(
    llama_file, monkeypatch, overrides, architecture
):
    header = {"general.architecture": architecture, "bert.attention.causal": "false"}
    read, freed = [], []

    def fact(model, key, found, room):
        found.value = header.get(key.decode(), "").encode()
        return len(found.value) or -1

    def load(path, settings):
        read.append(settings.vocab_only)
        return settings

    doubled(monkeypatch, model_load_from_file=load, model_free=freed.append, model_meta_val_str=fact, **overrides)
    engine = make_engine(llama_file[0], [LaneInfo()], llama_file[1])
    with pytest.raises(EngineError, match=f"'chat'.*model.gguf is of architecture '{architecture}'.*a decoder alone"):
        engine.load()
    assert read == [True] and len(freed) == 1
    with pytest.raises(EngineError, match=architecture):
        engine.count_tokens({"prompt": "x"})


@pytest.mark.parametrize(
    ("architecture", "says"),
    [("t5", "is of architecture 't5'.*a decoder alone"), ("bert", "makes vectors of texts .bert., and writes none")],
)
def test_llama_cpp_says_which_models_are_no_decoder_alone(tmp_path, architecture, says):
    pytest.importorskip("llama_cpp", reason="pip install -e '.[lm-llama]' (builds llama.cpp, about ten minutes)")
    pytest.importorskip("gguf", reason="pip install -e '.[lm-convert]'")
    import lm_models

    file = lm_models.encoder_gguf(str(tmp_path), architecture)
    engine = make_engine(ModelConfig(name="chat", engine="lm", file=file), [LaneInfo()], str(tmp_path))
    with pytest.raises(EngineError, match=says):
        engine.load()


def test_a_library_that_is_missing_is_named_with_its_extra(llama_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    llama_double.forget(monkeypatch)
    with pytest.raises(EngineError, match="edgeserve-runtime.lm-llama"):
        make_engine(llama_file[0], [LaneInfo()], llama_file[1]).load()


# --- the same model on two back ends ----------------------------------------------------------------------------------


def test_a_gguf_file_gives_the_same_scores_on_onnx_runtime_and_llama_cpp(tmp_path):
    pytest.importorskip("gguf", reason="pip install -e '.[lm-convert]'")
    pytest.importorskip("tokenizers", reason="pip install -e '.[lm]'")
    pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")
    pytest.importorskip("llama_cpp", reason="pip install -e '.[lm-llama]' (builds llama.cpp, about ten minutes)")
    import lm_models

    from edgeserve.commands.lm_model.__main__ import convert
    from edgeserve.engines.lm.backend import TokenRow

    directory = str(tmp_path)
    source = os.path.join(directory, lm_models.gguf(directory))
    convert(source, os.path.join(directory, "out.onnx"), "float32", 64)
    scores = []
    for file in ("tiny.gguf", "out.onnx"):
        engine = make_engine(
            ModelConfig(name="chat", engine="lm", file=file, options={"context": 64}), [LaneInfo()], directory
        )
        engine.load()
        backend, tokenizer = engine._backend, engine.language("").tokenizer
        given = tokenizer.encode("the other 12 themes<|im_end|>", special=True)
        session = backend.open(LaneInfo(), 2)
        scores.append(
            (
                given,
                list(tokenizer.stops),
                tokenizer.chat_template,
                np.array(session.prefill([TokenRow(1, given, 0)])[0]),
                np.array(session.decode([TokenRow(1, [7], len(given))])[0]),
            )
        )
        session.close()
        engine.unload()
    assert scores[0][:3] == scores[1][:3]
    for ours, theirs in zip(scores[0][3:], scores[1][3:]):
        np.testing.assert_allclose(ours, theirs, atol=0.02)  # llama.cpp keeps float16 keys and values


# --- transformers on a GPU --------------------------------------------------------------------------------------------


@pytest.fixture
def on_gpu(tmp_path, monkeypatch):
    """(torch's double, an engine on it, its lane and its network)"""
    file = saved_llama.save(str(tmp_path))
    import torch_cuda_double
    import transformers

    networks, kind = [], transformers.AutoModelForCausalLM
    read = kind.from_pretrained
    monkeypatch.setattr(
        kind, "from_pretrained", lambda *args, **named: networks.append(read(*args, **named)) or networks[0]
    )

    modules = [f"edgeserve.engines.lm.transformers_{name}" for name in ("backend", "rows")]
    double = torch_cuda_double.installed(monkeypatch, *modules)
    lane = LaneInfo("cuda", name="gpu0", clock_ns=lambda: 1, common={})
    engine = make_engine(ModelConfig(name="chat", engine="lm", file=file, batch=(1, 2)), [lane], str(tmp_path))
    engine.load()
    yield double, engine, lane, networks
    engine.unload()


def each_call(networks, monkeypatch, before):
    """Call ``before`` where the network is called."""
    network = networks[0]
    inner = network.forward
    monkeypatch.setattr(network, "forward", lambda **inputs: before(inputs) or inner(**inputs))


def test_transformers_compute_on_the_lanes_stream(on_gpu, monkeypatch):
    double, engine, lane, networks = on_gpu
    streams = []
    session = engine.open(lane)
    each_call(networks, monkeypatch, lambda inputs: streams.append(list(double.current)))
    assert len(tokens(run(session, ITEMS[:1]))[0]) == 9
    assert streams == [[lane.common["cuda"].handle]] * len(streams)
    assert len(streams) >= 9


def test_keys_and_values_are_not_copied_between_the_steps_of_one_company(on_gpu, monkeypatch):
    _, engine, lane, networks = on_gpu
    caches = []
    session = engine.open(lane)
    each_call(networks, monkeypatch, lambda inputs: caches.append(inputs.get("cache", inputs.get("past_key_values"))))
    run(session, [{**item, "max_tokens": 6} for item in ITEMS[:2]])
    assert len({id(cache) for cache in caches[-5:]}) == 1, "the steps after the prompts, of both together"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered", DeviceLost),
        ("CUDA error: out of memory", OutOfMemory),
        ("The size of tensor a must match", EngineError),
    ],
)
def test_a_device_that_fails_under_transformers_is_said_to_be_the_reason(on_gpu, monkeypatch, text, kind):
    _, engine, lane, networks = on_gpu
    session = engine.open(lane)
    expected = tokens(run(session, ITEMS[:2]))
    states = [result.state for result in run(session, ITEMS[:2], steps_max=3)]
    fails = [True]

    def fail(inputs):
        if fails:
            fails.clear()
            raise RuntimeError(text)

    each_call(networks, monkeypatch, fail)
    with pytest.raises(EngineError, match="model 'chat'") as caught:
        run(session, ITEMS[:2], states)
    assert type(caught.value) is kind
    assert tokens(run(session, ITEMS[:2])) == expected, "what the failed step left behind changes no answer"


def test_an_unloaded_model_of_transformers_gives_its_memory_back_without_a_collection(on_gpu, monkeypatch):
    double, engine, lane, networks = on_gpu
    run(engine.open(lane), ITEMS[:1])
    weights = [weakref.ref(weight) for weight in networks.pop().parameters()]
    gc.disable()
    try:
        engine.unload()
        assert [weight for weight in weights if weight() is not None] == []
    finally:
        gc.enable()
    assert double.emptied == 1, "else the memory stays torch's"
