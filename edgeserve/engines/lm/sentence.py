"""The ``sentence`` engine: a vector for each text, by a sentence model on ONNX Runtime or llama.cpp.

A file ``.onnx`` is a model as ``optimum`` and ``sentence-transformers`` export it, with ``tokenizer.json`` beside it:
inputs ``input_ids`` and ``attention_mask`` (and ``token_type_ids``), and an output with a vector per text or per token.
A file ``.gguf`` is read by llama.cpp. Options: ``tokenizer`` (the file's path), ``tokens_max`` (of a text; left out:
512), ``truncate`` (longer texts are cut; left out: they are refused), ``pooling`` (``"mean"``, ``"cls"`` or ``"last"``:
a text's vector from those of its tokens; left out: the mean, and of a GGUF file as it says), ``normalize`` (to length
1, the default), ``threads``.
"""

from __future__ import annotations

import importlib
import itertools
import os
from typing import Any, Dict, List, Mapping, Protocol, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.files import resolve_path
from edgeserve.config.model_files import model_path
from edgeserve.config.schema import ModelConfig
from edgeserve.config.text_files import read_text
from edgeserve.engines.base import (
    Batch,
    Engine,
    Footprint,
    LaneInfo,
    OutputType,
    Result,
    Values,
    check_count,
    own_failure,
    with_failures,
)
from edgeserve.engines.gguf import CAUSAL, EMBEDS, POOLING, check_kind, read_header
from edgeserve.engines.lm.generation import EXAMPLE_TEXT, TOKEN_CHARS_MAX
from edgeserve.engines.options import Options
from edgeserve.errors import NOT_IMPORTED, ConfigError, EngineError, WrongInput, nearest

KNOWN_OPTIONS = ("tokenizer", "tokens_max", "truncate", "pooling", "normalize", "threads")
TOKENS_MAX = 512
"""The number of tokens that most sentence models were trained with."""

POOLINGS = {"mean": 1, "cls": 2, "last": 3}
"""Name -> llama.cpp's ``llama_pooling_type``."""

AS_THE_FILE = -1


