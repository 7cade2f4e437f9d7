"""The options of an item: the prompt's tokens, the choice of tokens, and the end of the answer.

Reads the named values of an item, as an embedded caller gives them or the bus brings them (every number an array), and
refuses impossible values. Knows the model's tokenizer and its defaults; no memory, no thread.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.engines.base import PREPARED, Values
from edgeserve.engines.collate import MASKED, has_masked
from edgeserve.engines.lm.backend import Encoder, Tokenizer
from edgeserve.engines.lm.chat import conversation_tokens
from edgeserve.engines.lm.constraint import grammar_of
from edgeserve.engines.lm.kept_forms import Form
from edgeserve.engines.lm.sampling import Sampling
from edgeserve.engines.lm.tools import NO_TOOLS, Tools, grammar_for, tools_of
from edgeserve.errors import WrongInput

STOPS_MAX = 16
STOP_CHARS_MAX = 256
"""Bounds on stop strings: each of them is looked for in each piece of text."""

MESSAGES_MAX = 4096
"""Messages of one conversation; the context is reached long before."""


SAMPLING_BOUNDS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "repeat_penalty": (0.01, 100.0),
}
"""Numbers of :class:`Sampling` that a request and the model's options may give, the smallest and the largest."""

TOKEN_CHARS_MAX = 64
"""Characters of a text for each token that fits: a longer text is refused before it is tokenized, which takes the lane
about a second for a megabyte. Texts have 3 to 5 characters a token, runs of spaces or signs up to 16."""

ANSWER_PART = 0.25
"""The share of the context that a shortened conversation leaves for the answer: the length of a usual one."""

BIAS_MAX = 100.0
BIASES_MAX = 1024
"""A bias of that much allows or forbids a token; so many may have one."""

LOGPROBS_MAX = 20
"""Likely tokens that are told of each place, as with OpenAI."""

EXAMPLE_TEXT = "The scheduler decides which model runs next on the device, and when."
EXAMPLE_TOKENS = 4
"""The number of tokens that one item of warm-up and profiling generates."""


class Generation(NamedTuple):
    """``prompt`` tokens, how the next ones are chosen, at most how many (``max_tokens``, the token that ends the answer
    among them), ``stops`` strings that end it, whether the model's own end is passed over (``ignore_eos``), the seed of
    the draws (``None``: each answer draws anew), the ``grammar`` that the answer is held to (empty: none), the names
    of the functions that it may call, and of how many tokens in each place the probabilities are told, besides that of
    the token that was chosen (-1: of none). With an encoder, what it reads is ``source``, and ``prompt`` are the tokens
    with which the decoder begins. ``form`` is the grammar compiled, where the item was prepared."""

    prompt: Tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stops: Tuple[str, ...]
    ignore_eos: bool
    seed: Optional[int]
    grammar: str = ""
    calls: Tuple[str, ...] = ()
    logprobs: int = -1
    source: Tuple[int, ...] = ()
    form: Optional[Form] = None


