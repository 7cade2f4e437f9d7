"""What answers are held to, compiled within bounds: the time and the memory that a form may take are tried first, in a
process that can be ended at any moment, and what was compiled is kept for its owner alone.

A form of 40 characters may take ten seconds and a gigabyte (``{"multipleOf": 999983}``), and none of the library's own
limits holds that. So a process that has the model's vocabulary makes a copy of itself for each form (a fork, of a
process with one thread); the copy compiles it and is ended by the system when its time is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable, Dict, Hashable, List, NamedTuple, Optional, Sequence, Tuple

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.errors import Rejected, WrongInput
from edgeserve.units import NS_PER_MS, NS_PER_S, format_duration, format_size

COMPILE_NS_MAX = 250 * NS_PER_MS
"""Processor time for one form. The schemas of common tools take 1 to 5 ms, one of 1,900 properties takes 500."""

COMPILE_WAIT_S = 5.0
"""How long that time may take to come on a busy machine."""

TRIAL_NICE = 5
"""Lanes go before trials: a third of the weight in the system's scheduler."""

FORM_BYTES_MAX = 64 << 20
"""Memory for one form while it is compiled, and after."""

FORM_BYTES_LEAST = 32 << 10
"""A form counts at least so much in memory, and eight times its text."""

KEPT_BYTES_MAX = 64 << 20
"""Compiled forms of a model that are kept for later requests, of all owners together. The owner that has most of it
makes room."""

IN_USE_BYTES_MAX = 256 << 20
"""Compiled forms of a model in memory, those of open requests included: one owner may have half of it."""

FORK_HOST = "edgeserve.engines.lm.forms:FormHost"


class Cost(NamedTuple):
    """What compiling a form took in the trial: processor time, and memory."""

    took_ns: int
    bytes: int


Try = Callable[[str], Cost]
"""Tries a grammar; raises :class:`WrongInput` where it takes too long or too much, or is none."""


class Form:
    """A form of one owner, compiled for the vocabulary of the model ``of``; each answer begins with a copy. It travels
    without what was compiled. ``took_ns``: what compiling took, the trial included; 0 where it was kept from before."""

    __slots__ = ("of", "grammar", "owner", "bytes", "took_ns", "_matcher", "__weakref__")

    def __init__(
        self, of: Hashable, grammar: str, owner: str, bytes: int = 0, took_ns: int = 0, matcher: Any = None
    ) -> None:
        self.of = of
        self.grammar = grammar
        self.owner = owner
        self.bytes = bytes
        self.took_ns = took_ns
        self._matcher = matcher

    def is_for(self, of: Hashable) -> bool:
        """Whether it can be used with this vocabulary."""
        return self._matcher is not None and self.of == of

    def matcher(self) -> Any:
        """The library's object for one more answer."""
        return self._matcher.deep_copy()

    def again(self) -> Form:
        """The same for another request, which waits for nothing."""
        return Form(self.of, self.grammar, self.owner, self.bytes, 0, self._matcher)

    def __reduce__(self) -> Tuple[Any, ...]:
        return (Form, (self.of, self.grammar, self.owner))


class Forms:
    """The compiled forms of one model, by owner and grammar. Whether another owner has asked for the same form cannot
    be told by the time that it takes. Any thread; the lock is held for look-ups alone."""

    def __init__(self, model: str, of: Hashable) -> None:
        self.of = of
        self._model = model
        self._lock = threading.Lock()
        self._kept: Dict[str, OrderedDict[str, Form]] = {}
        self._in_use: weakref.WeakSet[Form] = weakref.WeakSet()

    def form(self, grammar: str, owner: str, attempt: Optional[Try], compile: Callable[[str], Any]) -> Form:
        """The form, tried and compiled now unless its owner has asked for it before. Raises what these raise, and
        :class:`Rejected` where its owner has too many in use."""
        with self._lock:
            mine = self._kept.get(owner)
            if mine is not None and grammar in mine:
                mine.move_to_end(grammar)
                return self._used(mine[grammar].again())
        cost = Cost(0, 0) if attempt is None else attempt(grammar)
        size = max(cost.bytes, FORM_BYTES_LEAST, 8 * len(grammar))
        self._refuse_beyond(owner, size)
        took_ns = 2 * cost.took_ns  # tried, and then compiled here
        form = Form(self.of, grammar, owner, size, took_ns, compile(grammar))
        with self._lock:
            self._keep(form)
            return self._used(form)

    def kept_bytes(self) -> Dict[str, int]:
        """What is kept, by owner."""
        with self._lock:
            return {owner: sum([form.bytes for form in forms.values()]) for owner, forms in self._kept.items()}

    def _used(self, form: Form) -> Form:
        self._in_use.add(form)
        return form

    def _refuse_beyond(self, owner: str, size: int) -> None:
        used, own = self._used_bytes(owner)  # not here: the error that tells of it would keep the forms
        if used + size > IN_USE_BYTES_MAX or own + size > IN_USE_BYTES_MAX // 2:
            raise Rejected(
                f"model {self._model!r}: the forms of open requests take {format_size(used)} of memory, "
                f"{format_size(own)} of them this client's; send fewer different forms at a time",
                "over_share",
            )

    def _used_bytes(self, owner: str) -> Tuple[int, int]:
        """What forms take in all, and those of one owner."""
        with self._lock:
            forms = {id(form._matcher): form for form in self._in_use}.values()  # copies share what was compiled
            return sum([form.bytes for form in forms]), sum([form.bytes for form in forms if form.owner == owner])

    def _keep(self, form: Form) -> None:
        if form.bytes > KEPT_BYTES_MAX:
            return
        self._kept.setdefault(form.owner, OrderedDict())[form.grammar] = form
        sizes = {owner: sum([each.bytes for each in forms.values()]) for owner, forms in self._kept.items()}
        while sum(sizes.values()) > KEPT_BYTES_MAX:
            greediest = max(sizes, key=lambda owner: (sizes[owner], owner))
            _, oldest = self._kept[greediest].popitem(last=False)
            sizes[greediest] -= oldest.bytes
            if not self._kept[greediest]:
                del self._kept[greediest], sizes[greediest]


