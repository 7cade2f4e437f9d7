"""A scheduler by itself, for closed forms of the simulated world: no deadlines, no batches, no estimates."""

from __future__ import annotations

from collections import deque

from edgeserve.sched.protocol.actions import START_ANY_TIME_NS, FinishRequest, Outcome, RunBatch
from edgeserve.sched.protocol.events import JobId, RequestArrived, WorkFinished, WorkRefused


class Relay:
    """Runs each node of a request as soon as the one before is over, one job at a time on the first lane of its model.
    A work has to start within ``late_ns``."""

    def __init__(self, config, late_ns=START_ANY_TIME_NS):
        self.config, self.late_ns = config, late_ns
        self.waiting = {lane: deque() for lane in config.lanes}
        self.out, self.busy, self.next_id = {}, set(), 1

    @property
    def wake_ns(self):
        return None

    def thought_ns(self):
        return 0

    def step(self, now_ns, events=()):
        actions = [action for event in events for action in self._hear(event)]
        for lane, waiting in self.waiting.items():
            if waiting and lane not in self.busy:
                app, request, index = waiting.popleft()
                node = self.config.apps[app].nodes[index]
                before_ns = min(now_ns + self.late_ns, START_ANY_TIME_NS)
                jobs = (JobId(request, node.name, ()),)
                actions.append(RunBatch(self.next_id, lane, node.model, jobs, 1, now_ns, before_ns, 1))
                self.out[self.next_id] = (app, request, index, lane)
                self.busy.add(lane)
                self.next_id += 1
        return actions

    def _hear(self, event):
        if isinstance(event, RequestArrived):
            self._ready(event.request.app, event.request.id, 0)
            return
        if not isinstance(event, (WorkFinished, WorkRefused)):
            return
        app, request, index, lane = self.out.pop(event.work_id)
        self.busy.discard(lane)
        if isinstance(event, WorkRefused):
            yield FinishRequest(request, Outcome.DROPPED, event.reason)
        elif event.results[0].status == "unfinished":
            self.waiting[lane].appendleft((app, request, index))
        elif event.results[0].status == "failed":
            yield FinishRequest(request, Outcome.FAILED)
        elif index + 1 == len(self.config.apps[app].nodes):
            yield FinishRequest(request, Outcome.COMPLETED)
        else:
            self._ready(app, request, index + 1)

    def _ready(self, app, request, index):
        model = self.config.models[self.config.apps[app].nodes[index].model]
        self.waiting[(model.lanes or list(self.waiting))[0]].append((app, request, index))
