"""The way of requests into the live world and out of it early: accepted, held, prepared first, turned away, drained.

A request that the scheduler hears of is the world's from then on. Everything here belongs to the loop's thread.
"""

from __future__ import annotations

import logging
from typing import Callable, Collection, Dict, List, Mapping, Optional

from edgeserve.config.schema import Config
from edgeserve.errors import Failed, Rejected, RequestError
from edgeserve.live.endings import Endings
from edgeserve.live.errors import CANCELLED, STOPPING, EarlyRefusals, refusal
from edgeserve.live.loop_io import clock_ns
from edgeserve.live.prediction_worker import Prediction, PredictionWorker
from edgeserve.live.preparation import Preparation, PreparationWorker, Preparer
from edgeserve.live.request import LiveRequest
from edgeserve.live.stats import AppCounts
from edgeserve.live.values import RequestValues
from edgeserve.sched.protocol.actions import Outcome
from edgeserve.sched.protocol.events import DrainRequested, Event, Request, RequestArrived, RequestCancelled
from edgeserve.units import counted

log = logging.getLogger("edgeserve")

ARRIVING_MAX = 1024
"""Requests beyond the server's bound that the scheduler is still asked about in one step: it turns them or others
away."""


class Lifecycle:
    """Accepts the requests of one world. ``held``: what arrives while the loop is about to change its scheduler;
    ``adopt``: of a world that took over from another; ``drained_by_ns``: when the accepted requests must have ended;
    ``early`` remembers the requests of which the scheduler never heard. ``sequences``: the models whose items are
    sequences."""

    def __init__(
        self,
        config: Config,
        values: RequestValues,
        app_counts: Dict[str, AppCounts],
        endings: Endings,
        predictions: PredictionWorker,
        preparations: PreparationWorker,
        preparers: Mapping[str, Preparer],
        sequences: Collection[str],
    ) -> None:
        self.values = values
        self.predictions = predictions
        self.preparations = preparations
        self.stopping = False
        self.held: Optional[List[LiveRequest]] = None
        self.adopt: Optional[Callable[[LiveRequest], bool]] = None
        self.drained_by_ns: Optional[int] = None
        self.early: Optional[EarlyRefusals] = None
        self._app_counts = app_counts
        self._endings = endings
        self._preparers = preparers
        self._pending_max = config.server.pending_max
        self._writing = frozenset(
            name for name, app in config.apps.items() if any(node.model in sequences for node in app.nodes)
        )

    @property
    def open_count(self) -> int:
        """Requests that have not ended, those included that wait for a prediction or for their preparation."""
        return self.values.open_count + len(self.predictions.waiting) + len(self.preparations.waiting)

    def open_requests(self) -> List[LiveRequest]:
        """The requests that have not ended."""
        early = [*self.predictions.requests(), *self.preparations.requests(), *(self.held or ())]
        return self.values.open_requests() + early

    def accept(self, request: LiveRequest, events: List[Event]) -> None:
        """Hand a checked request to the scheduler, unless the server is full or stopping. A request whose hints are
        still to be predicted waits for that first."""
        self.values.follow(request)
        limit = self._pending_max
        count = self.open_count
        preparer = self._preparers.get(request.app) if self._preparers and request.prepared is None else None
        if preparer is not None and not preparer.wants(request.inputs):
            preparer = None
        if (
            request.predictors is None
            and preparer is None
            and count < limit
            and self.held is None
            and self.adopt is None
            and not self.stopping
        ):
            self._arrive(request, events)  # as most requests do
        elif self.held is not None and len(self.held) < limit and not self.stopping:
            request.prepared = None  # another engine may serve it
            self.held.append(request)
        elif self.adopt is not None and not self.adopt(request):
            return
        elif count >= limit and (
            request.predictors is not None or count > self.values.open_count or count >= limit + ARRIVING_MAX
        ):
            # Else the scheduler decides, which may give it another client's place: it does not know the requests that
            # wait for their prediction or preparation.
            self._turn_away(
                request,
                Rejected(
                    f"the server has {limit} requests that have not ended, its bound; send "
                    "fewer at a time or raise [server] pending_max",
                    "server_full",
                ),
            )
        elif self.stopping:
            self._turn_away(request, Rejected("the server is shutting down and accepts nothing more", "draining"))
        elif preparer is not None:
            refused = self.preparations.take(request, preparer, self.values.owner_of(request))
            if refused is not None:
                self._turn_away(request, refused)
        elif request.predictors is None:
            self._arrive(request, events)
        else:
            for ready in self.predictions.take(request, clock_ns()):
                self._arrive(ready, events)

    def _arrive(self, request: LiveRequest, events: List[Event]) -> None:
        """Tell the scheduler of a request."""
        self.values.add(request)
        app = request.app
        self._app_counts[app].received += 1
        planned_ns = self._endings.overhead.planned_ns(request.arrival_ns, request.deadline_ns)
        priority_class, value, on_late = request.priority_class, request.value, request.on_late
        assert priority_class is not None and value is not None and on_late is not None, "resolved when it was checked"
        if on_late == "drop" and request.pieces and app in self._writing:
            on_late = request.on_late = "partial"  # what was sent cannot be taken back
        owing = self.preparations.owing
        owed_ns = owing.pop(self.values.owner_of(request), 0) if owing else 0
        events.append(
            RequestArrived(
                Request(
                    request.id,
                    app,
                    request.arrival_ns,
                    planned_ns,
                    request.client,
                    priority_class,
                    value,
                    request.stream,
                    on_late,
                    request.hints,
                    request.quality_min or 0.0,
                    request.deadline_ns - planned_ns,
                    request.charged_ns + owed_ns,
                    request.trusted,
                )
            )
        )

    def predicted(self, prediction: Prediction, events: List[Event]) -> None:
        """Hand the request of a finished prediction to the scheduler."""
        if self.predictions.finish(prediction, clock_ns()):
            self._arrive(prediction.request, events)

    def prepared(self, preparation: Preparation, events: List[Event]) -> None:
        """Accept the request of a finished preparation, or refuse it."""
        request = preparation.request
        if not self.preparations.finish(preparation):
            return
        request.prepared, request.charged_ns = preparation.made, preparation.took_ns
        error = preparation.error
        if error is None:
            self.accept(request, events)
        elif isinstance(error, (Rejected, Failed)):
            self._turn_away(request, error)
        else:
            error.id = request.id
            self._refuse_early(request, error)

    def _turn_away(self, request: LiveRequest, error: RequestError) -> None:
        outcome = Outcome.FAILED if isinstance(error, Failed) else Outcome.REJECTED
        self.count_refused(request.app, outcome, error.reason if isinstance(error, Rejected) else str(error))
        error.id = request.id
        self._refuse_early(request, error)

    def count_refused(self, app: str, outcome: str, reason: str) -> None:
        """Count the end of a request of which the scheduler never heard."""
        counts = self._app_counts[app]
        counts.received += 1
        counts.ended(outcome, reason)

    def _refuse_early(self, request: LiveRequest, error: RequestError) -> None:
        request.ended = True
        if self.early is not None:
            self.early.add(request.app, error)
        request.responder.refuse(request, error)

    def cancel(self, request: LiveRequest, events: List[Event], reason: str = CANCELLED, keeps: bool = False) -> None:
        """Cancel a request; with ``keeps``, answer it with its partial answer."""
        if self.held is not None and request in self.held:
            self.held.remove(request)
            self._refuse_early(request, refusal(request.app, Outcome.CANCELLED, reason, request.id))
        elif self.predictions.forget(request) or self.preparations.forget(request):
            self.count_refused(request.app, Outcome.CANCELLED, reason)
            self._refuse_early(request, refusal(request.app, Outcome.CANCELLED, reason, request.id))
        elif not request.ended:
            events.append(RequestCancelled(request.id, reason, keeps))

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop(self, drain_ns: int, events: List[Event]) -> None:
        """Accept nothing more, and cancel what has not ended within ``drain_ns``. The first call asks to drain; a later
        one can only shorten the time."""
        now_ns = clock_ns()
        if not self.stopping:
            self.stopping = True
            self.drained_by_ns = now_ns + drain_ns
            for request in self.predictions.release_all(now_ns):
                self._arrive(request, events)  # accepted before; it may still end in time
            for request in self.preparations.requests():
                self.preparations.forget(request)
                self._turn_away(request, refusal(request.app, Outcome.REJECTED, "draining", request.id))
            events.append(DrainRequested())
        elif self.drained_by_ns is not None:
            self.drained_by_ns = min(self.drained_by_ns, now_ns + drain_ns)

    def _cancel_the_rest(self, events: List[Event]) -> None:
        self.drained_by_ns = None
        rest = self.values.open_requests()
        if rest:
            log.warning("stopping: %s not ended in time and cancelled", counted(len(rest), "accepted request"))
        events.extend(RequestCancelled(request.id, STOPPING, keeps=True) for request in rest)

    def first_due_ns(self, until_ns: Optional[int]) -> Optional[int]:
        """When the first of the scheduler's timer, the end of draining and the limits of predictions and preparations
        is due."""
        times = [
            until_ns,
            self.drained_by_ns,
            self.predictions.due_ns() if self.predictions.waiting else None,
            self.preparations.due_ns() if self.preparations.waiting else None,
        ]
        return min([at_ns for at_ns in times if at_ns is not None])

    def come_due(self, now_ns: int, events: List[Event]) -> None:
        """End what has waited to its limit."""
        if self.drained_by_ns is not None and now_ns >= self.drained_by_ns:
            self._cancel_the_rest(events)
        if self.predictions.waiting:
            for request in self.predictions.expire(now_ns):
                self._arrive(request, events)
        if self.preparations.waiting:
            for request in self.preparations.expire(now_ns):
                self._turn_away(request, refusal(request.app, Outcome.REJECTED, "expired", request.id))
