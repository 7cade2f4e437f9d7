"""The ``lm`` engine's entry: one language model, its back end, and a session per lane.

llama.cpp ends its process where something is wrong with a model. So it runs in a process of its own (``remote.py``)
where several apps are served, or ``options.process`` says so; else a server tries the model in one before it is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from functools import partial
from typing import Any, List, Optional, Sequence, Set, Tuple

from edgeserve.config.model_files import model_path, parts_of, stamps
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import Batch, Engine, Finished, Footprint, LaneInfo, Pending, SequenceInfo, Session, Values
from edgeserve.engines.gguf import WRITES, check_kind
from edgeserve.engines.lm import backend_of
from edgeserve.engines.lm.backend import Encoder, LmBackend, ModelFacts, Tokenizer
from edgeserve.engines.lm.constraint import Grammars
from edgeserve.engines.lm.form_trial import FormTrial
from edgeserve.engines.lm.generation import EXAMPLE_TEXT, EXAMPLE_TOKENS, TextReader
from edgeserve.engines.lm.kept_forms import Form
from edgeserve.engines.lm.lm_options import (
    BACKENDS,
    CONTEXT_MIN,
    KNOWN_OPTIONS,
    SERVER,
    TURN_NS,
    chosen_backend,
    defaults_of,
    prefill_tokens_of,
    shortens,
)
from edgeserve.engines.lm.prefixes import PREFIX_CACHE_BYTES, Prefixes
from edgeserve.engines.lm.remote import HOST, TRIAL, RemoteBackend, StartProcess
from edgeserve.engines.lm.slots import Slots
from edgeserve.engines.lm.step_loop import DECODE, PREFILL, PREFILL_TOKENS_MAX, Language, StepLoop
from edgeserve.engines.lm.turns import tokens_within
from edgeserve.engines.options import Options
from edgeserve.errors import NOT_IMPORTED, EngineError, ProcessEnded, WrongInput, nearest

ABORTS = "llama.cpp"
"""The back end that may end its process."""

_tried: Set[Tuple[Any, ...]] = set()
"""Models that opened in a process of their own without harm, as this process knows."""


def make(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> Engine:
    """The registry's entry."""
    if backend_of(model) == SERVER:
        from edgeserve.engines.lm.server_engine import ServerEngine  # its HTTP client is not loaded for the others

        return ServerEngine(model, lanes, directory)
    return LmEngine(model, lanes, directory)


