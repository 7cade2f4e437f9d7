"""Constrained decoding: which tokens may follow, so that an answer is JSON, fits a schema, an expression or a grammar.

The library ``llguidance`` compiles what is asked for and says before each token which ones may come. What it compiled
is kept for the next answers of the model; an answer's state is made again from its tokens wherever it goes on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
from collections import OrderedDict
from typing import Any, List, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.lm.backend import Tokenizer
from edgeserve.errors import EngineError, WrongInput

SOURCE_CHARS_MAX = 65_536
"""Of a schema, an expression or a grammar: what compiling takes grows with it, and the lane waits for it."""

COMPILED_MAX = 32
"""Forms that are kept compiled, per model."""

JSON_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,16})?"}
"""White space between the parts of JSON. Without a bound a small model may write spaces until its answer is full."""

TYPES = ("text", "json_object", "json_schema", "regex", "grammar")


def grammar_of(response_format: Mapping[str, Any]) -> str:
    """The library's grammar for a ``response_format`` as in OpenAI's API (``text``, ``json_object``, ``json_schema``),
    or ``{"type": "regex", "regex": ...}``, or ``{"type": "grammar", "grammar": ...}`` in Lark's notation; empty for
    ``text``. Raises :class:`WrongInput`; whether the schema itself is one shows :meth:`Grammars.compile`."""
    kind = response_format.get("type")
    if kind == "text":
        return ""
    if kind == "json_object":
        return json_grammar({"type": "object"})
    if kind == "json_schema":
        about = response_format.get("json_schema")
        schema = about.get("schema") if isinstance(about, dict) else None
        if not isinstance(schema, (dict, bool)):
            raise WrongInput("response_format.json_schema.schema: expected a JSON schema")
        return json_grammar(schema)
    if kind in ("regex", "grammar"):
        source = response_format.get(kind)
        if not isinstance(source, str) or not 0 < len(source) <= SOURCE_CHARS_MAX:
            raise WrongInput(f"response_format.{kind}: expected a text of 1 to {SOURCE_CHARS_MAX} characters")
        if kind == "grammar":
            return lark_grammar(source)
        grammar: str = _library().LLMatcher.grammar_from_regex(source)
        return grammar
    raise WrongInput(f"response_format.type is {str(kind)[:40]!r}; expected one of {', '.join(TYPES)}")


def json_grammar(schema: Any) -> str:
    """The grammar of JSON that fits a schema."""
    text = json.dumps(schema)
    if len(text) > SOURCE_CHARS_MAX:
        raise WrongInput(f"a JSON schema of {len(text)} characters; at most {SOURCE_CHARS_MAX} are compiled")
    grammar: str = _library().LLMatcher.grammar_from_json_schema(text, defaults=JSON_OPTIONS)
    return grammar


def json_grammar_rule(schema: Mapping[str, Any]) -> str:
    """The same as the right side of a rule in Lark's notation."""
    text = json.dumps({"x-guidance": JSON_OPTIONS, **schema})
    if len(text) > SOURCE_CHARS_MAX:
        raise WrongInput(f"the JSON schemas of the tools have {len(text)} characters; at most {SOURCE_CHARS_MAX} do")
    return f"%json {text}"


def lark_grammar(source: str) -> str:
    """The grammar of rules in Lark's notation."""
    grammar: str = _library().LLMatcher.grammar_from_lark(source)
    return grammar


class Grammars:
    """What is compiled for one model. Any thread."""

    def __init__(self, model: str, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokens: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def prepare(self) -> None:
        """Read the vocabulary (150 ms of 49,000 tokens), where the library is there: not while a lane waits for it. A
        vocabulary that the library does not take keeps no model from being served: it is refused when asked for."""
        if importlib.util.find_spec("llguidance") is not None:
            with self._lock, contextlib.suppress(WrongInput):
                self._read()

    def _read(self) -> None:
        if self._tokens is None:
            try:
                self._tokens = _vocabulary(self._tokenizer, self._vocabulary)
            except WrongInput:
                raise
            except Exception as error:  # the library's, which has no type of its own
                raise WrongInput(
                    f"model {self._model!r}: no answer can be held to a form, since llguidance does not take the "
                    f"model's vocabulary ({error})"
                ) from error

    def compile(self, grammar: str) -> Any:
        """The matcher of a new answer. Raises :class:`WrongInput` with the library's reason."""
        with self._lock:
            self._read()
            made = self._compiled.get(grammar)
            if made is None:
                made = _library().LLMatcher(self._tokens, grammar, log_level=0)
                if made.is_error():
                    raise WrongInput(
                        f"model {self._model!r}: no answer can be held to what was asked for: {_reason(made)}"
                    )
                self._compiled[grammar] = made
                if len(self._compiled) > COMPILED_MAX:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar)
            return made.deep_copy()

    def begun(self, grammar: str, answer: Sequence[int]) -> Constraint:
        """The constraint of an answer with these tokens so far."""
        matcher = self.compile(grammar)
        if answer and not matcher.consume_tokens(list(answer)):
            raise EngineError(f"the answer so far does not fit what was asked for: {_reason(matcher)}")
        return Constraint(matcher)


class Constraint:
    """What one answer may say next."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The scores, with those of tokens that may not follow at minus infinity."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise EngineError(f"the answer cannot be held any longer to what was asked for: {_reason(self._matcher)}")
        may = np.unpackbits(bits, count=len(scores), bitorder="little").view(bool)
        return np.where(may, scores, -np.inf)

    def took(self, token: int) -> bool:
        """The answer has another token; whether it is complete, so that nothing may follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


class _Vocabulary:
    """A model's tokens as the library reads them."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.piece(token) for token in range(count)]
        self.special_token_ids = [token for token, piece in enumerate(self.tokens) if not piece]
        self.eos_token_id = next(iter(tokenizer.stops), count - 1)

    def __call__(self, text: Any) -> List[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


def _vocabulary(tokenizer: Tokenizer, count: int) -> Any:
    library = _library()
    stops = [token for token in tokenizer.stops if token < count]
    return library.LLTokenizer(
        library.TokenizerWrapper(_Vocabulary(tokenizer, count)), n_vocab=count, eos_token=stops or None
    )


def _reason(matcher: Any) -> str:
    """The library's reason, without where in its own grammar."""
    lines = [line.strip() for line in matcher.get_error().splitlines() if line.strip()]
    return lines[0][:300] if lines else "no reason was given"


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise WrongInput(
            f"response_format and tools need a library that cannot be imported ({error}); on Python 3.9 and later, "
            "pip install llguidance"
        ) from None
    return llguidance