class TextReader:
    """Reads items for one model. ``defaults`` are used where an item says nothing; ``max_tokens`` in it is also the
    most that an item may ask for. ``chat``: ``prompt`` is what a user says, not a text to be continued. ``shortens``:
    the oldest turns of a conversation that does not fit are left out. ``encoder``: the model has one, and what an item
    gives is for it."""

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        context_tokens: int,
        vocabulary: int,
        defaults: Generation,
        chat: bool,
        shortens: bool = False,
        encoder: Optional[Encoder] = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._context = context_tokens
        self._vocabulary = vocabulary
        self._defaults = defaults
        self._chat = chat
        self._shortens = shortens
        self._encoder = encoder

    def read(self, item: Values) -> Generation:
        """The options of the item. Raises :class:`WrongInput` naming the model, the input and what was expected."""
        tools = self._tools(item)
        prompt = self.tokens_of(item, tools)
        if not prompt:
            raise self._refuse("the prompt has no tokens; give at least one")
        source: Sequence[int] = ()
        if self._encoder is not None:
            source, prompt = prompt, list(self._encoder.begin)
            if len(source) > self._encoder.source_tokens:
                raise self._refuse(
                    f"the prompt has {len(source)} tokens; the encoder takes {self._encoder.source_tokens}. Shorten "
                    f"it, or raise [model.{self._model}] options.context as far as the model allows"
                )
        if len(prompt) >= self._context:
            raise self._refuse(
                f"the prompt has {len(prompt)} tokens; at most {self._context - 1} fit, since the "
                f"context of {self._context} holds the answer too. Shorten it, or raise "
                f"[model.{self._model}] options.context as far as the model allows"
            )
        defaults = self._defaults
        sampling = Sampling(
            top_k=self._whole(item, "top_k", defaults.sampling.top_k, 0),
            repeat_last_n=self._whole(item, "repeat_last_n", defaults.sampling.repeat_last_n, -1),
            biases=self._biases(item),
            **{
                name: self._number(item, name, getattr(defaults.sampling, name), low, high)
                for name, (low, high) in SAMPLING_BOUNDS.items()
            },
        )
        asked = self._whole(item, "max_tokens", defaults.max_tokens, 1)
        seed = self._whole(item, "seed", -1, -(2**63)) if _given(item, "seed") else defaults.seed
        seed = None if seed is None else seed + self._whole(item, "choice", 0, 0)
        return Generation(
            tuple(prompt),
            sampling,
            min(asked, defaults.max_tokens, self._context - len(prompt)),
            self._stops(item),
            bool(self._whole(item, "ignore_eos", int(defaults.ignore_eos), 0)),
            seed,
            self._grammar(item, tools),
            tools.names,
            self._logprobs(item),
            tuple(source),
            item.get(PREPARED),
        )

    def grammar(self, item: Values) -> str:
        """The grammar that the answer to an item must follow, empty for none. Raises :class:`WrongInput`."""
        return self._grammar(item, self._tools(item))

    def tokens_of(self, item: Values, tools: Optional[Tools] = None) -> List[int]:
        """The prompt's tokens: of ``tokens``, ``messages`` or ``prompt``, exactly one of them."""
        tools = self._tools(item) if tools is None else tools
        given = [name for name in ("tokens", "messages", "prompt") if _given(item, name)]
        if len(given) != 1:
            named = " and ".join(given) if given else "none of them"
            raise self._refuse(
                f"give one of the inputs prompt, messages and tokens; got {named} "
                f"(inputs: {', '.join(sorted(set(item) - {PREPARED})) or 'none'})"
            )
        if given[0] == "tokens":
            return self._ids(item["tokens"])
        try:
            if given[0] == "messages":
                self._check_size(len(repr(tools.functions)), "tools")
                return self._conversation(self._messages(item["messages"]), tools)
            text = self._text(item["prompt"], "prompt")
            self._check_size(len(text), "prompt")
            if self._chat:
                return conversation_tokens(self._tokenizer, [{"role": "user", "content": text}], self._model, tools)
            return [*self._tokenizer.first, *self._tokenizer.encode(text), *self._tokenizer.last]
        except UnicodeError as error:
            raise self._refuse(f"input {given[0]!r} has half of a character ({error}); send whole ones") from None

    @property
    def _chars_max(self) -> int:
        """A text of more characters has too many tokens by any vocabulary, which is known without a look at them."""
        return TOKEN_CHARS_MAX * (self._context if self._encoder is None else self._encoder.source_tokens)

    def _check_size(self, chars: int, name: str) -> None:
        if chars > self._chars_max:
            raise self._refuse(
                f"input {name!r} has {chars} characters; at most {self._chars_max} are read, {TOKEN_CHARS_MAX} for "
                f"each of the {self._chars_max // TOKEN_CHARS_MAX} tokens that fit. Shorten it, or raise "
                f"[model.{self._model}] options.context as far as the model allows"
            )

    def _conversation(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> List[int]:
        """The tokens of a conversation; where it is too long and may be shortened, without as few of its oldest turns
        as leave :data:`ANSWER_PART` of the context for the answer. What the system says stays."""

        def tokens_from(begin: int) -> List[int]:
            kept = [each for place, each in enumerate(messages) if place >= begin or each["role"] == "system"]
            return conversation_tokens(self._tokenizer, kept, self._model, tools)

        turns = [place for place, each in enumerate(messages) if each["role"] == "user"] if self._shortens else []
        chars = _chars_from(messages)
        readable = [turn for turn in turns if chars[turn] <= self._chars_max]
        if chars[0] > self._chars_max and not readable:
            self._check_size(chars[turns[-1] if turns else 0], "messages")
        tokens = tokens_from(0 if chars[0] <= self._chars_max else readable[0])
        room = self._encoder.source_tokens if self._encoder is not None else int(self._context * (1 - ANSWER_PART))
        if not readable or len(tokens) <= room:
            return tokens
        tokens, low, high, more = tokens_from(readable[-1]), 0, len(readable) - 1, 1
        while low < high and len(tokens) <= room:  # the first turn from which on it fits, sought from the newest
            middle = max((low + high) // 2, high - more)
            found = tokens_from(readable[middle])
            if len(found) <= room:
                tokens, high, more = found, middle, 2 * more
            else:
                low, more = middle + 1, len(readable)
        return tokens

    def _ids(self, value: Any) -> List[int]:
        array = self._array(value, "tokens")
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise self._refuse(
                f"input 'tokens' is {array.dtype} of shape {array.shape}; expected a list of whole numbers"
            )
        if array.size and (int(array.min()) < 0 or int(array.max()) >= self._vocabulary):
            wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
            raise self._refuse(f"input 'tokens' has the token {wrong}; the model knows 0 to {self._vocabulary - 1}")
        ids: List[int] = array.tolist()
        return ids

    def _messages(self, value: Any) -> List[Mapping[str, Any]]:
        value = self._parsed(value, "messages")
        if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MESSAGES_MAX:
            raise self._refuse(
                f"input 'messages' is {_brief(value)}; expected a list of 1 to {MESSAGES_MAX} messages, "
                'such as [{"role": "user", "content": "Hello"}], or the same as JSON'
            )
        return [self._message(message) for message in value]

    def _message(self, message: Any) -> Mapping[str, Any]:
        about = message if isinstance(message, dict) else {}
        calls, content = about.get("tool_calls") or None, about.get("content")
        if not all(isinstance(text, str) for text in (about.get("role"), "" if calls and content is None else content)):
            raise self._refuse(
                f"input 'messages' has {_brief(message)}; expected the keys role and content, both strings"
            )
        functions = [call.get("function") if isinstance(call, dict) else None for call in _sequence_of(calls)]
        if calls is not None and not all(
            isinstance(each, dict) and isinstance(each.get("name"), str) for each in functions or [None]
        ):
            raise self._refuse(
                f"input 'messages' has the tool_calls {_brief(calls)}; expected a list of "
                '{"type": "function", "function": {"name": ..., "arguments": ...}}'
            )
        return {**about, "content": content or ""}

    def _tools(self, item: Values) -> Tools:
        if not _given(item, "tools"):
            if _given(item, "tool_choice") and self._choice(item) not in ("none", "auto"):
                raise self._refuse("input 'tool_choice' asks for a call, and there is no input 'tools'")
            return NO_TOOLS
        tools = self._parsed(item["tools"], "tools")
        choice = self._choice(item) if _given(item, "tool_choice") else ("auto" if tools else "none")
        try:
            return tools_of(tools, choice)
        except WrongInput as error:
            raise self._refuse(str(error)) from None

    def _choice(self, item: Values) -> Any:
        value = item["tool_choice"]
        text = value if isinstance(value, dict) else self._text(value, "tool_choice")
        return self._parsed(text, "tool_choice") if isinstance(text, str) and text[:1] in ("{", '"') else text

    def _grammar(self, item: Values, tools: Tools) -> str:
        """The grammar that the answer must follow: a requested form, or the calls of its tools."""
        try:
            asked = ""
            if _given(item, "response_format"):
                value = self._parsed(item["response_format"], "response_format")
                if not isinstance(value, dict):
                    raise WrongInput(f"input 'response_format' is {_brief(value)}; expected an object with a type")
                asked = grammar_of(value)
            if not tools.names:
                return asked
            if asked:
                raise WrongInput("response_format and tools exclude each other; leave one out, or tool_choice = 'none'")
            template = self._tokenizer.chat_template
            return grammar_for(tools, template, lambda text: self._tokenizer.encode(text, special=True))
        except WrongInput as error:
            raise self._refuse(str(error)) from None

    def _parsed(self, value: Any, name: str) -> Any:
        """The value, or what it is the JSON text of: over the bus an input is one text."""
        if not isinstance(value, (str, bytes)) and not (isinstance(value, np.ndarray) and value.ndim == 0):
            return value
        try:
            return json.loads(self._text(value, name))
        except (ValueError, RecursionError) as error:
            raise self._refuse(f"input {name!r} is no JSON: {error}") from None

    def _stops(self, item: Values) -> Tuple[str, ...]:
        if not _given(item, "stop"):
            return self._defaults.stops
        value = item["stop"]
        several = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)
        stops = list(value) if several else _listed(value)
        texts = tuple(self._text(stop, "stop") for stop in stops)
        if len(texts) > STOPS_MAX or not all(0 < len(text) <= STOP_CHARS_MAX for text in texts):
            raise self._refuse(
                f"input 'stop' is {_brief(value)}; expected at most {STOPS_MAX} strings of 1 to "
                f"{STOP_CHARS_MAX} characters"
            )
        return texts

    def _biases(self, item: Values) -> Tuple[Tuple[int, float], ...]:
        """``logit_bias``: a dict of tokens' numbers with a bias each, or the same as JSON text."""
        if not _given(item, "logit_bias"):
            return ()
        value = item["logit_bias"]
        try:
            table = value if isinstance(value, dict) else json.loads(self._text(value, "logit_bias"))
            biases = {int(token): float(bias) for token, bias in table.items()}
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            biases = {-1: 0.0}
        if len(biases) > BIASES_MAX or not all(
            0 <= token < self._vocabulary and abs(bias) <= BIAS_MAX for token, bias in biases.items()
        ):
            raise self._refuse(
                f"input 'logit_bias' is {_brief(value)}; expected at most {BIASES_MAX} tokens (0 to "
                f"{self._vocabulary - 1}) with a bias from -{BIAS_MAX:g} to {BIAS_MAX:g} each, such as "
                '{"42": -100}'
            )
        return tuple(biases.items())

    def _logprobs(self, item: Values) -> int:
        count = self._whole(item, "logprobs", -1, 0)
        if count > LOGPROBS_MAX:
            raise self._refuse(f"input 'logprobs' is {count}; expected at most {LOGPROBS_MAX}")
        return count

    def _text(self, value: Any, name: str) -> str:
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str):
            raise self._refuse(f"input {name!r} is {_brief(value)}; expected text")
        return value

    def _number(self, item: Values, name: str, default: float, low: float, high: float) -> float:
        if not _given(item, name):
            return default
        array = self._array(item[name], name)
        if array.ndim != 0 or array.dtype.kind not in "iuf" or not low <= float(array) <= high:
            raise self._refuse(f"input {name!r} is {_brief(item[name])}; expected a number from {low:g} to {high:g}")
        return float(array)

    def _whole(self, item: Values, name: str, default: int, low: int) -> int:
        if not _given(item, name):
            return default
        array = self._array(item[name], name)
        if array.ndim != 0 or array.dtype.kind not in "iub" or int(array) < low:
            raise self._refuse(f"input {name!r} is {_brief(item[name])}; expected a whole number from {low} on")
        return int(array)

    def _array(self, value: Any, name: str) -> NDArray[Any]:
        if has_masked(value):
            raise self._refuse(f"input {name!r} {MASKED}")
        try:
            return np.asarray(value)
        except ValueError as error:  # lists of different lengths
            raise self._refuse(f"input {name!r} is {_brief(value)}: {error}") from None

    def _refuse(self, why: str) -> WrongInput:
        return WrongInput(f"model {self._model!r}: {why}")


