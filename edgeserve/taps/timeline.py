"""Timelines: recorded steps as a Chrome trace, which opens in Perfetto (ui.perfetto.dev) or chrome://tracing.

One process holds a track per lane with its batches, loads and evictions; one process per app holds its requests from
arrival to end, with an instant where one was dropped, refused or late, and why.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from edgeserve.config.text_files import write_file
from edgeserve.sched.protocol.actions import EvictModel, FinishRequest, LoadModel, Outcome, RunBatch
from edgeserve.sched.protocol.events import LaneChanged, Request, RequestArrived, WorkFinished, WorkRefused
from edgeserve.taps.trace import RecordedStep
from edgeserve.units import format_duration

ENTRIES_MAX = 1_000_000
"""Entries of one timeline: viewers become unusable far below; what follows is left out and counted."""

_LANES = 1  # the process that holds the lanes; apps follow


class Timeline:
    """Collects steps, in order; ``table`` is the finished trace. ``add`` has the signature of ``loop.OnStep``."""

    def __init__(self) -> None:
        self._entries: List[Dict[str, Any]] = []
        self._names: List[Dict[str, Any]] = [_name("process_name", _LANES, 0, "lanes")]
        self._lanes: Dict[str, int] = {}
        self._apps: Dict[str, int] = {}
        self._works: Dict[int, Any] = {}
        self._requests: Dict[int, Request] = {}
        self.left_out = 0

    def add(self, now_ns: int, events: Iterable[Any], actions: Iterable[Any]) -> None:
        """One step of the scheduler."""
        for event in events:
            if isinstance(event, RequestArrived):
                self._requests[event.request.id] = event.request
            elif isinstance(event, WorkFinished):
                self._work(event)
            elif isinstance(event, WorkRefused):
                self._refused(now_ns, event)
            elif isinstance(event, LaneChanged):
                state = "down" if event.up is False else "up" if event.speed is None else f"speed {event.speed:g}"
                self._put(
                    {
                        "ph": "i",
                        "s": "t",
                        "name": f"{state} {event.reason}".strip(),
                        "ts": now_ns / 1000,
                        "pid": _LANES,
                        "tid": self._lane(event.lane),
                    }
                )
        for action in actions:
            if isinstance(action, (RunBatch, LoadModel, EvictModel)):
                self._works[action.work_id] = action
            elif isinstance(action, FinishRequest):
                self._ended(now_ns, action)

    def table(self) -> Mapping[str, Any]:
        """The Chrome trace: lanes, apps, and how many entries did not fit."""
        return {
            "displayTimeUnit": "ms",
            "otherData": {"left_out": self.left_out},
            "traceEvents": self._names + self._entries,
        }

    def take(self) -> List[Mapping[str, Any]]:
        """The names of the tracks, and the entries since the last call, which are forgotten."""
        entries, self._entries = self._entries, []
        return [*self._names, *entries]

    def write(self, path: str) -> None:
        """Write the trace as JSON."""
        write_file(path, json.dumps(self.table(), separators=(",", ":")) + "\n")

    def _work(self, event: WorkFinished) -> None:
        action = self._works.pop(event.work_id, None)
        if action is None:
            return  # its lane was lost before; the answer came late
        arguments: Dict[str, Any] = {"work": action.work_id}
        if isinstance(action, RunBatch):
            name = f"probe {action.model}" if action.probe else f"{action.model} x{len(action.jobs)}"
            bad = sum(1 for result in event.results if result.status != "done")
            arguments.update(
                size=action.size,
                requests=[job.request_id for job in action.jobs[:64]],
                not_done=bad,
                expected_ms=action.expected_ns / 1e6,
                probe=action.probe,
            )
        else:
            name = f"{'load' if isinstance(action, LoadModel) else 'evict'} {action.model}"
            if event.failed:
                arguments["failed"] = event.failed
        self._put(
            {
                "ph": "X",
                "name": name,
                "ts": event.started_ns / 1000,
                "dur": (event.finished_ns - event.started_ns) / 1000,
                "pid": _LANES,
                "tid": self._lane(action.lane),
                "args": arguments,
            }
        )

    def _refused(self, now_ns: int, event: WorkRefused) -> None:
        action = self._works.pop(event.work_id, None)
        if action is not None:
            self._put(
                {
                    "ph": "i",
                    "s": "t",
                    "name": f"refused {action.model}: {event.reason}",
                    "ts": now_ns / 1000,
                    "pid": _LANES,
                    "tid": self._lane(action.lane),
                }
            )

    def _ended(self, now_ns: int, action: FinishRequest) -> None:
        request = self._requests.pop(action.request_id, None)
        if request is None:
            return
        process = self._app(request.app)
        late_ns = now_ns - request.deadline_ns - request.margin_ns  # behind what the client asked for
        breakdown = {name.replace("_ns", "_ms"): value / 1e6 for name, value in action.breakdown._asdict().items()}
        arguments = {
            "outcome": action.outcome,
            "reason": action.reason,
            "class": request.priority_class,
            "slack_ms": -late_ns / 1e6,
            **({"cut": action.cut} if action.cut else {}),
            **breakdown,
        }
        common = {"cat": request.app, "id": request.id, "pid": process, "tid": 0, "name": f"request {request.id}"}
        self._put({"ph": "b", "ts": request.arrival_ns / 1000, "args": arguments, **common})
        self._put({"ph": "e", "ts": now_ns / 1000, **common})
        label = ""
        if action.outcome != Outcome.COMPLETED:
            label = f"{action.outcome}: {action.reason}"
        elif action.cut:
            label = f"ended early: {action.cut}"
        elif late_ns > 0:
            label = f"late by {format_duration(late_ns)}"
        if label:
            self._put(
                {
                    "ph": "i",
                    "s": "p",
                    "name": label,
                    "ts": now_ns / 1000,
                    "pid": process,
                    "tid": 0,
                    "args": {"request": request.id},
                }
            )

    def _lane(self, lane: str) -> int:
        if lane not in self._lanes:
            self._lanes[lane] = len(self._lanes) + 1
            self._names.append(_name("thread_name", _LANES, self._lanes[lane], lane))
        return self._lanes[lane]

    def _app(self, app: str) -> int:
        if app not in self._apps:
            self._apps[app] = _LANES + 1 + len(self._apps)
            self._names.append(_name("process_name", self._apps[app], 0, f"app {app}"))
        return self._apps[app]

    def _put(self, entry: Dict[str, Any]) -> None:
        if len(self._entries) < ENTRIES_MAX:
            self._entries.append(entry)
        else:
            self.left_out += 1


def timeline_of(steps: Iterable[RecordedStep]) -> Timeline:
    """The timeline of recorded steps."""
    timeline = Timeline()
    for step in steps:
        timeline.add(*step)
    return timeline


def _name(kind: str, process: int, thread: int, name: str) -> Dict[str, Any]:
    arguments: Tuple[str, str] = ("name", name)
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": dict([arguments])}