class LmEngine(Engine):
    """One language model. Unfinished answers come back with their state, as a batch is cut or its steps are bounded;
    each session (lane) keeps the memory of the answers that it made the last step of."""

    variants = (PREFILL, DECODE)
    makes_sequences = True
    prepares = ("response_format", "tools", "tool_choice")

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        self._model = model
        self._name = model.name
        self._lanes = list(lanes)
        self._directory = directory
        self._options = options
        self._backend_name = chosen_backend(model, options)
        self._slots_count = max(model.slots, *model.batch)
        self._defaults = defaults_of(options)
        self._chat = options.boolean("chat", False)
        self._shortens = shortens(options)
        self._context = options.integer("context", 0, CONTEXT_MIN) if "context" in options else 0
        self._turn_ns = options.duration_ns("turn", TURN_NS)
        self._prefill_tokens = prefill_tokens_of(options, lanes)
        self._prefix_bytes = options.size_bytes("prefix_cache", PREFIX_CACHE_BYTES)
        self._shared_prefix = options.text("shared_prefix")
        self.process_by_default = self._backend_name == ABORTS and any(lane.apps > 1 for lane in lanes)
        self._start: Optional[StartProcess] = None
        self._lock = threading.Lock()
        self._files: Tuple[Any, ...] = ()  # as they were when the back end was made
        self._backend: Optional[LmBackend] = None
        self._facts: Optional[ModelFacts] = None
        self._grammars: Optional[Grammars] = None
        self._open: List[Slots] = []

    def check(self) -> None:
        path = model_path(self._model, self._directory)
        backend = self.backend()
        if self._backend_name == ABORTS:
            check_kind(path, WRITES, self._name)
        else:
            backend.tokenizer()
        try:
            if self._chat:
                importlib.import_module("jinja2")
        except ImportError as error:
            extra = BACKENDS[self._backend_name][1]
            raise EngineError(
                f"model {self._name!r}: options.chat needs a library that cannot be imported ({error}); "
                f"pip install 'edgeserve-runtime[{extra}]'"
            ) from None

    def load(self) -> Footprint:
        facts = self._facts
        if facts is None:
            self._forget_other_files()
            if not self.ends_calls:
                self._try_elsewhere()
            facts = self.backend().load()
            _tried.add(self._trial())
            self._facts = facts
        kept_bytes = self._prefix_bytes if facts.reuses else 0
        return Footprint(facts.weights_bytes, facts.reserved_bytes * max(1, len(self._lanes)) or kept_bytes)

    def _forget_other_files(self) -> None:
        """Drop data read from files that have changed since: weights and tokenizer must be of one content."""
        with self._lock:
            if self._files != stamps(parts_of(self._model, self._directory)):
                self._backend, self._grammars = None, None

    def unload(self) -> None:
        self._facts = None
        backend, self._backend = self._backend, None
        if backend is not None and self.ends_calls:
            backend.unload()  # first: it ends the call that a session waits for
        with self._lock:
            sessions, self._open = self._open, []
            grammars, self._grammars = self._grammars, None
        if grammars is not None:
            grammars.close()
        for slots in sessions:
            slots.close()
        if backend is not None and not self.ends_calls:
            backend.unload()

    def use_processes(self, start: StartProcess, always: bool) -> bool:
        self._start, self.ends_calls = start, always
        self.takes_turns = always
        return True

    def trouble(self, lane: str) -> str:
        backend = self._backend
        return backend.trouble(lane) if isinstance(backend, RemoteBackend) else ""

    def sequence(self) -> Optional[SequenceInfo]:
        facts = self._loaded()[1]
        tokens = self._prefill_tokens if self.backend().continues else 0
        source = facts.encoder.source_tokens if facts.encoder is not None else 0
        return SequenceInfo(source + facts.context_tokens, _grows_by(facts), self._slots_count, tokens)

    def example(self) -> Values:
        tokens = self._tokenizer().encode(EXAMPLE_TEXT)
        most = max(1, (self._context or CONTEXT_MIN * 8) // 2)
        encoder = None if self._facts is None else self._facts.encoder
        return {
            "tokens": tokens[: most if encoder is None else min(most, encoder.source_tokens)],
            "max_tokens": EXAMPLE_TOKENS,
            "ignore_eos": True,
        }

    def open(self, lane: LaneInfo) -> Session:
        """A session for a lane that the engine was made for."""
        backend, facts = self._loaded()
        session = backend.open(lane, self._slots_count)
        if not self._prefill_tokens and backend.continues and lane.clock_ns is not None:
            self._prefill_tokens = tokens_within(session, self._turn_ns, PREFILL_TOKENS_MAX, facts, lane.clock_ns)
        slots = Slots(session, self._prefixes(facts))
        with self._lock:
            self._open.append(slots)
        return LmSession(self, StepLoop(self.language(lane.name), slots))

    def run(self, batch: Batch) -> List[Any]:
        """Run a batch for a caller without a lane."""
        return self.open(LaneInfo()).launch(batch).result()

    def count_tokens(self, item: Values) -> int:
        """The number of tokens of an item's prompt: the hint ``NODE.tokens``. Needs no loaded model."""
        facts = self._facts
        context, encoder = (self._context, None) if facts is None else (facts.context_tokens, facts.encoder)
        return len(self._reader(context or 2**31, 2**31, encoder).tokens_of(item))

    def language(self, lane: str) -> Language:
        """The facts of the model for the step loop."""
        backend, facts = self._loaded()
        tokenizer = self._tokenizer()
        return Language(
            self._name,
            tokenizer,
            self._grammars_of(facts),
            self._reader(facts.context_tokens, facts.vocabulary, facts.encoder),
            _grows_by(facts),
            f"{self._name}/{lane}",
            self._prefill_tokens if backend.continues else 0,
            self._files,
        )

    def prepare(self, item: Values, owner: str) -> Optional[Form]:
        """The form that the answer is to be held to, compiled."""
        facts = self._facts
        if facts is None:
            return None
        grammar = self._reader(facts.context_tokens, facts.vocabulary).grammar(item)
        return self._grammars_of(facts).form(grammar, owner) if grammar else None

    def _grammars_of(self, facts: ModelFacts) -> Grammars:
        tokenizer = self._tokenizer()
        with self._lock:
            if self._grammars is None:
                attempt = None if self._start is None else partial(FormTrial, self._start, self._model)
                self._grammars = Grammars(self._name, tokenizer, facts.vocabulary, attempt, self._trial()[:2])
                self._grammars.prepare()
            return self._grammars

    def must_be_loaded(self) -> None:
        self._loaded()

    def _prefixes(self, facts: ModelFacts) -> Prefixes:
        """The lane's store of ended sequences, of its share of the bytes."""
        if not facts.reuses or not self._prefix_bytes:
            return Prefixes(0)
        reader, text = self._reader(facts.context_tokens, facts.vocabulary), self._shared_prefix
        public = [reader.tokens_of({"prompt": text})] if text else []
        if text and self._tokenizer().chat_template:
            with contextlib.suppress(WrongInput):  # some templates know no system
                public.append(reader.tokens_of({"messages": [{"role": "system", "content": text}]}))
        tokens = self._prefix_bytes // (max(1, facts.bytes_per_token) * max(1, len(self._lanes)))
        return Prefixes(tokens, public)

    def _reader(self, context: int, vocabulary: int, encoder: Optional[Encoder] = None) -> TextReader:
        return TextReader(
            self._name,
            self._tokenizer(),
            context,
            vocabulary,
            self._defaults,
            self._chat,
            self._shortens,
            encoder,
        )

    def _loaded(self) -> Tuple[LmBackend, ModelFacts]:
        backend, facts = self._backend, self._facts
        if backend is None or facts is None:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before it is used")
        return backend, facts

    def _tokenizer(self) -> Tokenizer:
        self._try_elsewhere()
        return self.backend().tokenizer()

    def _try_elsewhere(self) -> None:
        """Open in a process of its own what may end this one, once. With processes for its lanes, that is the
        tokenizer alone: the rest never comes here."""
        if self._start is None or self._backend_name != ABORTS or not any(lane.apps for lane in self._lanes):
            return
        key = self._trial()
        if key in _tried:
            return
        more: Tuple[Any, ...] = () if self.ends_calls else (self._slots_count,)
        host = TRIAL if self.ends_calls else HOST
        trial = self._start(host, self._model, self._lanes[0], os.path.abspath(self._directory), *more)
        try:
            trial.load()
        except ProcessEnded as error:
            raise EngineError(
                f"{error}. It was a trial of {key[0]}: llama.cpp ends its process where it refuses a model. Choose "
                "another file, or a newer llama-cpp-python"
            ) from None
        finally:
            trial.unload()
        _tried.add(key)

    def _trial(self) -> Tuple[Any, ...]:
        """The key of a trial: a file as it is, with these options."""
        path = model_path(self._model, self._directory)
        options = repr(sorted(self._model.options.items()))
        files = stamps(parts_of(self._model, self._directory))
        return (path, files, options, self._slots_count, self.ends_calls)

    def backend(self) -> LmBackend:
        """The model's back end, made at first use."""
        with self._lock:
            if self._backend is None:
                module, extra = BACKENDS[self._backend_name]
                try:
                    make_backend = importlib.import_module(module).make
                except NOT_IMPORTED as error:
                    raise EngineError(
                        f"model {self._name!r}: back end {self._backend_name!r} cannot be imported "
                        f"({error}); pip install 'edgeserve-runtime[{extra}]'"
                    ) from None
                model, lanes, directory = self._model, self._lanes, self._directory
                self._files = stamps(parts_of(model, directory))
                backend: LmBackend = make_backend(model, model_path(model, directory), self._options, lanes)
                if self._start is not None and self.ends_calls:
                    where = os.path.abspath(directory)
                    backend = RemoteBackend(self._start, model, lanes, where, self._slots_count, backend)
                self._backend = backend
            return self._backend


def _grows_by(facts: ModelFacts) -> int:
    """The bytes that a token adds to the memory in use: none where they are reserved."""
    return 0 if facts.reserved_bytes else facts.bytes_per_token


class LmSession(Session):
    """One lane's sequences. A batch is over when ``launch`` returns; what listens to it listens through its control."""

    def __init__(self, engine: LmEngine, loop: StepLoop) -> None:
        self._engine = engine
        self._loop = loop

    def launch(self, batch: Batch) -> Pending:
        self._engine.must_be_loaded()
        variants = self._engine.variants
        if batch.variant and batch.variant not in variants:
            raise EngineError(
                f"model {self._loop.name!r} has no phase {batch.variant!r}{nearest(batch.variant, variants)}"
            )
        return Finished(self._loop.run(batch))
