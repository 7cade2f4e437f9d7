"""The thread that predicts hints for requests of the bus (``plug_ins.HintSource``), apart from the loop's thread."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional

from edgeserve.units import NS_PER_MS, ns_to_ms

WAITING_MAX = 256
"""Requests that wait for their prediction at a time; one more goes on without."""

WAIT_SHARE = 4
WAIT_NS_MAX = 1000 * NS_PER_MS
"""A request waits for its prediction for a quarter of its time until the deadline, at most a second. A function that
runs for longer than that second counts as stuck: until it returns, requests go on without."""


@dataclass(eq=False)
class Prediction:
    """One request that waits for its prediction; posted to the loop when it is over. ``due_ns``: when the request goes
    on without. ``abandoned``: its request no longer waits for it. ``hints`` are the result."""

    request: Any
    asked_ns: int
    due_ns: int
    abandoned: bool = False
    hints: Optional[Mapping[str, float]] = None


class PredictionWorker:
    """One thread that predicts for the requests of the bus, in their order. Everything but the thread itself belongs to
    the loop's thread.

    Requests of one stream leave in the order in which they came: a request that goes on without its prediction takes
    those of its stream along that came before. Others may overtake each other, since their order is the policy's.
    ``waiting`` holds the predictions that are not here yet, by the identity of their request, oldest first.
    """

    def __init__(self, post: Callable[[Prediction], None], clock_ns: Callable[[], int]) -> None:
        self._post = post
        self._clock_ns = clock_ns
        self.waiting: Dict[int, Prediction] = {}
        self._inbox: queue.SimpleQueue[Optional[Prediction]] = queue.SimpleQueue()
        self._worker_thread: Optional[threading.Thread] = None
        self._running_since_ns = 0  # written by the thread; 0: nothing runs

    def requests(self) -> List[Any]:
        """The waiting requests, oldest first."""
        return [prediction.request for prediction in self.waiting.values()]

    def due_ns(self) -> int:
        """When the first of them goes on without. There must be one."""
        return min([prediction.due_ns for prediction in self.waiting.values()])

    def take(self, request: Any, now_ns: int) -> List[Any]:
        """A checked request whose app predicts. The requests that the scheduler is to be told of now, in their order:
        none while this one waits."""
        if not request.predictors.missing(request.hints) and not self._has_stream(request):
            return [request]
        stuck_ns = now_ns - self._running_since_ns if self._running_since_ns else 0
        if stuck_ns > WAIT_NS_MAX or len(self.waiting) >= WAITING_MAX:
            request.predictors.went_without(
                f"a predictor has been running for {ns_to_ms(stuck_ns):.0f} ms"
                if stuck_ns > WAIT_NS_MAX
                else f"{WAITING_MAX} requests wait for theirs"
            )
            return [*self._release_stream(request, now_ns), request]
        left_ns = request.deadline_ns - now_ns
        limit_ns = min(WAIT_NS_MAX, left_ns // WAIT_SHARE) if left_ns > 0 else WAIT_NS_MAX  # late answers count
        prediction = self.waiting[id(request)] = Prediction(request, now_ns, now_ns + limit_ns)
        self._inbox.put(prediction)
        self.start()
        return []

    def start(self) -> None:
        """Start the thread, if it is not there: before the server is ready, since later the system may give none."""
        if self._worker_thread is None:
            # A daemon: a predictor that hangs must not keep the process from ending.
            thread = threading.Thread(target=self._run, name="edgeserve-predict", daemon=True)
            thread.start()
            self._worker_thread = thread

    def finish(self, prediction: Prediction, now_ns: int) -> bool:
        """Take a prediction. True if its request still waits for it, and so goes on."""
        if prediction.abandoned:
            return False
        prediction.request.hints = prediction.hints
        self._leave(prediction, now_ns)
        return True

    def expire(self, now_ns: int) -> List[Any]:
        """Requests that go on without their prediction, because they cannot wait any longer."""
        gone: List[Any] = []
        for prediction in list(self.waiting.values()):
            if prediction.due_ns <= now_ns and not prediction.abandoned:
                gone += self._release_stream(prediction.request, now_ns, "an earlier one of its stream waits")
                self._leave(prediction, now_ns)
                prediction.request.predictors.went_without(
                    f"it did not come within {ns_to_ms(prediction.due_ns - prediction.asked_ns):.1f} ms"
                )
                gone.append(prediction.request)
        return gone

    def release_all(self, now_ns: int) -> List[Any]:
        """Let all requests go on without predictions: the server stops."""
        released = list(self.waiting.values())
        for prediction in released:
            self._leave(prediction, now_ns)
        return [prediction.request for prediction in released]

    def forget(self, request: Any) -> bool:
        """A request is cancelled; whether it waited here."""
        prediction = self.waiting.get(id(request))
        if prediction is None:
            return False
        self._leave(prediction, self._clock_ns())
        return True

    def close(self) -> None:
        """End the thread after what it runs now. It is not waited for: a user's function may take any time."""
        if self._worker_thread is not None:
            self._inbox.put(None)

    def _leave(self, prediction: Prediction, now_ns: int) -> None:
        prediction.abandoned = True
        prediction.request.predicted_ns = now_ns - prediction.asked_ns
        del self.waiting[id(prediction.request)]

    def _has_stream(self, request: Any) -> bool:
        return request.stream is not None and any(
            other.request.stream == request.stream and other.request.app == request.app
            for other in self.waiting.values()
        )

    def _release_stream(self, request: Any, now_ns: int, why: str = "a later one of its stream goes on") -> List[Any]:
        """Release the earlier requests of the stream of ``request`` that still wait."""
        released: List[Any] = []
        if request.stream is None:
            return released
        for prediction in list(self.waiting.values()):
            other = prediction.request
            if other is request:
                break
            if other.stream == request.stream and other.app == request.app:
                self._leave(prediction, now_ns)
                other.predictors.went_without(why)
                released.append(other)
        return released

    def _run(self) -> None:
        """Make one prediction after the other, on the worker's thread."""
        while True:
            prediction = self._inbox.get()
            if prediction is None:
                return
            if prediction.abandoned:
                continue
            self._running_since_ns = self._clock_ns()
            request = prediction.request
            hints = request.hints
            if request.predictors.missing(hints):  # not where it only keeps its place in its stream
                hints = request.predictors.on_arrival(hints, request.inputs, self._clock_ns)
            prediction.hints = hints
            self._running_since_ns = 0
            self._post(prediction)
