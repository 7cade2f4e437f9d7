"""Recording a run as JSON lines of (now, events, actions), and reading it back.

A recording holds ids, sizes and times, no tensors. :mod:`edgeserve.taps.replay` feeds it to a scheduler.
"""

from __future__ import annotations

import collections.abc
import contextlib
import json
import logging
import os
from typing import IO, Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.profiles import Parts, Profile, parts_of, restricted
from edgeserve.config.schema import Config
from edgeserve.config.text_files import regular_file
from edgeserve.errors import EdgeServeError
from edgeserve.sched.protocol.actions import ACTION_KINDS, Action, LatencyBreakdown
from edgeserve.sched.protocol.events import EVENT_KINDS, Event, JobId, JobResult, Request

log = logging.getLogger("edgeserve")

LINE_BYTES_MAX = 1 << 20
"""The bytes from the end in which the end of the last whole line is looked for."""

FORMAT = 2
"""Version of the recording's format; the first line of a recording says it."""


class TraceError(EdgeServeError):
    """A recording cannot be read, or a replay decided differently."""

    code = "trace"


class RecordedStep(NamedTuple):
    """One call of ``Scheduler.step``."""

    now_ns: int
    events: Tuple[Event, ...]
    actions: Tuple[Action, ...]


def _private(path: str, flags: int) -> int:
    """A recording tells who asked for what, and when: a new one is this user's alone."""
    return os.open(path, flags, 0o600)


