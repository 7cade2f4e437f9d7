"""The outputs of an ensemble's models, as served, into the file that ``edgeserve profile --fit`` learns from.

The policy draws the requests and has the models run that they do not run themselves
(``sched/policies/common/records.py``). Here the outputs of each drawn request are collected as they come back, on the
loop's thread, and written by a thread of their own: the loop never waits for a disk. A disk that is full ends the
recording with a warning, and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from edgeserve.config.files import resolve_path
from edgeserve.config.schema import AppConfig, Config
from edgeserve.engines.base import Result
from edgeserve.errors import ConfigError, nearest
from edgeserve.live.request import LiveRequest
from edgeserve.live.value_flow import AppPlan, split_reference
from edgeserve.sched.policies.common.ensembles import Ensemble, ensemble_of
from edgeserve.sched.protocol.actions import RunBatch
from edgeserve.sched.protocol.events import JobId
from edgeserve.sched.requests.graph import App

log = logging.getLogger("edgeserve")

OPEN_MAX = 64
"""Requests per app whose models have not all answered: more than a policy has inputs kept of; the oldest goes."""

VALUES_MAX = 65_536
"""Numbers that one model may say, or that may be features, of one request: more is no ensemble's answer."""

WRITE_ROWS = 64
WRITE_SHARE = 8
"""The file is written after 64 new records, or an eighth of those in it where that is more."""

QUIET_S = 30.0
"""New records that nothing follows are written after so long."""

CLOSE_S = 5.0
"""Seconds that closing waits for the last write."""

RECORDS_MAX = 5000
"""Records kept in the file, the latest: fitting takes about a minute for so many."""

WAITING_MAX = 1024
"""Records that wait for the writing thread; what comes on top is left out."""


class AppRecords:
    """The recorded requests of one app. The loop's thread adds records, the writing thread takes them."""

    def __init__(self, config: AppConfig, app: App, ensemble: Ensemble, directory: str) -> None:
        from edgeserve.predict.recorded import RecordedHistory  # a megabyte that a server without histories spares

        names = [node.name for node in ensemble.nodes]
        self.app = config.name
        self.file = RecordedHistory(resolve_path(config.history, directory), names, RECORDS_MAX)
        self.stopped = ""
        self.records = 0  # in memory and in the file, as of the writing thread's last look
        self.left_out = 0
        self.models = frozenset(node.model for node in ensemble.nodes)
        self._told = False
        self._place = {name: index for index, name in enumerate(names)}
        read = AppPlan(config).nodes[ensemble.join.name].sources or ()
        # Of several outputs of one model the first counts.
        self._output: Dict[str, str] = {source.node or "": source.name for source in reversed(read)}
        self._features = _features_of(config, app, ensemble)
        self._open: Dict[int, Tuple[List[Optional[NDArray[Any]]], Optional[NDArray[Any]]]] = {}

    def begin(self, job: JobId, request: LiveRequest) -> bool:
        """A model's inputs are to be kept; False where nothing is recorded any more."""
        if self.stopped:
            return False
        if job.request_id not in self._open:
            features = None
            if self._features is not None:
                owner, name = self._features
                values = request.inputs if owner is None else request.values.get((owner, ()), {})
                features = _numbers(values.get(name))
                if features is None:
                    self._leave_out(
                        f"{name!r} of [app.{self.app}] history_features is no array of finite numbers, "
                        f"{VALUES_MAX} at most"
                    )
                    return False
            if len(self._open) >= OPEN_MAX:
                del self._open[next(iter(self._open))]
                self._leave_out("")
            self._open[job.request_id] = ([None] * len(self._place), features)
        return True

    def said(self, job: JobId, result: Any) -> Optional[Tuple[NDArray[Any], Optional[NDArray[Any]]]]:
        """A model has answered; the whole record, if that was the last one."""
        entry = self._open.get(job.request_id)
        place = self._place.get(job.node)
        if entry is None or place is None or not isinstance(result, Result) or not result.done:
            return None
        name = self._output.get(job.node, "") or next(iter(result.outputs), "")
        value = _numbers(result.outputs.get(name))
        outputs, features = entry
        if value is None or any(other is not None and len(other) != len(value) for other in outputs):
            del self._open[job.request_id]
            self._leave_out(
                f"output {name!r} of node {job.node!r} is no array of finite numbers, or not of the size "
                "of the other models'"
            )
            return None
        outputs[place] = value
        rows = [row for row in outputs if row is not None]
        if len(rows) < len(outputs):
            return None
        del self._open[job.request_id]
        return np.stack(rows), features

    def _leave_out(self, reason: str) -> None:
        """A request is not recorded. The first time that something is wrong with it, people hear why."""
        self.left_out += 1
        if reason and not self._told:
            self._told = True
            log.warning("app %s: a request is left out of its history: %s", self.app, reason)


