"""Models with an encoder, on transformers: greedy answers are those of ``model.generate``, alone and in any company."""

from __future__ import annotations

import importlib

import pytest
from serving import served, wait_until

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo
from edgeserve.errors import EngineError

torch = pytest.importorskip("torch", reason="pip install -e '.[lm-torch]'")
transformers = pytest.importorskip("transformers", reason="pip install -e '.[lm-torch]'")
tokenizers = pytest.importorskip("tokenizers", reason="pip install -e '.[lm]'")

END, CONTEXT = 1, 48
HAS_ONE_CACHE = hasattr(importlib.import_module("transformers.models.bart.modeling_bart"), "EncoderDecoderCache")
OPTIONAL = {"max_tokens": {"dtype": "any", "optional": True}}
PROMPTS = ("Hello there", "x", "The quick brown fox jumps over dogs", "the then")


def words():
    """T5's kind of vocabulary: words begin with a mark, and ``</s>`` ends each text."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁the", -3.0), ("he", -3.0)]
    letters = "abcdefghijklmnopqrstuvwxyzTHQ"
    opened = tokenizers.Tokenizer(
        tokenizers.models.Unigram([*pieces, *[(letter, -4.0) for letter in letters]], unk_id=2)
    )
    opened.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    opened.decoder = tokenizers.decoders.Metaspace()
    opened.add_special_tokens(["<pad>", "</s>", "<unk>"])
    opened.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    return opened, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def letters():
    """BART's: bytes, and a token before and behind each text."""
    from edgeserve.engines.lm.tokenizers import byte_characters

    numbers = {"<s>": 0, "</s>": END, **{letter: 2 + byte for letter, byte in byte_characters().items()}}
    opened = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=numbers, merges=[]))
    opened.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    opened.decoder = tokenizers.decoders.ByteLevel()
    opened.add_special_tokens(["<s>", "</s>"])
    opened.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", END)]
    )
    return opened, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}


def network(kind):
    if kind == "t5":
        config = transformers.T5Config(
            vocab_size=40,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            n_positions=CONTEXT,
            decoder_start_token_id=0,
            eos_token_id=END,
            pad_token_id=0,
        )
        return transformers.T5ForConditionalGeneration(config)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=258,
        max_position_embeddings=CONTEXT,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        bos_token_id=0,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=None,
        init_std=0.4,
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration" if kind != "Marian" else "MarianMTModel")(config)
    model.generation_config.forced_bos_token_id = 0 if kind == "Bart" else None
    return model


@pytest.mark.skipif(not HAS_ONE_CACHE, reason="SwitchTransformers works in transformers before 4.52")
def test_a_network_that_fails_in_each_step_is_refused_with_its_name_when_it_is_loaded(tmp_path):
    config = transformers.SwitchTransformersConfig(
        vocab_size=40,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        num_experts=2,
        decoder_start_token_id=0,
        eos_token_id=END,
        pad_token_id=0,
    )
    transformers.SwitchTransformersForConditionalGeneration(config).save_pretrained(str(tmp_path))
    opened, names = words()
    transformers.PreTrainedTokenizerFast(tokenizer_object=opened, **names).save_pretrained(str(tmp_path))
    options = {"context": 40}
    model = ModelConfig(name="seq", engine="lm", file="config.json", batch=(1,), options=options)
    with pytest.raises(EngineError, match="SwitchTransformersForConditionalGeneration cannot be served: .*T5, BART"):
        make_engine(model, [LaneInfo()], str(tmp_path)).load()


@pytest.mark.skipif(HAS_ONE_CACHE, reason="this transformers has one form of cache for every decoder")
def test_a_network_of_another_cache_is_refused_with_the_version_that_serves_it(tmp_path):
    network("Bart").save_pretrained(str(tmp_path))
    opened, names = letters()
    transformers.PreTrainedTokenizerFast(tokenizer_object=opened, **names).save_pretrained(str(tmp_path))
    with pytest.raises(EngineError, match=r"with transformers 4\.52 or later; this is 4"):
        make_engine(ModelConfig(name="seq", engine="lm", file="config.json"), [LaneInfo()], str(tmp_path)).load()


