"""The trial of a form of answers: its compilation within bounds of time and memory, in a process that can be ended at
any moment, before the serving process compiles it.

A form of 40 characters may take ten seconds and a gigabyte (``{"multipleOf": 999983}``), and none of the library's own
limits holds that. So a process that has the model's vocabulary makes a copy of itself for each form (a fork, of a
process with one thread); the copy compiles it and is ended by the system when its time is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import weakref
from dataclasses import replace
from typing import Any, Callable, List, Sequence, Tuple

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm.constraint import compiled, read_vocabulary
from edgeserve.engines.lm.kept_forms import Cost
from edgeserve.errors import WrongInput
from edgeserve.units import NS_PER_MS, NS_PER_S, format_duration, format_size
from edgeserve.waits import readable_files

COMPILE_NS_MAX = 250 * NS_PER_MS
"""Processor time for one form. The schemas of common tools take 1 to 5 ms, one of 1,900 properties takes 500."""

COMPILE_WAIT_S = 5.0
"""The longest wait for a trial, in seconds, which a busy machine slows."""

TRIAL_NICE = 5
"""Lanes go before trials: a third of the weight in the system's scheduler."""

FORM_BYTES_MAX = 64 << 20
"""Memory for one form while it is compiled, and after."""

FORK_HOST = "edgeserve.engines.lm.form_trial:FormHost"


class FormTrial:
    """Tries forms of one model in a process of its own, which is started for the first of them and ends with this
    object. ``start`` is :data:`~edgeserve.engines.lm.remote.StartProcess`. Any thread; one form at a time."""

    def __init__(self, start: Callable[..., Any], model: ModelConfig, pieces: Sequence[bytes], stops: Sequence[int]):
        self._name = model.name
        own = replace(model, file="")  # its process reads none
        self._process = start(FORK_HOST, own, LaneInfo(name="forms", models=1), list(pieces), list(stops))
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
        self._tokens = read_vocabulary(_Pieces(self._pieces, self._stops), len(self._pieces))

    def ask(self, verb: str, grammar: str) -> Tuple[str, int, int]:
        """``""``, ``slow``, ``large`` or the fault of the form; the processor time in ns, and the bytes it takes."""
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
        except BaseException as error:  # noqa: BLE001 any error of the library is about this form
            problem = str(error) or type(error).__name__
        with open("/proc/self/statm", encoding="ascii") as file:
            grown = max(0, int(file.read().split()[1]) - resident) * page
        os.write(write, json.dumps({"problem": problem[:1000], "bytes": grown}).encode())
    finally:
        os._exit(0)


def _read_for(read: int, wait_s: float) -> bytes:
    """The bytes that come within ``wait_s``; empty without any."""
    with open(read, "rb", buffering=0) as file:
        return file.read(65536) or b"" if readable_files((read,), round(wait_s * NS_PER_S)) else b""
