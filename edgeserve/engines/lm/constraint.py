"""Constrained decoding: which tokens may follow, so that an answer is JSON, fits a schema, an expression or a grammar.

The library ``llguidance`` compiles the requested form and gives the allowed tokens before each step. Compiling has
bounds and happens before a request is accepted (``form_trial.py``); an answer's state is made again from its tokens
wherever it goes on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import threading
from typing import Any, Callable, Hashable, List, Mapping, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.lm.backend import Tokenizer
from edgeserve.engines.lm.kept_forms import Form, Forms
from edgeserve.errors import EngineError, WrongInput, told

SOURCE_CHARS_MAX = 65_536
"""The most characters of a schema, an expression or a grammar: the cost of compiling grows with them."""

JSON_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,16})?"}
"""White space between the parts of JSON. Without a bound a small model may write spaces until its answer is full."""

LIMITS = {"step_max_items": 10_000, "max_items_in_row": 400, "step_lexer_fuel": 100_000, "max_lexer_states": 16_384}
"""The bounds on the library's work for one token, and its memory for one answer: about 20 ms and 32 MiB. Its own limits
are 2.5 s (of the grammar ``e: e e | e e e | /./``) and 500 MB. Tools with 300 schemas, and objects of 1,000 properties,
need 300 items in a row and 5,000 in a step."""

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
        return _grammar(lambda library: library.LLMatcher.grammar_from_regex(source))
    raise WrongInput(f"response_format.type is {str(kind)[:40]!r}; expected one of {', '.join(TYPES)}")


def json_grammar(schema: Any) -> str:
    """The grammar of JSON that fits a schema."""
    text = _json(schema)
    if len(text) > SOURCE_CHARS_MAX:
        raise WrongInput(f"a JSON schema of {len(text)} characters; at most {SOURCE_CHARS_MAX} are compiled")
    return _grammar(lambda library: library.LLMatcher.grammar_from_json_schema(text, defaults=JSON_OPTIONS))


def json_grammar_rule(schema: Mapping[str, Any]) -> str:
    """The same as the right side of a rule in Lark's notation."""
    text = _json({"x-guidance": JSON_OPTIONS, **schema})
    if len(text) > SOURCE_CHARS_MAX:
        raise WrongInput(f"the JSON schemas of the tools have {len(text)} characters; at most {SOURCE_CHARS_MAX} do")
    return f"%json {text}"


def lark_grammar(source: str) -> str:
    """The grammar of rules in Lark's notation."""
    return _grammar(lambda library: library.LLMatcher.grammar_from_lark(source))


def _json(schema: Any) -> str:
    try:
        return json.dumps(schema)
    except (RecursionError, TypeError, ValueError) as error:
        raise WrongInput(f"a JSON schema that cannot be written as JSON ({told(error)})") from None


def _grammar(make: Callable[[Any], str]) -> str:
    """The library's grammar of a source, which it may refuse by any exception."""
    library = _library()
    try:
        return make(library)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 its panics are no Exception
        raise WrongInput(f"llguidance does not read what was asked for ({told(error)})") from None