@pytest.fixture(scope="module", params=["t5", "Bart", "Marian"])
def folder(request, tmp_path_factory):
    if request.param != "t5" and not HAS_ONE_CACHE:
        pytest.skip("BART's kind needs transformers 4.52 or later")
    directory = str(tmp_path_factory.mktemp(request.param))
    torch.manual_seed(3)
    model = network(request.param)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if request.param == "t5" else 1.0)
    model.save_pretrained(directory)
    opened, names = words() if request.param == "t5" else letters()
    transformers.PreTrainedTokenizerFast(tokenizer_object=opened, **names).save_pretrained(directory)
    return directory


@pytest.fixture
def engine(folder):
    config = ModelConfig(name="seq", engine="lm", file="config.json", batch=(1, 2, 4), options={"max_tokens": 40})
    engine = make_engine(config, [LaneInfo()], folder)
    engine.load()
    yield engine
    engine.unload()


def expected(folder, prompt, count):
    """The library's own answer: its text and tokens."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    given = opened(prompt, return_tensors="pt", return_token_type_ids=False)
    begin = 2 if model.generation_config.forced_bos_token_id is not None else 1
    with torch.inference_mode():
        found = model.generate(**given, max_new_tokens=count + begin - 1, do_sample=False, num_beams=1)[0]
    tokens = found[begin:].tolist()
    text = opened.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text, tokens[: tokens.index(END)] if END in tokens else tokens


def items(**more):
    return [{"prompt": prompt, "max_tokens": length, **more} for prompt, length in zip(PROMPTS, (9, 17, 5, 12))]


def run(session, items, states=(), **settings):
    return session.launch(Batch(items, len(items), states, **settings)).result()


def answers(results):
    return [(result.outputs["text"], result.outputs["tokens"].tolist()) for result in results]


def test_greedy_answers_are_those_of_generate_alone_and_with_joins_and_leaves(engine, folder):
    session = engine.open(LaneInfo(name="cpu0"))
    alone = [answers(run(session, [item]))[0] for item in items()]
    assert alone == [expected(folder, prompt, length) for prompt, length in zip(PROMPTS, (9, 17, 5, 12))]
    assert len({tuple(tokens) for _, tokens in alone}) == 4
    assert answers(run(session, items())) == alone
    some = items()
    first = run(session, some[:2], steps_max=3)
    mixed = run(session, [some[2], some[1], some[3]], [None, first[1].state, None], steps_max=4)
    first[0].state.release()
    states = [first[0].state, mixed[1].state, mixed[0].state, mixed[2].state]
    assert answers(run(session, some, states)) == alone
    begun = run(session, some[:2], steps_max=4)
    other = engine.open(LaneInfo(name="cpu1"))
    assert answers(run(other, some[:2], [result.state for result in begun])) == alone[:2]


def test_a_server_answers_streams_and_stops_beside_an_app_of_another_kind(folder):
    tables = {
        "lane": {"cpu0": {}},
        "model": {
            "seq": {"engine": "lm", "file": "config.json", "batch": [1, 2, 4], "options": {"max_tokens": 40}},
            "frames": {"engine": "synthetic", "expected": {"1": "2ms"}},
        },
        "app": {
            "write": {"model": "seq", "slo": "60s", "inputs": {"prompt": {"dtype": "text"}, **OPTIONAL}},
            "camera": {"model": "frames", "slo": "10s", "class": "critical"},
        },
    }
    wanted = {prompt: expected(folder, prompt, length)[0] for prompt, length in zip(PROMPTS, (9, 17, 5, 12))}
    with served(tables, folder) as (runtime, client):
        frames = [client.submit("camera", {}) for _ in range(10)]
        futures = [client.submit("write", item) for item in items()]
        gone = client.submit("write", {"prompt": PROMPTS[0], "max_tokens": 40})
        gone.cancel()
        with client.stream("write", items()[1]) as stream:
            pieces = [piece["text"] for piece in stream]
        assert [future.result(60)["text"] for future in futures] == list(wanted.values())
        assert "".join(pieces) == wanted[PROMPTS[1]] and len(pieces) > 1
        for frame in frames:
            frame.result(60)
        wait_until(lambda: runtime.stats()["apps"]["write"]["open"] == 0)
        found = runtime.stats()["apps"]["write"]
    assert found["policy"] == "plan"
