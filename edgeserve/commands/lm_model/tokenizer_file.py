"""Writes a byte-level BPE vocabulary as the ``tokenizer.json`` of the ``tokenizers`` library."""

from __future__ import annotations

from typing import Any, Callable, Dict

from edgeserve.commands.lm_model.gguf_file import Vocabulary
from edgeserve.errors import ConfigError


def write_tokenizer(path: str, vocabulary: Vocabulary) -> None:
    """Raises :class:`ConfigError` for a way of splitting that is not known here."""
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            f"writing {path} needs a package that cannot be imported ({error}); "
            "pip install 'edgeserve-runtime[lm-convert]'"
        ) from None
    splittings: Dict[str, Callable[[Any], Any]] = {"smollm": _digits_and_words, "gpt-2": _words, "default": _words}
    if vocabulary.splitting not in splittings:
        raise ConfigError(
            f"the model splits text as {vocabulary.splitting!r}; known are {', '.join(splittings)}. The "
            "back end llama.cpp runs the GGUF file as it is"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={text: number for number, text in enumerate(vocabulary.tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = splittings[vocabulary.splitting](tokenizers.pre_tokenizers)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for _, text in sorted(vocabulary.control.items())]
    )
    tokenizer.save(path)


def _words(kinds: Any) -> Any:
    """GPT-2's rule: words with the space before them, numbers, runs of other characters."""
    return kinds.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_and_words(kinds: Any) -> Any:
    """SmolLM's: the same, and each digit is alone."""
    return kinds.Sequence([kinds.Digits(individual_digits=True), _words(kinds)])