class TextEncoder(Protocol):
    """The model that computes vectors: of a text of ``tokens`` each, in one run."""

    def tokens_of(self, text: str) -> List[int]:
        """The tokens of a text, with the ones that begin and end it."""

    def vectors(self, rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        """float32 ``[rows, size]``."""

    def close(self) -> None:
        """Give the memory back."""


class SentenceEngine(Engine):
    """One sentence model. An item has one text, of any name; its result has ``embedding`` (float32, one axis) and
    ``prompt_tokens``."""

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        self._model = model
        self._directory = directory
        self._is_gguf = model.file.lower().endswith(".gguf")
        if not self._is_gguf and not model.file.lower().endswith(".onnx"):
            raise ConfigError(
                f"[model.{model.name}] file = {model.file!r}: expected a name that ends in .onnx or .gguf"
            )
        if any(lane.device_kind != "cpu" for lane in lanes):
            raise ConfigError(f"[model.{model.name}]: engine 'sentence' runs on a CPU; give it lanes of one")
        self._tokenizer = options.text("tokenizer")
        self._tokens_max = options.integer("tokens_max", TOKENS_MAX, 1)
        self._truncates = options.boolean("truncate", False)
        self._pooling = options.text("pooling")
        if self._pooling and self._pooling not in POOLINGS:
            raise ConfigError(f"{options.where('pooling')} = {self._pooling!r}{nearest(self._pooling, POOLINGS)}")
        self._normalizes = options.boolean("normalize", True)
        self._threads = options.integer("threads", max([lane.threads for lane in lanes], default=1), 1, 1024)
        self._flush = any(lane.flush for lane in lanes)
        self._size_max = max(model.batch)
        self.process_by_default = self._is_gguf and any(lane.apps > 1 for lane in lanes)
        self._encoder: Any = None
        self._size = 0

    def check(self) -> None:
        path = model_path(self._model, self._directory)
        if self._is_gguf:
            check_kind(path, EMBEDS, self._model.name)
        for name in ("llama_cpp",) if self._is_gguf else ("onnxruntime", "tokenizers"):
            try:
                importlib.import_module(name)
            except NOT_IMPORTED as error:
                raise self._lacks(error) from None

    def _lacks(self, error: Exception) -> EngineError:
        extra = "lm-llama" if self._is_gguf else "lm"
        return EngineError(
            f"model {self._model.name!r}: its library cannot be imported ({error}); "
            f"pip install 'edgeserve-runtime[{extra}]'"
        )

    def load(self) -> Footprint:
        path = model_path(self._model, self._directory)
        if self._encoder is None:
            encoder = self._opened(path)
            self._size = encoder.vectors([encoder.tokens_of("x")]).shape[1]
            self._encoder = encoder
        return Footprint(os.path.getsize(path))

    def _opened(self, path: str) -> TextEncoder:
        name = self._model.name
        try:
            if self._is_gguf:
                from edgeserve.engines.lm.llama_sentences import LlamaEncoder

                check_kind(path, EMBEDS, name)
                tokens = self._tokens_max * self._size_max
                return LlamaEncoder(name, path, tokens, self._size_max, self._llama_pooling(path), self._threads)
            beside = os.path.join(os.path.dirname(path), "tokenizer.json")
            tokenizer = resolve_path(self._tokenizer, self._directory) if self._tokenizer else beside
            return OnnxEncoder(name, path, tokenizer, self._pooling or "mean", self._threads, self._flush)
        except ImportError as error:
            raise self._lacks(error) from None

    def _llama_pooling(self, path: str) -> int:
        """The pooling of the configuration, else of the file; for an encoder without either, the mean."""
        header = read_header(path)
        architecture = header.get("general.architecture")
        says = f"{architecture}.{POOLING}" in header or header.get(f"{architecture}.{CAUSAL}") is not False
        return POOLINGS[self._pooling] if self._pooling else AS_THE_FILE if says else POOLINGS["mean"]

    def unload(self) -> None:
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.close()

    def example(self) -> Values:
        return {"text": EXAMPLE_TEXT}

    def outputs(self) -> Mapping[str, OutputType]:
        return {"embedding": OutputType("float32", (self._size,)), "prompt_tokens": OutputType("int32", ())}

    def run(self, batch: Batch) -> List[Result]:
        encoder = self._encoder
        if encoder is None:
            raise EngineError(f"model {self._model.name!r} is not loaded; call load() before it is used")
        rows: List[List[int]] = []
        failed: Dict[int, Exception] = {}
        for index, item in enumerate(batch.items):
            try:
                rows.append(self._tokens(encoder, item))
            except BaseException as error:  # noqa: BLE001 it is this item's
                failed[index] = own_failure(self._model.name, error)
        vectors = encoder.vectors(rows) if rows else ()
        check_count(vectors, len(rows), f"model {self._model.name!r}: its encoder")
        results = []
        for row, vector in zip(rows, vectors):
            found = vector / max(float(np.linalg.norm(vector)), 1e-12) if self._normalizes else vector
            results.append(Result({"embedding": found.astype(np.float32), "prompt_tokens": np.int32(len(row))}))
        return with_failures(results, failed)

    def _tokens(self, encoder: TextEncoder, item: Values) -> List[int]:
        texts = [value.item() if isinstance(value, np.ndarray) and not value.ndim else value for value in item.values()]
        if len(texts) != 1 or not isinstance(texts[0], str):
            raise WrongInput(
                f"model {self._model.name!r}: got {', '.join(sorted(item)) or 'no input'}; expected one input, a text"
            )
        try:
            texts[0].encode()
        except UnicodeError as error:
            raise WrongInput(f"model {self._model.name!r}: the text has half of a character ({error})") from None
        chars_max = self._tokens_max * TOKEN_CHARS_MAX
        if len(texts[0]) > chars_max and not self._truncates:
            raise WrongInput(
                f"model {self._model.name!r}: the text has {len(texts[0])} characters, at most {chars_max} are read, "
                f"{TOKEN_CHARS_MAX} for each of the {self._tokens_max} tokens that fit; send parts of it, or set "
                f"[model.{self._model.name}] options.truncate = true"
            )
        tokens = encoder.tokens_of(texts[0][:chars_max])
        if len(tokens) > self._tokens_max and not self._truncates:
            raise WrongInput(
                f"model {self._model.name!r}: the text has {len(tokens)} tokens, at most {self._tokens_max} fit; send "
                f"parts of it, or set [model.{self._model.name}] options.tokens_max as far as the model allows, or "
                "truncate = true"
            )
        if len(tokens) > self._tokens_max:
            end = _common_end(encoder.tokens_of(""), tokens)[-self._tokens_max :]
            tokens = [*tokens[: self._tokens_max - len(end)], *end]
        if not tokens:
            raise WrongInput(f"model {self._model.name!r}: the text has no tokens")
        return tokens


class OnnxEncoder:
    """A graph on ONNX Runtime, with the ``tokenizers`` library."""

    def __init__(self, model: str, path: str, tokenizer: str, pooling: str, threads: int, flush: bool) -> None:
        import onnxruntime
        import tokenizers

        from edgeserve.engines.onnx_failures import not_loaded
        from edgeserve.engines.onnx_settings import OnnxThreads, making, session_options

        own = OnnxThreads(threads, flush=flush)
        try:
            self._session = making(
                own,
                lambda: onnxruntime.InferenceSession(path, session_options(own), providers=["CPUExecutionProvider"]),
            )
        except Exception as error:  # ONNX Runtime raises types of its own, one per status code
            raise EngineError(f"model {model!r}: {path} cannot be loaded: {not_loaded(path, error)}") from error
        self._names = [each.name for each in self._session.get_inputs()]
        if "input_ids" not in self._names or not set(self._names) <= {"input_ids", "attention_mask", "token_type_ids"}:
            raise EngineError(
                f"model {model!r}: {path} takes {', '.join(self._names)}; expected input_ids, attention_mask and "
                "token_type_ids, as optimum and sentence-transformers export them"
            )
        self._output = self._chosen(model)
        self._pooling = pooling
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(read_text(tokenizer))
        except Exception as error:
            raise EngineError(
                f"model {model!r}: the tokenizer {tokenizer} cannot be read: {error}; lay the model's tokenizer.json "
                f"beside its file, or name it by [model.{model}] options.tokenizer"
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def _chosen(self, model: str) -> str:
        """An output with a vector per text, else the first with one per token."""
        ranks = {each.name: len(each.shape or ()) for each in self._session.get_outputs()}
        for rank in (2, 3):
            for name, found in ranks.items():
                if found == rank and not name.startswith(("pooler", "logits")):
                    return str(name)
        raise EngineError(f"model {model!r}: outputs {', '.join(ranks)}; expected a vector per text or per token")

    def tokens_of(self, text: str) -> List[int]:
        tokens: List[int] = self._tokenizer.encode(text).ids
        return tokens

    def vectors(self, rows: Sequence[Sequence[int]]) -> NDArray[Any]:
        longest = max([len(row) for row in rows])
        ids, mask = (np.zeros((len(rows), longest), np.int64) for _ in range(2))
        for place, row in enumerate(rows):
            ids[place, : len(row)], mask[place, : len(row)] = row, 1
        known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (found,) = self._session.run([self._output], {name: known[name] for name in self._names})
        vectors = np.asarray(found, np.float32)
        return vectors if vectors.ndim == 2 else pooled(vectors, mask, self._pooling)

    def close(self) -> None:
        """Its memory goes with the last who uses it."""


def _common_end(tokens: List[int], others: List[int]) -> List[int]:
    """The tokens with which both end: of an empty text and another one, the ones at every text's end."""
    pairs = zip(reversed(tokens), reversed(others))
    count = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return tokens[len(tokens) - count :]


def pooled(vectors: NDArray[Any], mask: NDArray[Any], pooling: str) -> NDArray[Any]:
    """One vector per text from ``[texts, tokens, size]``: the mean of its tokens, or the first, or the last one."""
    if pooling == "cls":
        return np.asarray(vectors[:, 0])
    if pooling == "last":
        return np.asarray(vectors[np.arange(len(vectors)), mask.sum(1) - 1])
    weights = mask[:, :, None].astype(np.float32)
    return np.asarray((vectors * weights).sum(1) / weights.sum(1))
