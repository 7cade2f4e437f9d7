"""``engine = "lm"`` with ``backend = "openai"``: answers of a local server with OpenAI's API (llama-server, vLLM,
TensorRT Edge-LLM).

The server has the model, its memory and its kernels, and as many slots as it was started with; what runs next,
deadlines and lengths are the scheduler's. An answer is a stream (``server_answer.py``), and a step is one event of it.
Where the batch is cut the server writes on, into the stream; a released answer is asked for again with the same seed,
and what was sent of it is passed over.

Options: ``url`` (``"http://127.0.0.1:8080/v1"``), ``served`` (the model's name there; left out: the only one),
``key_env`` (the environment variable that holds its key), ``patience`` (how long it may say nothing, reading a prompt
included; left out: a minute), and of those in :mod:`edgeserve.engines.lm.lm_engine` ``context``, ``max_tokens``,
``stop``, ``seed``, ``chat`` and the numbers of sampling.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence
from urllib.parse import urlsplit

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
    own_failure,
)
from edgeserve.engines.lm.generation import EXAMPLE_TEXT, EXAMPLE_TOKENS, SAMPLING_BOUNDS
from edgeserve.engines.lm.server_answer import RemoteAnswer
from edgeserve.engines.lm.server_request import RequestReader
from edgeserve.engines.lm.server_stream import Server, ServerStream
from edgeserve.engines.options import Options
from edgeserve.engines.python import NOMINAL_BYTES
from edgeserve.errors import ConfigError, EngineError, WrongInput
from edgeserve.units import NS_PER_S

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

BYTES_PER_TOKEN = 4
"""Bytes of a prompt per token, without a tokenizer: English text in vocabularies of 32,000 words and more."""


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
        self._served = ""  # the model's name, once it is loaded
        self._asked_served = options.text("served")
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
        found = [each for each, name in zip(models, names) if name == self._asked_served or not self._asked_served]
        if len(found) != 1:
            raise EngineError(
                f"model {self._name!r}: {self._server.url} serves {', '.join(map(repr, names)) or 'no model'}; "
                f"expected [model.{self._name}] options.served = one of them (it is {self._asked_served!r})"
            )
        return found[0]

    def unload(self) -> None:
        self._context = 0
        sessions, self._open = self._open, []
        for session in sessions:
            session.close()

    def open(self, lane: LaneInfo) -> Session:
        self.must_be_loaded()
        session = ServerSession(self, lane.name)
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
        return {"prompt": EXAMPLE_TEXT, "max_tokens": EXAMPLE_TOKENS, "ignore_eos": True}

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


@dataclass(eq=False)
class RemoteItem:
    """One item of a batch while it runs."""

    index: int
    answer: RemoteAnswer
    steps: int = 0


class ServerSession(Session):
    """One lane's answers. A batch is over when ``launch`` returns; what listens to it listens through its control."""

    def __init__(self, engine: ServerEngine, lane: str = "") -> None:
        self._engine = engine
        self._random = random.Random(f"{engine.name}/{lane}")  # no two lanes draw the same answers
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
        state = batch.states[index]
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
            piece = outputs = None
            try:
                if isinstance(event, dict):
                    piece = answer.took(event)
                if event is None or answer.is_full:
                    outputs = answer.outputs()
            except EngineError as error:
                event = error
            except (TypeError, ValueError, AttributeError, LookupError) as error:
                event = EngineError(f"the server sent an event of another form: {type(error).__name__}: {error}")
            if isinstance(event, EngineError):
                self._engine.told(event)
                failure = type(event)(f"model {self._engine.name!r}: {event}")
                self._end(batch, results, jobs, job, Result({}, error=failure))
            elif outputs is not None:
                self._engine.told(None)
                self._end(batch, results, jobs, job, Result(outputs))
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
