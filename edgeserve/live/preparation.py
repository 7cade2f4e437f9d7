"""Work of engines on requests before these are accepted: an answer's form is compiled here, on no lane.

One thread works for all clients, in turns by the time that each has taken: a client that asks for much delays only
itself. What it took is charged to its owner's share of the lanes besides (``Request.charged_ns``), with its next
request where this one came to nothing.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from edgeserve.config.schema import AppConfig
from edgeserve.engines.base import Engine, Values
from edgeserve.errors import BadInput, EngineError, Failed, Rejected, RequestError, WrongInput, told
from edgeserve.live.errors import cut
from edgeserve.owners import user_of

WAITING_MAX = 256
"""Requests that wait for their preparation at a time."""

WAITING_OF_ONE_MAX = 64
"""And of one user."""

OWING_MAX = 1024
"""Owners whose preparations that led to no request are remembered until their next one."""

FindEngine = Callable[[str], Optional[Engine]]
"""An engine of a model, ``None`` where it has none now."""


class _Place(NamedTuple):
    """One node whose engine prepares: of which model, and which of the request's inputs are which of its own."""

    node: str
    model: str
    inputs: Mapping[str, str]  # the engine's name -> the request's


class Preparer:
    """Prepares the requests of one app. Immutable once made."""

    def __init__(self, app: AppConfig, prepares: Mapping[str, Tuple[str, ...]]) -> None:
        self._places: List[_Place] = []
        for node in app.nodes:
            names = prepares.get(node.model, ())
            if node.inputs:
                found = {name: node.inputs[name][8:] for name in names if node.inputs.get(name, "")[:8] == "request."}
            else:
                found = {} if node.after else {name: name for name in names}
            if found:
                self._places.append(_Place(node.name, node.model, found))

    def __bool__(self) -> bool:
        return bool(self._places)

    def wants(self, inputs: Mapping[str, Any]) -> bool:
        """True if a request with these inputs has anything to prepare."""
        return any(inputs.get(theirs) is not None for place in self._places for theirs in place.inputs.values())

    def prepare(self, inputs: Mapping[str, Any], owner: str, engine_of: FindEngine) -> Tuple[Dict[str, Any], int]:
        """The prepared value of each node, and the processor time spent. Raises what the engine raises."""
        made: Dict[str, Any] = {}
        took_ns = 0
        for place in self._places:
            item: Values = {ours: inputs[theirs] for ours, theirs in place.inputs.items() if theirs in inputs}
            engine = engine_of(place.model)
            found = engine.prepare(item, owner) if engine is not None and item else None
            if found is not None:
                made[place.node] = found
                took_ns += found.took_ns
        return made, took_ns


@dataclass(eq=False)
class Preparation:
    """A request that waits for its preparation, posted to the loop when that is over. ``error``: why it cannot be
    served."""

    request: Any
    preparer: Preparer
    owner: str
    made: Dict[str, Any] = field(default_factory=dict)
    took_ns: int = 0
    error: Optional[RequestError] = None
    abandoned: bool = False