class HistoryRecorder:
    """The histories of a server's ``apps`` (:func:`recorded_apps`). ``after``: the recorder of an earlier
    configuration, whose last write comes before this one reads."""

    def __init__(self, apps: Mapping[str, AppRecords], after: Optional[HistoryRecorder] = None) -> None:
        self._apps = dict(apps)
        self._queue: queue.Queue[Any] = queue.Queue(WAITING_MAX)
        self._closing = False
        self._after: Optional[threading.Thread] = after.thread if after is not None else None
        self.thread: threading.Thread = threading.Thread(target=self._write, name="edgeserve-history", daemon=True)
        self.thread.start()

    def begin(self, job: JobId, request: LiveRequest) -> bool:
        """True if a job's inputs must be kept for the record. Jobs of apps that are not recorded are ignored."""
        records = self._apps.get(request.app)
        return records is None or records.begin(job, request)

    def said(self, action: RunBatch, results: Any) -> None:
        """A batch came back: one result per job, or nothing of the kind."""
        if type(results) is not list or len(results) != len(action.jobs):
            return
        for records in self._apps.values():
            if action.model not in records.models:
                continue
            for job, result in zip(action.jobs, results):
                record = records.said(job, result)
                if record is not None:
                    try:
                        self._queue.put_nowait((records, *record))
                    except queue.Full:
                        records.left_out += 1

    def table(self, app: str) -> Mapping[str, Any]:
        """The figures of an app's history for ``stats``; empty where none is recorded."""
        records = self._apps.get(app)
        if records is None:
            return {}
        return {
            "history": {
                "file": records.file.path,
                "records": records.records,
                "left_out": records.left_out,
                "stopped": records.stopped,
            }
        }

    def close(self, wait: bool = True) -> None:
        """Write the remaining records; with ``wait``, return when they are written."""
        self._closing = True
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            pass  # it looks after every record
        if wait:
            self.thread.join(CLOSE_S)
            if self.thread.is_alive():
                log.warning("the history could not be written within %.0f s; its last records are lost", CLOSE_S)

    # --- the writing thread -------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._after is not None:
            self._after.join(CLOSE_S)
        for records in self._apps.values():
            self._tell(records, records.file.load())
            records.records = len(records.file)
        while True:
            try:
                item = self._queue.get(timeout=QUIET_S)
            except queue.Empty:
                item = ()
            if item and not item[0].stopped:
                records, outputs, features = item
                self._tell(records, records.file.add(outputs, features))
                records.records = len(records.file)
                if records.file.unwritten >= max(WRITE_ROWS, len(records.file) // WRITE_SHARE):
                    self._put(records)
            over = item is None or (self._closing and self._queue.empty())
            if over or not item:
                for records in self._apps.values():
                    self._put(records)
            if over:
                return

    def _put(self, records: AppRecords) -> None:
        if not records.file.unwritten or records.stopped:
            return
        try:
            records.file.write()
        except OSError as error:
            records.stopped = f"{records.file.path!r} cannot be written: {error.strerror or error}"
            log.warning(
                "app %s: its history is not recorded any more, serving goes on: %s", records.app, records.stopped
            )

    @staticmethod
    def _tell(records: AppRecords, said: str) -> None:
        if said:
            log.warning("app %s: %s", records.app, said)


def recorded_apps(config: Config) -> Dict[str, AppRecords]:
    """The recorders by app. Raises ``ConfigError`` where an app cannot be recorded."""
    apps: Dict[str, AppRecords] = {}
    for item in config.apps.values():
        if item.history and item.history_share > 0.0:
            app = App(item, item.policy)
            ensemble = ensemble_of(app)
            if ensemble is not None:  # else its policy refuses it
                apps[item.name] = AppRecords(item, app, ensemble, config.directory)
    return apps


def _features_of(config: AppConfig, app: App, ensemble: Ensemble) -> Optional[Tuple[Optional[str], str]]:
    """Node (None: the request) and name of the value that ``history_features`` names, known before the models run."""
    if not config.history_features:
        return None
    where = f"[app.{config.name}] history_features = {config.history_features!r}"
    owner, name = split_reference(config.history_features, app.by_name, where)
    if owner == "request":
        if config.inputs and name not in config.inputs:
            raise ConfigError(f"{where}: [app.{config.name}.inputs] declares no {name!r}{nearest(name, config.inputs)}")
        return None, name
    if owner not in ensemble.leads:
        raise ConfigError(
            f"{where}: expected 'request.NAME', or 'NODE.NAME' of a node before the models"
            f"{nearest(owner, ensemble.leads)}"
        )
    plan = AppPlan(config).nodes[owner]
    if plan.needed and name not in plan.needed:
        log.warning(
            "%s: no other node reads this output of node %r; if it returns none of that name, nothing is recorded",
            where,
            owner,
        )
    return owner, name


def _numbers(value: Any) -> Optional[NDArray[Any]]:
    """A value as one flat copy of float32, or None where it is no array of numbers or too large."""
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    if array.dtype.kind not in "fiub" or not 0 < array.size <= VALUES_MAX:
        return None
    numbers: NDArray[Any] = array.astype(np.float32).reshape(-1)
    return numbers if bool(np.isfinite(numbers).all()) else None