class Recorder:
    """Writes a recording. Where that fails, a full disk above all, it says so once and records no more: serving goes
    on. ``start`` is kept in its first line: all that is needed to build the same scheduler again (``footprints``,
    ``resident``, ``measured`` as given to ``build_scheduler``, or a configuration's text); of a server, whose start is
    to come (``None``), :meth:`begin` writes it."""

    def __init__(self, path: str, start: Mapping[str, Any] | None = {}) -> None:
        self._path = path
        self.failure = ""
        """Why the recording ended early; ``""`` while it goes on."""
        try:
            self._file: IO[str] = open(path, "w", encoding="utf-8", opener=_private)  # noqa: SIM115 closed by close()
        except OSError as error:
            raise TraceError(
                f"{path}: a recording cannot be written there ({error.strerror}); name another file"
            ) from None
        if start is not None:
            self._write_start(start)

    def _write_start(self, start: Mapping[str, Any]) -> None:
        # Unsorted: the order of lanes and models in a configuration is part of it.
        self._write(json.dumps({"format": FORMAT, **start}, separators=(",", ":")))

    def begin(self, config: Config, start: Mapping[str, Any]) -> None:
        """Write the first line of a server, from what its scheduler was built from."""
        inputs = {name: start[name] for name in ("footprints", "resident", "measured", "sequences", "sizes")}
        self._write_start(start_of(**inputs, profiled=parts_of(start["profiles"])))

    def change(self, config: Config) -> None:
        """A recording goes on under another configuration."""

    def tap(self, now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> None:
        """Append one step. Buffered by the file: a crash loses the last few."""
        if not self.failure:
            self._write(step_line(now_ns, events, actions))

    def _write(self, line: str) -> None:
        try:
            self._file.write(line + "\n")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write the buffer and close the file; further calls do nothing."""
        try:
            self._file.close()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Keep the whole lines that were written."""
        self.failure = error.strerror or str(error)
        log.warning("the recording %s ends here, serving goes on: %s", self._path, error)
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError), open(self._path, "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            start = max(0, end - LINE_BYTES_MAX)
            file.seek(start)
            file.truncate(start + file.read(end - start).rfind(b"\n") + 1)


def opened(place: Any) -> Recorder:
    """The recording that ``[server] record`` asks for; ``place``: :class:`~edgeserve.live.taps.TapPlace`."""
    return Recorder(os.path.join(place.config.directory, place.config.server.record), None)


class Recording(NamedTuple):
    """A recording in memory: the first line's table, and the steps."""

    start: Dict[str, Any]
    steps: List[RecordedStep]


def start_of(
    footprints: Mapping[Tuple[str, str], Sequence[int]],
    resident: Mapping[str, Sequence[str]],
    measured: Mapping[Tuple[str, str], Mapping[int, Sequence[int]]] | None = None,
    profiled: Parts | None = None,
    sequences: Mapping[str, Tuple[int, ...]] | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> Dict[str, Any]:
    """The first line's table of a recording, from what was given to ``build_scheduler``. ``profiled`` are the
    parts of profiles that were used."""
    known: Dict[str, Any] = {}
    if profiled is not None:
        known["profiled"] = [[*key, list(apps)] for key, apps in profiled.items()]
    if sequences:
        known["sequences"] = {name: list(facts) for name, facts in sequences.items()}
    if sizes:
        known["sizes"] = {name: list(left) for name, left in sizes.items()}
    return {
        "footprints": [[*key, *value] for key, value in footprints.items()],
        "resident": {name: list(models) for name, models in resident.items()},
        "measured": [
            [*key, {str(size): list(times) for size, times in value.items()}] for key, value in (measured or {}).items()
        ],
        **known,
    }


def used_profiles(start: Mapping[str, Any], profiles: Sequence[Profile]) -> List[Profile]:
    """The present ``profiles`` that the recorded run used: whether they match is not judged again. All
    where the recording does not say."""
    if "profiled" not in start:
        return list(profiles)
    return restricted(profiles, {(row[0], row[1]): tuple(row[2]) for row in start["profiled"]})


def build_inputs(start: Mapping[str, Any]) -> Dict[str, Any]:
    """The keyword arguments of ``build_scheduler`` back from a recording's first line."""
    return {
        "footprints": {(row[0], row[1]): tuple(row[2:]) for row in start.get("footprints", ())},
        "resident": {name: list(models) for name, models in start.get("resident", {}).items()},
        "measured": {
            (row[0], row[1]): {int(size): list(times) for size, times in row[2].items()}
            for row in start.get("measured", ())
        },
        "sequences": {name: tuple(facts) for name, facts in start.get("sequences", {}).items()},
        "sizes": {name: tuple(left) for name, left in start.get("sizes", {}).items()},
    }


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""The errors that a line of another form raises."""


def read_recording(path: str) -> Recording:
    """Read a whole recording. :class:`TraceError` names the file and the line."""
    steps: List[RecordedStep] = []
    start: Dict[str, Any] = {}
    try:
        with open(path, encoding="utf-8", opener=regular_file) as file:
            for number, line in enumerate(file, 1):
                try:
                    table = json.loads(line)
                    if number > 1:
                        steps.append(_step(table))
                        continue
                    if table.get("format") != FORMAT:
                        raise TraceError(f"{path}: format {table.get('format')!r}, expected {FORMAT}; record it again")
                    start = table
                except UNREADABLE as error:
                    raise TraceError(f"{path}:{number}: is no step of a recording ({error!r})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); give the path of a recording") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: is no recording: {error}") from None
    if not start:
        raise TraceError(f'{path}: is empty; a recording starts with a line {{"format": {FORMAT}}}')
    return Recording(start, steps)


def step_line(now_ns: int, events: Sequence[Event], actions: Sequence[Action]) -> str:
    """One step as its line of the recording, the same bytes on every Python."""
    return dumps(
        {"now": now_ns, "events": [_table(item) for item in events], "actions": [_table(item) for item in actions]}
    )


def step_of(line: str) -> RecordedStep:
    """A step back from its line. Raises :class:`TraceError`."""
    try:
        return _step(json.loads(line))
    except UNREADABLE as error:
        raise TraceError(f"{line[:200]!r}: is no step of a recording ({error!r})") from None


def dumps(table: Any) -> str:
    """JSON with sorted keys and no spaces: the same bytes for every order of the fields."""
    return json.dumps(table, sort_keys=True, separators=(",", ":"))


# --- events and actions as tables -------------------------------------------------------------------------------------


def _table(item: Any) -> Dict[str, Any]:
    kind = type(item)
    table: Dict[str, Any] = {"kind": kind.__name__}
    for name, default in _FIELDS.get(kind) or _fields_of(kind):
        value = getattr(item, name)
        if default is _WRITTEN or value != default:
            table[name] = _plain(value)
    return table


_WRITTEN = object()
_FIELDS: Dict[type, Sequence[Tuple[str, Any]]] = {}
"""Kind -> the fields that are written: always (:data:`_WRITTEN`), or where they were set, with their defaults."""


def _fields_of(kind: type) -> Sequence[Tuple[str, Any]]:
    _FIELDS[kind] = [
        (name, field.default if field.metadata else _WRITTEN)
        for name, field in kind.__dataclass_fields__.items()  # type: ignore[attr-defined]
        if field.compare
    ]  # others explain a decision and are none
    return _FIELDS[kind]


_PLAIN = frozenset((int, str, float, bool, type(None)))


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (Request, JobResult)):
        table = {name: _plain(getattr(value, name)) for name in type(value).fields}
        if table.get("steps") == 1:  # nearly always
            del table["steps"]
        if table.get("turns") == 0:  # of all models but those of sequences
            del table["turns"]
        if table.get("cached") == 0:
            del table["cached"]
        if table.get("quality_min") == 0.0:  # the same
            del table["quality_min"]
        for name in ("margin_ns", "charged_ns", "trusted"):
            if table.get(name) == 0:
                del table[name]
        return table
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, collections.abc.Mapping):  # ten times as fast as that of typing
        return dict(value)
    return value


def _step(table: Mapping[str, Any]) -> RecordedStep:
    return RecordedStep(
        int(table["now"]),
        tuple(_event(item) for item in table["events"]),
        tuple(_action(item) for item in table["actions"]),
    )


def _event(table: Dict[str, Any]) -> Event:
    fields = dict(table)
    kind = EVENT_KINDS[fields.pop("kind")]
    if "request" in fields:
        fields["request"] = Request(**fields["request"])
    if "results" in fields:
        fields["results"] = tuple(JobResult(**dict(item, job=_job(item["job"]))) for item in fields["results"])
    if "begun" in fields:
        fields["begun"] = tuple(_job(item) for item in fields["begun"])
    event: Event = kind(**fields)
    return event


def _action(table: Dict[str, Any]) -> Action:
    fields = dict(table)
    kind: Any = ACTION_KINDS[fields.pop("kind")]
    if "jobs" in fields:
        fields["jobs"] = tuple(_job(item) for item in fields["jobs"])
    if fields.get("job") is not None:
        fields["job"] = _job(fields["job"])
    if "breakdown" in fields:
        fields["breakdown"] = LatencyBreakdown(*fields["breakdown"])
    if "branches" in fields:
        fields["branches"] = tuple(fields["branches"])
    action: Action = kind(**fields)
    return action


def _job(row: Sequence[Any]) -> JobId:
    return JobId(row[0], row[1], tuple(row[2]))


def lines(steps: Iterable[RecordedStep]) -> Iterator[str]:
    """The lines of some steps, for digests."""
    return (step_line(*step) for step in steps)