class PreparationWorker:
    """One thread that prepares, the client that has had the least of it first. Everything but the thread itself belongs
    to the loop's thread. ``waiting``: by the identity of the request, oldest first.
    ``owing``: what preparations took that led to no request, by owner."""

    def __init__(self, post: Callable[[Preparation], None], clock_ns: Callable[[], int], engine_of: FindEngine) -> None:
        self.waiting: Dict[int, Preparation] = {}
        self.owing: Dict[str, int] = {}
        self._post = post
        self._clock_ns = clock_ns
        self._engine_of = engine_of
        self._inbox: queue.SimpleQueue[Optional[Preparation]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._running: Optional[Preparation] = None
        # Start-time fair queueing: a user's next turn comes when all have had as much as it had.
        self._turn_ns = 0
        self._next_ns: Dict[str, int] = {}

    def requests(self) -> List[Any]:
        """The waiting requests, oldest first."""
        return [each.request for each in self.waiting.values()]

    def due_ns(self) -> int:
        """When the first of them is late. There must be one."""
        due_ns: int = min([each.request.deadline_ns for each in self.waiting.values()])
        return due_ns

    def take(self, request: Any, preparer: Preparer, owner: str) -> Optional[Rejected]:
        """A checked request waits for its preparation, or why it may not."""
        mine = sum([user_of(each.owner) == user_of(owner) for each in self.waiting.values()])
        if len(self.waiting) >= WAITING_MAX or mine >= WAITING_OF_ONE_MAX:
            return Rejected(
                f"app {request.app!r}: {mine} requests of this client, and {len(self.waiting)} of all, wait for the "
                "forms of their answers (response_format, tools) to be compiled; send fewer at a time",
                "over_share" if mine >= WAITING_OF_ONE_MAX else "server_full",
            )
        self.waiting[id(request)] = Preparation(request, preparer, owner)
        self._feed()
        return None

    def finish(self, preparation: Preparation) -> bool:
        """A preparation is over. Whether its request still waits for it."""
        self._next_ns[user_of(preparation.owner)] = self._turn_of(preparation) + preparation.took_ns
        self._running = None
        if not preparation.abandoned:
            del self.waiting[id(preparation.request)]
        if preparation.abandoned or preparation.error is not None:
            self.owing[preparation.owner] = self.owing.pop(preparation.owner, 0) + preparation.took_ns
            if len(self.owing) > OWING_MAX:
                del self.owing[next(iter(self.owing))]
        self._feed()
        return not preparation.abandoned

    def forget(self, request: Any) -> bool:
        """A request is cancelled; whether it waited here."""
        found = self.waiting.pop(id(request), None)
        if found is None:
            return False
        found.abandoned = True
        return True

    def expire(self, now_ns: int) -> List[Any]:
        """Requests whose deadline has passed, which wait no longer; one that is answered late waits on."""
        late = [each.request for each in self.waiting.values() if each.request.deadline_ns <= now_ns]
        late = [request for request in late if request.on_late != "answer"]
        for request in late:
            self.forget(request)
        return late

    def close(self) -> None:
        """End the thread after what it does now."""
        if self._thread is not None:
            self._inbox.put(None)

    def _turn_of(self, preparation: Preparation) -> int:
        return max(self._turn_ns, self._next_ns.get(user_of(preparation.owner), 0))

    def _feed(self) -> None:
        """Give the thread the next request, if it has none."""
        if self._running is not None or not self.waiting:
            if not self.waiting:
                self._next_ns.clear()  # all that wanted something have had it
            return
        first = min(self.waiting.values(), key=self._turn_of)
        self._turn_ns = self._turn_of(first)
        self._running = first
        if self._thread is None:
            # A daemon: it must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="edgeserve-prepare", daemon=True)
            self._thread.start()
        self._inbox.put(first)

    def _run(self) -> None:
        while True:
            preparation = self._inbox.get()
            if preparation is None:
                return
            request = preparation.request
            began_ns = self._clock_ns()
            try:
                preparation.made, preparation.took_ns = preparation.preparer.prepare(
                    request.inputs, preparation.owner, self._engine_of
                )
            except BaseException as error:  # noqa: BLE001 an engine's code, and a library's panics are no Exception
                preparation.error = _error_of(request.app, error)
                preparation.took_ns = self._clock_ns() - began_ns
            self._post(preparation)


def _error_of(app: str, error: BaseException) -> RequestError:
    """The error that the client receives."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, WrongInput):
        return BadInput(cut(f"app {app!r}: {error}"))
    text = str(error) if isinstance(error, EngineError) else told(error)
    return Failed(cut(f"app {app!r}: its answer could not be prepared: {text}"))


def preparers(apps: Mapping[str, AppConfig], engines: Mapping[Tuple[str, str], Engine]) -> Dict[str, Preparer]:
    """The preparer of each app that has one."""
    prepares = {model: engine.prepares for (model, _), engine in engines.items() if engine.prepares}
    found = {name: Preparer(app, prepares) for name, app in apps.items()}
    return {name: preparer for name, preparer in found.items() if preparer}
