"""A Llama of transformers that was never trained, made on the spot."""

from __future__ import annotations

import pytest

from edgeserve.engines.lm.tokenizers import byte_characters


def save(directory: str, template: str = "", adds_first: bool = False) -> str:
    """Save the model with a byte-level tokenizer; the name of its file in the directory."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[lm-torch]'")
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[lm-torch]'")
    tokenizers = pytest.importorskip("tokenizers", reason="pip install -e '.[lm]'")
    numbers = byte_characters()
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.5,
        bos_token_id=256,
        eos_token_id=257,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    opened = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=numbers, merges=[]))
    opened.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    opened.decoder = tokenizers.decoders.ByteLevel()
    opened.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    if adds_first:
        opened.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 256)]
        )
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=opened, bos_token="<|im_start|>", eos_token="<|im_end|>", chat_template=template or None
    )
    wrapped.save_pretrained(directory)
    return "config.json"
