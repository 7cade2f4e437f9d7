"""Reads a GGUF file of a Llama-like model: its sizes, its weights as float32, its vocabulary.

The file format, and what its quantised blocks stand for, are the ``gguf`` package's (of the llama.cpp project).
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.commands.lm_model.graph import HEAD_SIZE_STEP, Shape
from edgeserve.errors import ConfigError

ARCHITECTURES = ("llama",)
"""The models that the graph can express: no biases, no scaled rotations, every layer alike."""

CONTROL = 3
"""The kind of a token that controls and is no text (``tokenizer.ggml.token_type``)."""


END_NAMES = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<|end|>", "<end_of_turn>")
"""Control tokens that end an answer whether or not the file lists them: a model may write any of them."""


class Vocabulary(NamedTuple):
    """``tokens`` by number, ``merges`` in their order, the names of control tokens, and how text is cut into words
    before merges (``splitting``: GGUF's ``tokenizer.ggml.pre``)."""

    tokens: List[str]
    merges: List[str]
    control: Dict[int, str]
    splitting: str
    first: List[int]
    stops: List[int]
    chat_template: str
    bos_token: str
    eos_token: str


class GgufModel:
    """One file, mapped into memory. Tensors become float32 when they are asked for."""

    def __init__(self, path: str) -> None:
        try:
            import gguf
        except ImportError as error:
            raise ConfigError(
                f"reading {path} needs a package that cannot be imported ({error}); "
                "pip install 'edgeserve-runtime[lm-convert]'"
            ) from None
        self._dequantise = gguf.quants.dequantize
        try:
            reader = gguf.GGUFReader(path)
        except Exception as error:
            raise ConfigError(f"{path} cannot be read as GGUF: {error}") from error
        self._path = path
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        kind = self._value("general.architecture")
        if kind not in ARCHITECTURES:
            raise ConfigError(
                f"{path} is a model of architecture {kind!r}; the graph can be written for "
                f"{', '.join(ARCHITECTURES)}. The back end llama.cpp runs the file as it is"
            )
        self._check(path)

    def shape(self, context: int = 0) -> Shape:
        """The sizes; ``context`` bounds the tokens of a sequence (0: as the model was trained)."""
        heads = int(self._value("llama.attention.head_count"))
        hidden = int(self._value("llama.embedding_length"))
        trained = int(self._value("llama.context_length"))
        if context > trained:
            raise ConfigError(
                f"--context {context}: {self._path} was trained with {trained} tokens; choose at most that"
            )
        return Shape(
            layers=int(self._value("llama.block_count")),
            hidden=hidden,
            heads=heads,
            kv_heads=int(self._value("llama.attention.head_count_kv", heads)),
            head_size=int(self._value("llama.attention.key_length", hidden // heads)),
            feed_forward=int(self._value("llama.feed_forward_length")),
            vocabulary=len(self._tokens()),
            context=context or trained,
            rope_base=float(self._value("llama.rope.freq_base", 10_000.0)),
            epsilon=float(self._value("llama.attention.layer_norm_rms_epsilon")),
            tied="output.weight" not in self._tensors,
        )

    def tensor(self, name: str) -> NDArray[Any]:
        """One tensor as float32, matrices as [out, in]."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ConfigError(f"{self._path} has no tensor {name!r}; it is not a complete model of its architecture")
        found: NDArray[Any] = self._dequantise(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        return found

    def vocabulary(self) -> Vocabulary:
        """The tokens of byte-level BPE; other kinds are refused."""
        kind = self._value("tokenizer.ggml.model")
        if kind != "gpt2":
            raise ConfigError(
                f"{self._path} has a vocabulary of kind {kind!r}; only byte-level BPE ('gpt2') can be "
                "written. The back end llama.cpp runs the file as it is"
            )
        tokens, kinds = self._tokens(), self._value("tokenizer.ggml.token_type")
        end = int(self._value("tokenizer.ggml.eos_token_id"))
        control = {number: tokens[number] for number, kind in enumerate(kinds) if kind == CONTROL}
        stops = {
            end,
            int(self._value("tokenizer.ggml.eot_token_id", end)),
            *(number for number, text in control.items() if text in END_NAMES),
        }
        begins = bool(self._value("tokenizer.ggml.add_bos_token", False))  # llama.cpp's default for the splittings here
        first = [int(self._value("tokenizer.ggml.bos_token_id"))] if begins else []
        return Vocabulary(
            tokens,
            list(self._value("tokenizer.ggml.merges")),
            control,
            str(self._value("tokenizer.ggml.pre", "default")),
            first,
            sorted(stops),
            str(self._value("tokenizer.chat_template", "")),
            control.get(int(self._value("tokenizer.ggml.bos_token_id", -1)), ""),
            control.get(end, ""),
        )

    def _tokens(self) -> List[str]:
        tokens: List[str] = self._value("tokenizer.ggml.tokens")
        return tokens

    def _value(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise ConfigError(f"{self._path} does not say {key!r}; it is not a complete GGUF model")
        return default

    def _check(self, path: str) -> None:
        """Refuse what the graph cannot express."""
        shape = self.shape()
        biases = [name for name in self._tensors if name.endswith(".bias")]
        scaled = [
            key
            for key in self._fields
            if key.startswith("llama.rope.scaling") and key.endswith("type") and self._value(key) != "none"
        ] + [name for name in self._tensors if name == "rope_freqs.weight"]
        rotated = int(self._value("llama.rope.dimension_count", shape.head_size))
        if biases or scaled or rotated != shape.head_size or shape.head_size % HEAD_SIZE_STEP:
            why = (
                f"biases ({biases[0]}, ...)"
                if biases
                else f"scaled rotations ({scaled[0]})"
                if scaled
                else f"heads of {shape.head_size} numbers, {rotated} of them rotated"
            )
            raise ConfigError(
                f"{path} has {why}, which the graph cannot express. The back end llama.cpp runs the file as it is"
            )