class Grammars:
    """The compiled forms of one model, whose vocabulary ``of`` identifies. Any thread. ``attempt`` makes the trial of
    forms (:class:`~edgeserve.engines.lm.form_trial.FormTrial`) from the vocabulary, when the first is asked for;
    without it, forms are compiled however long that takes."""

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        vocabulary: int,
        attempt: Optional[Callable[[List[bytes], Sequence[int]], Any]] = None,
        of: Hashable = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokens: Any = None
        self._attempt = attempt
        self._trial: Optional[Any] = None
        self.forms = Forms(model, of)

    def prepare(self) -> None:
        """Read the vocabulary (150 ms of 49,000 tokens), where the library is there: not while a request waits for it.
        A vocabulary that the library does not take keeps no model from being served: it is refused when asked for."""
        if importlib.util.find_spec("llguidance") is not None:
            with contextlib.suppress(WrongInput):
                self._read()

    def _read(self) -> Any:
        with self._lock:
            if self._tokens is None:
                try:
                    self._tokens = read_vocabulary(self._tokenizer, self._vocabulary)
                except WrongInput:
                    raise
                except Exception as error:  # the library's, which has no type of its own
                    raise WrongInput(
                        f"model {self._model!r}: no answer can be held to a form, since llguidance does not take the "
                        f"model's vocabulary ({error})"
                    ) from error
            return self._tokens

    def _tried(self, grammar: str) -> Any:
        self._read()  # a fault of the vocabulary is no form's
        with self._lock:
            if self._trial is None:
                assert self._attempt is not None, "forms are tried where there is a way"
                pieces = [self._tokenizer.piece(token) for token in range(self._vocabulary)]
                self._trial = self._attempt(pieces, sorted(self._tokenizer.stops))
            trial = self._trial
        return trial(grammar)

    def form(self, grammar: str, owner: str) -> Form:
        """The compiled form of an owner. Raises :class:`WrongInput` with the library's reason, or where it takes too
        much, and :class:`~edgeserve.errors.Rejected` where its owner has too many in use."""
        return self.forms.form(grammar, owner, None if self._attempt is None else self._tried, self._compiled)

    def _compiled(self, grammar: str) -> Any:
        return compiled(f"model {self._model!r}: ", self._read(), grammar)

    def close(self) -> None:
        """No form is asked for any more."""
        with self._lock:
            trial, self._trial = self._trial, None
        if trial is not None:
            trial.close()

    def begun(self, form: Optional[Form], grammar: str, owner: Optional[str], answer: Sequence[int]) -> Constraint:
        """The constraint of an answer with these tokens so far: of the ``form`` that was prepared for it, else of one
        that is compiled now. Raises :class:`WrongInput` with the library's reason."""
        if form is None or not form.is_for(self.forms.of):
            form = self.form(grammar, owner or "")
        matcher = form.matcher()
        if answer and not matcher.consume_tokens(list(answer)):
            raise EngineError(
                f"model {self._model!r}: the answer so far does not fit what was asked for: {_reason(matcher)}"
            )
        return Constraint(self._model, matcher)


def compiled(where: str, tokens: Any, grammar: str) -> Any:
    """The matcher of a grammar, which can say what an answer begins with. Raises :class:`WrongInput` with the library's
    reason."""
    library = _library()
    made = library.LLMatcher(tokens, grammar, log_level=0, limits=library.LLParserLimits(**LIMITS))
    if not made.is_error():
        made.compute_bitmask()
    if made.is_error():
        raise WrongInput(f"{where}no answer can be held to what was asked for: {_reason(made)}")
    return made


class Constraint:
    """The tokens that one answer may have next."""

    def __init__(self, model: str, matcher: Any) -> None:
        self._model = model
        self._matcher = matcher

    def allowed(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The scores, with those of tokens that may not follow at minus infinity."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        may = np.unpackbits(bits, count=len(scores), bitorder="little").view(bool)
        return np.where(may, scores, -np.inf)

    def took(self, token: int) -> bool:
        """The answer has another token; whether it is complete, so that nothing may follow."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(
                f"model {self._model!r}: the answer cannot be held any longer to what was asked for: "
                f"{_reason(self._matcher)}"
            )


class _Vocabulary:
    """A model's tokens as the library reads them."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, count: int) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.piece(token) for token in range(count)]
        self.special_token_ids = [token for token, piece in enumerate(self.tokens) if not piece]
        self.eos_token_id = next(iter(tokenizer.stops), count - 1)

    def __call__(self, text: Any) -> List[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        tokens: List[int] = self._tokenizer.encode(text)
        return tokens


def read_vocabulary(tokenizer: Any, count: int) -> Any:
    """A model's vocabulary as the library has it."""
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
