"""``engine = "lm"`` with ``backend = "openai"``: answers of a local server with OpenAI's API (llama-server, vLLM,
TensorRT Edge-LLM).

The server has the model, its memory and its kernels, and as many slots as it was started with; what runs next,
deadlines and lengths are the scheduler's. An answer is a stream (``server_stream.py``), and a step is one event of it.
Where the batch is cut the server writes on, into the stream; a released answer is asked for again with the same seed,
and what was sent of it is passed over.

Options: ``url`` (``"http://127.0.0.1:8080/v1"``), ``served`` (the model's name there; left out: the only one),
``key_env`` (the environment variable that holds its key), ``patience`` (how long it may say nothing, reading a prompt
included; left out: a minute), and of those in :mod:`edgeserve.engines.lm.lm_engine` ``context``, ``max_tokens``,
``stop``, ``seed``, ``chat`` and the numbers of sampling.
"""

from __future__ import annotations

import json
import os
import random
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlsplit

import numpy as np

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import (
    ANSWERED,
    Batch,
    Engine,
    Finished,
    Footprint,
    LaneInfo,
    Pending,
    Result,
    RowFacts,
    SequenceInfo,
    Session,
    Values,
    Written,
    own_failure,
)
from edgeserve.engines.lm.generation import SAMPLING_BOUNDS, TextReader, answer_of, told_chances
from edgeserve.engines.lm.server_stream import Server, ServerStream
from edgeserve.engines.options import Options
from edgeserve.engines.python import NOMINAL_BYTES
from edgeserve.errors import ConfigError, EngineError, WrongInput
from edgeserve.units import NS_PER_S, counted

KNOWN_OPTIONS = (
    "backend",
    "url",
    "served",
    "key_env",
    "patience",
    "context",
    "max_tokens",
    *SAMPLING_BOUNDS,
    "top_k",
    "stop",
    "seed",
    "chat",
)

PATIENCE_NS = 60 * NS_PER_S
LOOK_S = 0.005
"""The lane looks so often whether its batch is to end, while the server writes nothing."""

MAX_TOKENS = 256
CONTEXT_KEYS = ("max_model_len", "n_ctx", "n_ctx_train")
"""Names of a model's context in what servers say of it: vLLM's, llama-server's."""

PASSED = ("response_format", "tools", "logit_bias")
"""Inputs that the server reads itself, as OpenAI has them."""

OWN_NUMBERS = {"repeat_penalty": "repetition_penalty"}
"""Numbers of sampling that servers know by another name too: llama-server's, vLLM's."""

BYTES_PER_TOKEN = 4
"""Bytes of a prompt per token, without a tokenizer: English text in vocabularies of 32,000 words and more."""

EXAMPLE = {"prompt": "The scheduler decides which model runs next on the device, and when.", "max_tokens": 4}