def _chars_from(messages: Sequence[Mapping[str, Any]]) -> List[int]:
    """The characters of a conversation that begins at each of its messages. What the system says stays."""
    left = sum([_chars(each) for each in messages if each["role"] == "system"])
    found = []
    for each in reversed(messages):
        left += 0 if each["role"] == "system" else _chars(each)
        found.append(left)
    return found[::-1]


def _chars(message: Mapping[str, Any]) -> int:
    """The characters of a message, of its calls and of all else that it has for the chat template too."""
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    return len(message["role"]) + len(message["content"]) + (len(repr(rest)) if rest else 0)


def _given(item: Mapping[str, Any], name: str) -> bool:
    return item.get(name) is not None


def _sequence_of(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _listed(value: Any) -> List[Any]:
    """One stop string, or the list that it is the JSON text of: over the bus an input is one text."""
    text = value.item() if isinstance(value, np.ndarray) else value
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if isinstance(text, str) and text.startswith("["):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return [text]
        if isinstance(parsed, list) and all(isinstance(stop, str) for stop in parsed):
            return parsed
    return [text]


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def told_chances(chances: Optional[Sequence[Mapping[str, Any]]]) -> Dict[str, str]:
    """The output ``logprobs``: JSON text of what :meth:`Sequence.append` was told of each token."""
    return {} if chances is None else {"logprobs": json.dumps(chances, ensure_ascii=False)}


def answer_of(
    text: str,
    tokens: Sequence[int],
    finish_reason: str,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    calls: Sequence[Mapping[str, str]] = (),
    chances: Optional[Sequence[Mapping[str, Any]]] = None,
) -> Dict[str, Any]:
    """The outputs of a finished item; ``tool_calls``, as JSON text, where it calls functions, and ``logprobs`` where it
    asked for them. So many of the prompt's tokens were in memory before it began: ``cached_tokens``. One that was cut
    says so also where it calls functions: another call may be missing, or a part of the last."""
    return {
        **told_chances(chances),
        **({"tool_calls": json.dumps(calls, ensure_ascii=False)} if calls else {}),
        "text": text,
        "tokens": np.array(tokens, np.int32),
        "finish_reason": "tool_calls" if calls and finish_reason != "length" else finish_reason,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cached_tokens": cached_tokens,
    }
