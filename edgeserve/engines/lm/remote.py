"""A back end in processes of its own, one per lane: what a library does to its process costs one engine.

The step loop, the sequences and the tokenizer stay here; a child has the weights and the memory of its lane's
sequences, and is asked for the scores of rows of tokens. When it ends, its batch fails, another is started, and the
sequences that it held are computed again. What starts a child is handed in.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Protocol, Sequence, Tuple, Union

from numpy.typing import NDArray

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.hold import NAME as TURNS
from edgeserve.engines.hold import Hold
from edgeserve.engines.lm.backend import BackendSession, EncoderPrompt, LmBackend, ModelFacts, Tokenizer, TokenRow
from edgeserve.engines.lm.sampling import Best, Scores, best_of
from edgeserve.engines.turns import Turns
from edgeserve.errors import EngineError

HOST, TRIAL = "edgeserve.engines.lm.remote:BackendHost", "edgeserve.engines.lm.remote:TrialHost"


class Process(Protocol):
    """A child process with a host."""

    def load(self) -> Any:
        """Start it; what its host says when it is loaded."""

    def call(self, verb: str, argument: Any, starts: int = 0) -> Any:
        """Ask the host, if it still is the one that was started as number ``starts``."""

    def present(self) -> int:
        """See that it lives: the number of its start. Raises where it cannot be started, or not at once."""

    def trouble(self) -> str:
        """The reason why a call would fail now, or ``""``."""

    def unload(self) -> None:
        """End it, during a call too."""


StartProcess = Callable[..., Process]
"""``start(host, model, lane, *more)``: not started yet; its host is made with ``(model, [lane], *more)``, of which the
first is the directory of a model that has a file."""

Order = Tuple[str, Tuple[int, ...]]
"""The name of ``free``, ``keep`` or ``copy`` of a session, and its arguments."""


class RemoteBackend:
    """The back end of ``model`` in a process per lane. ``local`` is the same in this process: of it the tokenizer alone
    is used."""

    def __init__(
        self,
        start: StartProcess,
        model: ModelConfig,
        lanes: Sequence[LaneInfo],
        directory: str,
        slots: int,
        local: LmBackend,
    ) -> None:
        self.continues = local.continues
        self._name = model.name
        self._local = local
        self._processes: Dict[str, Process] = {lane.name: start(HOST, model, lane, directory, slots) for lane in lanes}
        self._mixes = False

    def load(self) -> ModelFacts:
        found: List[Tuple[ModelFacts, bool]] = [process.load() for process in self._processes.values()]
        facts, self._mixes = found[0]
        return facts._replace(weights_bytes=sum([each.weights_bytes for each, _ in found]))

    def unload(self) -> None:
        for process in self._processes.values():
            process.unload()
        self._local.unload()

    def open(self, lane: LaneInfo, slots: int) -> BackendSession:
        process = self._processes.get(lane.name)
        if process is None:
            raise EngineError(
                f"model {self._name!r} was not made for lane {lane.name!r} (made for "
                f"{', '.join(map(repr, self._processes))})"
            )
        turns = (lane.common or {}).get(TURNS)
        return RemoteSession(process, slots, self._mixes, turns, lane.name)

    def tokenizer(self) -> Tokenizer:
        return self._local.tokenizer()

    def trouble(self, lane: str) -> str:
        """The reason why a batch on this lane would fail now, or ``""``."""
        process = self._processes.get(lane)
        return "" if process is None else process.trouble()


class RemoteSession(BackendSession):
    """One lane's session, whose memory is the child's. ``turns``: of the processes on the lane's GPU: each step waits
    for the child's."""

    def __init__(
        self,
        process: Process,
        slots: int,
        mixes: bool,
        turns: Optional[Turns] = None,
        lane: str = "",
    ) -> None:
        self.slots = slots
        self.mixes = mixes
        self._process = process
        self._turns = turns
        self._lane = lane
        self._starts = process.present()
        self._orders: Deque[Order] = deque()  # on any thread; told with the next step, before its rows

    def prefill(self, rows: Sequence[TokenRow]) -> List[Scores]:
        return self._run("prefill", rows)

    def decode(self, rows: Sequence[TokenRow]) -> List[Scores]:
        return self._run("decode", rows)

    def _run(self, verb: str, rows: Sequence[Any]) -> List[Scores]:
        orders = [self._orders.popleft() for _ in range(len(self._orders))]
        hold = Hold(0) if self._turns is None else self._turns.wait(id(self._process), self._lane)
        try:
            found: List[Any] = self._process.call(verb, (orders, list(rows)), self._starts)
        finally:
            hold.leave()
        return [Best(*scores) if isinstance(scores, tuple) else scores for scores in found]

    def encode(self, sources: Sequence[EncoderPrompt]) -> None:
        self._run("encode", sources)

    def free(self, slot: int) -> None:
        self._orders.append(("free", (slot,)))

    def keep(self, slot: int) -> None:
        self._orders.append(("keep", (slot,)))

    def copy(self, source: int, target: int, count: int) -> None:
        self._orders.append(("copy", (source, target, count)))

    def lost(self) -> bool:
        starts = self._process.present()
        if starts == self._starts:
            return False
        self._starts = starts
        return True

    def close(self) -> None:
        """The child ends with its engine."""


# --- the child's side -------------------------------------------------------------------------------------------------


def _backend(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> LmBackend:
    engine: Any = make_engine(model, lanes, directory)
    backend: LmBackend = engine.backend()
    return backend


class BackendHost:
    """A back end and its session of one lane."""

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str, slots: int) -> None:
        self._backend = _backend(model, lanes, directory)
        self._lane, self._slots = lanes[0], slots

    def load(self) -> Tuple[ModelFacts, bool]:
        """Reads the model and makes a step: what a library refuses by ending its process ends this one, now."""
        facts = self._backend.load()
        self._session = self._backend.open(self._lane, self._slots)
        if facts.encoder is not None:
            self._session.encode([EncoderPrompt(0, [0])])
        self._session.prefill([TokenRow(0, [0], 0)])
        self._session.free(0)
        return facts, self._session.mixes

    def ask(self, verb: str, argument: Tuple[List[Order], List[Any]]) -> List[Any]:
        """The scores of a step: of rows that read the best ones alone, no others go to the server."""
        orders, rows = argument
        for name, slots in orders:
            getattr(self._session, name)(*slots)
        if verb == "encode":
            self._session.encode(rows)
            return []
        found = self._session.prefill(rows) if verb == "prefill" else self._session.decode(rows)
        return [_sent(scores, row.best) for row, scores in zip(rows, found)]


def _sent(scores: Scores, best: int) -> Union[NDArray[Any], Tuple[NDArray[Any], ...]]:
    """Scores as they travel between processes: plain values."""
    if isinstance(scores, Best):
        return tuple(scores)
    return tuple(best_of(scores, best)) if 0 < best < len(scores) else scores


class TrialHost:
    """Opens the tokenizer, to see whether that can be done."""

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        self._backend = _backend(model, lanes, directory)

    def load(self) -> None:
        self._backend.tokenizer()

    def ask(self, verb: str, argument: Any) -> None:
        """Nothing is asked of it."""