class ServerEngine(Engine):
    """One model of a server."""

    makes_sequences = True

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        url = options.text("url").rstrip("/")
        if not _is_address(url):
            raise ConfigError(f"{options.where('url')} = {url!r}: expected such as 'http://127.0.0.1:8080/v1'")
        if model.file:
            raise ConfigError(f"[model.{model.name}] file = {model.file!r}: a server has its own; take file away")
        key_env = options.text("key_env")
        if key_env and not os.environ.get(key_env):
            raise ConfigError(
                f"{options.where('key_env')} = {key_env!r}: this environment variable is not set; set it to the "
                "server's key, or leave key_env out"
            )
        self._name = model.name
        self._slots = max(model.slots, *model.batch)
        self._server = Server(url, os.environ.get(key_env, ""), options.duration_ns("patience", PATIENCE_NS) / NS_PER_S)
        self._served = options.text("served")
        self._asked_context = options.integer("context", 0, 1) if "context" in options else 0
        self._defaults: Dict[str, Any] = {
            **{
                name: options.number(name, 0.0, low, high)
                for name, (low, high) in SAMPLING_BOUNDS.items()
                if name in options
            },
            **({"top_k": options.integer("top_k", 0, 0)} if "top_k" in options else {}),
            **({"stop": list(options.texts("stop"))} if "stop" in options else {}),
            **({"seed": options.integer("seed", 0, 0)} if "seed" in options else {}),
        }
        self._max_tokens = options.integer("max_tokens", MAX_TOKENS, 1)
        self._chat = options.boolean("chat", False)
        self._context = 0
        self._trouble = ""
        self._open: List[ServerSession] = []
        self.news = threading.Condition()  # told by the streams

    def load(self) -> Footprint:
        """Ask the server for its models. Its memory is not this device's to give."""
        if not self._context:
            try:
                said = self._server.ask("/models").get("data")
            except EngineError as error:
                self._trouble = str(error)
                raise EngineError(
                    f"model {self._name!r}: {error}. Start the server first, or correct "
                    f"[model.{self._name}] options.url"
                ) from None
            models = said if isinstance(said, list) else []
            about = self._chosen([each for each in models if isinstance(each, dict) and "id" in each])
            self._context = self._asked_context or _context_in(about)
            if not self._context:
                raise EngineError(
                    f"model {self._name!r}: {self._server.url} does not say how many tokens a sequence may have; set "
                    f"[model.{self._name}] options.context to what the server was started with"
                )
            self._served, self._trouble = str(about["id"]), ""
        return Footprint(NOMINAL_BYTES)

    def _chosen(self, models: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        names = [str(each["id"]) for each in models]
        found = [each for each, name in zip(models, names) if name == self._served or not self._served]
        if len(found) != 1:
            raise EngineError(
                f"model {self._name!r}: {self._server.url} serves {', '.join(map(repr, names)) or 'no model'}; "
                f"expected [model.{self._name}] options.served = one of them (it is {self._served!r})"
            )
        return found[0]

    def unload(self) -> None:
        self._context = 0
        sessions, self._open = self._open, []
        for session in sessions:
            session.close()

    def open(self, lane: LaneInfo) -> Session:
        self.must_be_loaded()
        session = ServerSession(self)
        self._open.append(session)
        return session

    def run(self, batch: Batch) -> List[Result]:
        self.must_be_loaded()
        return ServerSession(self).launch(batch).result()

    def sequence(self) -> Optional[SequenceInfo]:
        self.must_be_loaded()
        return SequenceInfo(self._context, 0, self._slots)

    def rows(self) -> RowFacts:
        return RowFacts(checked=False)

    def example(self) -> Values:
        return {**EXAMPLE, "ignore_eos": True}

    def trouble(self, lane: str) -> str:
        return self._trouble

    def count_tokens(self, item: Values) -> int:
        """About so many tokens: the server has the tokenizer, and is not asked while a request waits to be accepted."""
        body = RequestReader(self._name, 2**31).body(item, {}, 1, False)
        text = body["prompt"] if "prompt" in body else "".join([each["content"] for each in body["messages"]])
        return len(text) if isinstance(text, list) else 1 + len(text.encode()) // BYTES_PER_TOKEN

    def must_be_loaded(self) -> None:
        if not self._context:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before it is used")

    def begun(self, item: Values, seed: int) -> RemoteAnswer:
        """The answer to an item, not asked for yet."""
        reader = RequestReader(self._name, self._context)
        body = reader.body(item, {"seed": seed, **self._defaults}, self._max_tokens, self._chat)
        path = "/chat/completions" if "messages" in body else "/completions"
        return RemoteAnswer(path, {**body, "model": self._served})

    def ask(self, answer: RemoteAnswer) -> ServerStream:
        """Ask the server for the answer."""
        return self._server.begin(answer.path, answer.body, self.news)

    def told(self, error: Optional[EngineError]) -> None:
        """An answer ended well, or the server failed: for ``health``. A request that it refused is none of both."""
        if not isinstance(error, WrongInput):
            self._trouble = "" if error is None else f"model {self._name!r}: {error}"

    @property
    def name(self) -> str:
        """The model's name in messages."""
        return self._name


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        return False


def _context_in(about: Mapping[str, Any]) -> int:
    """The context that a server says a model has, 0 where it does not."""
    meta = about.get("meta") if isinstance(about.get("meta"), dict) else {}
    known = {**(meta or {}), **about}
    return next((int(known[key]) for key in CONTEXT_KEYS if isinstance(known.get(key), int)), 0)


class RequestReader(TextReader):
    """Reads items as the body of a request. What OpenAI's API has is handed on as it is."""

    def __init__(self, model: str, context: int) -> None:
        self._model = model
        self._context = context
        self._vocabulary = 2**31

    def body(self, item: Values, defaults: Mapping[str, Any], max_tokens: int, chat: bool) -> Dict[str, Any]:
        """The request. Raises :class:`WrongInput` naming the model, the input and what was expected."""
        given = {name: item[name] for name in ("tokens", "messages", "prompt") if item.get(name) is not None}
        if len(given) != 1:
            raise self._refuse(
                f"give one of the inputs prompt, messages and tokens; got {' and '.join(given) or 'none'}"
            )
        body: Dict[str, Any] = {**defaults, "stream": True, "stream_options": {"include_usage": True}}
        if "messages" in given:
            body["messages"] = [dict(each) for each in self._messages(given["messages"])]
        elif "tokens" in given:
            body["prompt"] = self._ids(given["tokens"])
        else:
            text = self._text(given["prompt"], "prompt")
            body["messages" if chat else "prompt"] = [{"role": "user", "content": text}] if chat else text
        if not body.get("messages", body.get("prompt")):
            raise self._refuse("the prompt is empty; give at least one token")
        if isinstance(body.get("prompt"), list) and len(body["prompt"]) >= self._context:
            raise self._refuse(f"the prompt has {len(body['prompt'])} tokens; at most {self._context - 1} fit")
        for name, (low, high) in SAMPLING_BOUNDS.items():
            if item.get(name) is not None:
                body[name] = self._number(item, name, 0.0, low, high)
        body.update({other: body[name] for name, other in OWN_NUMBERS.items() if name in body})
        for name, low in (("top_k", 0), ("seed", -(2**63))):
            if item.get(name) is not None:
                body[name] = self._whole(item, name, 0, low)
        body["max_tokens"] = min(self._whole(item, "max_tokens", max_tokens, 1), max_tokens)
        if self._whole(item, "ignore_eos", 0, 0):
            body["ignore_eos"] = True
        if item.get("stop") is not None:
            body["stop"] = list(self._stops(item))
        likely = self._logprobs(item)
        if likely >= 0:
            body.update({"logprobs": True, "top_logprobs": likely} if "messages" in body else {"logprobs": likely})
        body.update({name: self._parsed(item[name], name) for name in PASSED if item.get(name) is not None})
        if item.get("tool_choice") is not None:
            body["tool_choice"] = self._choice(item)
        try:
            json.dumps([body.get(name) for name in (*PASSED, "tool_choice")])
        except (TypeError, ValueError) as error:
            raise self._refuse(f"{', '.join(PASSED)} and tool_choice must be JSON: {error}") from None
        return body


class RemoteAnswer:
    """The state of an answer: what was asked, what arrived, and its stream while there is one. A released answer is
    asked for again; so is one that came through pickle."""

    def __init__(self, path: str, body: Dict[str, Any]) -> None:
        self.path = path
        self.body = body
        self.text = ""
        self.steps = 0
        self.reason = ""
        self._calls: Dict[int, Dict[str, str]] = {}
        self._chances: Optional[List[Mapping[str, Any]]] = [] if "logprobs" in body else None
        self._counts: Optional[Tuple[int, int, int]] = None  # tokens of the prompt, the answer, and from memory
        self.stream: Optional[ServerStream] = None
        self._passed_over = self.text
        self._growing = threading.Lock()

    def took(self, event: Mapping[str, Any]) -> Optional[Dict[str, Any]]:
        """An event arrived: the new piece of the answer, empty for one of a call, ``None`` where there is none."""
        with self._growing:
            self._counts = _counts_in(event.get("usage")) or self._counts
            choices = event.get("choices") or []
            if not choices:
                return None
            choice = choices[0]
            self.reason = choice.get("finish_reason") or self.reason
            delta = choice.get("delta") or {}
            calls = delta.get("tool_calls") or ()
            for call in calls:
                self._called(call)
            text = choice.get("text") or delta.get("content") or ""
            if not text:
                return {} if calls else None
            return self._added(text, _chances_in(choice.get("logprobs") or {}))

    def _called(self, call: Mapping[str, Any]) -> None:
        known = self._calls.setdefault(int(call.get("index", 0)), {"name": "", "arguments": ""})
        for key in known:
            known[key] += str((call.get("function") or {}).get(key) or "")

    def _added(self, text: str, chances: List[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
        """The part of ``text`` that was not sent before the answer was asked for again."""
        old = min(len(text), len(self._passed_over))
        self._passed_over, text = self._passed_over[old:], text[old:]
        if not text:
            return None
        self.steps += 1
        self.text += text
        if self._chances is not None:
            self._chances += chances
        return {
            "text": text,
            "tokens": np.zeros(0, np.int32),
            **told_chances(None if self._chances is None else chances),
        }

    def outputs(self) -> Dict[str, Any]:
        """The outputs of the finished answer."""
        with self._growing:
            return self._as_it_is(self.reason or "stop")

    def written(self) -> Optional[Written]:
        with self._growing:
            if not self.text:
                return None
            return Written(self._as_it_is("length"), counted(self.steps, "piece"))

    def _as_it_is(self, reason: str) -> Dict[str, Any]:
        return answer_of(
            self.text,
            [],
            reason,
            *(self._counts or (0, self.steps, 0)),
            [self._calls[place] for place in sorted(self._calls)],
            self._chances,
        )

    def release(self) -> None:
        """End the stream. Idempotent, on any thread."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def begin_again(self) -> None:
        """The next stream begins at the beginning: what was sent is passed over."""
        self._passed_over, self._calls = self.text, {}

    def __del__(self) -> None:
        self.release()

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "stream": None, "_growing": None}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._growing = threading.Lock()


def _chances_in(said: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    """Probabilities with an object per token; vLLM's completions have lists, in the older form."""
    tokens, chances = said.get("tokens") or [], said.get("token_logprobs") or []
    likely = said.get("top_logprobs") or [{}] * len(tokens)
    listed = [
        {"token": token, "logprob": chance, "top_logprobs": [{"token": each, "logprob": top[each]} for each in top]}
        for token, chance, top in zip(tokens, chances, likely)
    ]
    return list(said.get("content") or listed)


def _counts_in(usage: Optional[Mapping[str, Any]]) -> Optional[Tuple[int, int, int]]:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    written, cached = usage.get("completion_tokens") or 0, details.get("cached_tokens") or 0
    return int(usage.get("prompt_tokens") or 0), int(written), int(cached)


class RemoteItem:
    """One item of a batch while it runs."""

    __slots__ = ("index", "answer", "steps")

    def __init__(self, index: int, answer: RemoteAnswer) -> None:
        self.index = index
        self.answer = answer
        self.steps = 0


class ServerSession(Session):
    """One lane's answers. A batch is over when ``launch`` returns; what listens to it listens through its control."""

    def __init__(self, engine: ServerEngine) -> None:
        self._engine = engine
        self._random = random.Random(engine.name)
        self._closed = False

    def close(self) -> None:
        """The model is unloaded."""
        self._closed = True

    def launch(self, batch: Batch) -> Pending:
        if self._closed:
            raise EngineError(f"model {self._engine.name!r} was unloaded; call load() and open() before launch()")
        if batch.variant:
            raise EngineError(f"model {self._engine.name!r} has no phase {batch.variant!r}: its server has the phases")
        results: Dict[int, Result] = {}
        jobs = []
        for index in range(len(batch.items)):
            try:
                jobs.append(RemoteItem(index, self._answer(batch, index)))
            except BaseException as error:  # noqa: BLE001 it is this item's
                self._over(batch, results, index, Result({}, error=own_failure(self._engine.name, error)))
        try:
            self._listen(batch, results, jobs)
        except BaseException:
            for job in jobs:
                job.answer.release()
            raise
        for job in jobs:
            results[job.index] = Result({}, state=job.answer, done=False, steps=job.steps)
        return Finished([results[index] for index in range(len(batch.items))])

    def _answer(self, batch: Batch, index: int) -> RemoteAnswer:
        state = batch.states[index] if index < len(batch.states) else None
        answer: RemoteAnswer = (
            self._engine.begun(batch.items[index], self._random.getrandbits(31)) if state is None else state
        )
        if not isinstance(answer, RemoteAnswer):
            raise EngineError(
                f"model {self._engine.name!r}: the item's state is a {type(state).__name__} of another model"
            )
        if answer.stream is None:
            answer.begin_again()
            answer.stream = self._engine.ask(answer)
        return answer

    def _listen(self, batch: Batch, results: Dict[int, Result], jobs: List[RemoteItem]) -> None:
        """Hand on what arrives until every answer is over, or the batch is to end. Ended jobs leave the list."""
        control, most = batch.control, batch.steps_max
        while True:
            heard = False
            for job in list(jobs):
                if control is not None and control.dropped(job.index):
                    self._end(batch, results, jobs, job, Result({}))
                elif most is None or job.steps < most:
                    heard = self._hear(batch, results, jobs, job) or heard
            if not [job for job in jobs if most is None or job.steps < most] or (control is not None and control.stop):
                return
            if not heard:
                with self._engine.news:
                    self._engine.news.wait(LOOK_S)

    def _hear(self, batch: Batch, results: Dict[int, Result], jobs: List[RemoteItem], job: RemoteItem) -> bool:
        """Take what arrived of one answer; whether there was anything."""
        answer = job.answer
        assert answer.stream is not None, "a running answer was released"
        events = answer.stream.take()  # a step, behind which the batch may end
        for event in events:
            piece = None
            if isinstance(event, dict):
                try:
                    piece = answer.took(event)
                except (TypeError, ValueError, AttributeError, LookupError) as error:
                    event = EngineError(f"the server sent an event of another form: {type(error).__name__}: {error}")
            if isinstance(event, EngineError):
                self._engine.told(event)
                failure = type(event)(f"model {self._engine.name!r}: {event}")
                self._end(batch, results, jobs, job, Result({}, error=failure))
            elif event is None:
                self._engine.told(None)
                self._end(batch, results, jobs, job, Result(answer.outputs()))
            elif piece is not None:
                job.steps += 1
                if piece and batch.control is not None:
                    batch.control.emit(job.index, Result(piece, state=answer, done=False, steps=job.steps))
        return bool(events)

    def _end(
        self, batch: Batch, results: Dict[int, Result], jobs: List[RemoteItem], job: RemoteItem, result: Result
    ) -> None:
        job.answer.release()
        jobs.remove(job)
        result.steps = max(1, job.steps)  # the end may come alone
        self._over(batch, results, job.index, result)

    def _over(self, batch: Batch, results: Dict[int, Result], index: int, result: Result) -> None:
        """End an item: report it now where the batch has a listener, else with the batch."""
        if batch.control is not None:
            batch.control.emit(index, result)
            result = ANSWERED
        results[index] = result