class FormTrial:
    """Tries forms of one model in a process of its own, which is started for the first of them and ends with this
    object. ``start`` is :data:`~edgeserve.engines.lm.remote.StartProcess`. Any thread; one form at a time."""

    def __init__(self, start: Callable[..., Any], model: ModelConfig, pieces: Sequence[bytes], stops: Sequence[int]):
        self._name = model.name
        self._process = start(FORK_HOST, model, LaneInfo(name="forms", models=1), list(pieces), list(stops))
        self._end = weakref.finalize(self, self._process.unload)

    def __call__(self, grammar: str) -> Cost:
        self._process.load()  # where it is there, nothing happens
        verdict, took_ns, bytes = self._process.call("try", grammar)
        if verdict == "slow":
            raise WrongInput(
                f"model {self._name!r}: the form that was asked for (response_format, or the tools) takes longer than "
                f"{format_duration(COMPILE_NS_MAX)} of processor time to compile; make it smaller: fewer alternatives, "
                "smaller numbers in multipleOf, minLength, maxItems and the like"
            )
        if verdict == "large":
            raise WrongInput(
                f"model {self._name!r}: the form that was asked for (response_format, or the tools) takes more than "
                f"{format_size(FORM_BYTES_MAX)} of memory to compile; make it smaller"
            )
        if verdict:
            raise WrongInput(f"model {self._name!r}: {verdict}")
        return Cost(took_ns, bytes)

    def close(self) -> None:
        """End the process."""
        self._end()


class FormHost:
    """The child's side: has the vocabulary, and answers for each grammar what compiling it takes."""

    def __init__(
        self, model: ModelConfig, lanes: Sequence[LaneInfo], pieces: Sequence[bytes], stops: Sequence[int]
    ) -> None:
        self._pieces, self._stops = pieces, stops
        self._tokens: Any = None

    def load(self) -> None:
        with contextlib.suppress(OSError):
            os.nice(TRIAL_NICE)
        from edgeserve.engines.lm.constraint import read_vocabulary

        self._tokens = read_vocabulary(_Pieces(self._pieces, self._stops), len(self._pieces))

    def ask(self, verb: str, grammar: str) -> Tuple[str, int, int]:
        """``""``, ``slow``, ``large`` or what is wrong with it; the processor time in ns, and the bytes it takes."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            _try_and_end(self._tokens, grammar, write)
        os.close(write)
        told = _read_for(read, COMPILE_WAIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # where it has ended, nothing happens
        _, status, used = os.wait4(child, 0)
        took_ns = int((used.ru_utime + used.ru_stime) * NS_PER_S)
        if told:
            answer = json.loads(told)
            return answer["problem"], took_ns, answer["bytes"]
        aborted = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGABRT, signal.SIGSEGV)
        return ("large" if aborted else "slow"), took_ns, 0


class _Pieces:
    """A vocabulary without its tokenizer: a text is its bytes."""

    def __init__(self, pieces: Sequence[bytes], stops: Sequence[int]) -> None:
        self._pieces = pieces
        self.stops = frozenset(stops)
        self._bytes = {piece[0]: token for token, piece in enumerate(pieces) if len(piece) == 1}

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def encode(self, text: str, special: bool = False) -> List[int]:
        return [self._bytes[byte] for byte in text.encode("utf-8", "replace") if byte in self._bytes]


def _try_and_end(tokens: Any, grammar: str, write: int) -> None:
    """The copy of the child: it compiles, says what came of it, and ends without any of its parent's clean-up."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)  # what the library writes when its memory is over is no news
        from edgeserve.engines.lm.constraint import compiled

        compiled("", tokens, "start: /x/")  # so that the next one brings only its own memory
        with open("/proc/self/statm", encoding="ascii") as file:
            pages, resident = [int(number) for number in file.read().split()[:2]]
        page = os.sysconf("SC_PAGE_SIZE")
        most = pages * page + FORM_BYTES_MAX
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
        signal.setitimer(signal.ITIMER_PROF, COMPILE_NS_MAX / NS_PER_S)
        problem, kept = "", []
        try:
            kept.append(compiled("", tokens, grammar))  # its memory is measured
        except MemoryError:
            problem = "large"
        except BaseException as error:  # noqa: BLE001 whatever the library raises is about this form
            problem = str(error) or type(error).__name__
        with open("/proc/self/statm", encoding="ascii") as file:
            grown = max(0, int(file.read().split()[1]) - resident) * page
        os.write(write, json.dumps({"problem": problem[:1000], "bytes": grown}).encode())
    finally:
        os._exit(0)


def _read_for(read: int, wait_s: float) -> bytes:
    """What comes within so long, up to its end."""
    with open(read, "rb", buffering=0) as file:
        ready, _, _ = select.select([file], [], [], wait_s)
        return file.read(65536) or b"" if ready else b""
