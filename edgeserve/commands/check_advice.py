"""The advice of ``edgeserve check``. Each change is simulated before it is said, in the very runs that ``check`` would
make of the changed configuration: the next run finds what this one says.

A change helps when the app that falls short is in time with it, and no app that was in time before falls short because
of it. What another app pays for a change is said beside it. Knows no file: changes are made in the table of the
configuration and in the rates.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from edgeserve.commands.init.slo import round_up
from edgeserve.config.profiles import Profile
from edgeserve.config.schema import Config
from edgeserve.priority_class import YIELDING
from edgeserve.sched.core.build import model_lanes
from edgeserve.sim.report import Report
from edgeserve.units import NS_PER_S, format_duration, ms_to_ns

BUSY = 0.85
"""A lane that is busier than this has no room for the bursts of ordinary arrivals."""

TRIES_MAX = 18
"""Loads that are simulated with changes at most: some ten seconds, since most changes that do not help end early."""

LONGER = (1.5, 3.0, 6.0, 20.0, 100.0)
"""Deadlines that are tried, in multiples of the present one: where none helps, more time is not what is missing."""

ROOM = 3
"""The factor for a lone request that takes longer than its deadline: other changes are tried with so many times what it
takes."""

FEWER = (1.0, 0.85, 0.7)
"""Rates that are tried, in parts of those at which all apps together hold: arrivals are drawn anew for each."""

PARTS = (2, 4, 8)
"""Into how many nodes a slow model is cut in a trial."""

WAITS = (0.8, 0.4)
"""``background_wait`` in a trial, in parts of the time between two requests of the app."""


class CheckSetting(NamedTuple):
    """A configuration's table, the requests per second by app and client, and the profiles that tell times."""

    table: Mapping[str, Any]
    asked: Mapping[Tuple[str, str], float]
    profiles: Sequence[Profile]


class ChangeTrial(NamedTuple):
    """A change: the words that say it, what is simulated, and at which load (0.0: at the case's)."""

    words: str
    setting: CheckSetting
    load: float = 0.0


class ShortApp(NamedTuple):
    """An app that falls short at ``load`` times the ``rates``, as ``report`` says: less than ``least`` of its requests
    are in time. ``held``: a smaller load at which all apps hold, 0.0 where none is known. ``needs_ns``: what a lone
    request takes, where its deadline does not allow that."""

    config: Config
    setting: CheckSetting
    rates: Mapping[str, float]
    least: float
    app: str
    load: float
    report: Report
    held: float
    needs_ns: int = 0

    @property
    def models(self) -> List[str]:
        return [node.model for node in self.config.apps[self.app].nodes]

    @property
    def slo(self) -> str:
        """The deadline without which no other change helps, ``""`` where its own will do."""
        return format_duration(round_up(ROOM * self.needs_ns)) if self.needs_ns else ""

    def table(self, **keys: Any) -> Dict[str, Any]:
        """A copy of the configuration's table, with ``keys`` of the app changed, and the deadline that it needs."""
        table: Dict[str, Any] = copy.deepcopy(dict(self.setting.table))
        table["app"][self.app].update({"slo": self.slo, **keys} if self.slo else keys)
        return table

    def trial(self, words: str, load: float = 0.0, **changes: Any) -> ChangeTrial:
        """A change of the setting, with the deadline that it needs."""
        also = f' with [app.{self.app}] slo = "{self.slo}"' if self.slo else ""
        return ChangeTrial(words + also, self.setting._replace(**{"table": self.table(), **changes}), load)

    def short(self, report: Report) -> List[str]:
        """The apps that fall short in a report and did not before, and the app itself where it still does."""
        return [
            name
            for name in self.rates
            if report.apps[name].finish_rate < self.least
            and (name == self.app or self.report.apps[name].finish_rate >= self.least)
        ]


Simulated = Callable[[float, CheckSetting, str], Report]
"""A report of a changed setting at a multiple of the rates. The text tells people what is tried."""


def advice(case: ShortApp, simulated: Simulated) -> List[str]:
    """The changes that make the app hold, a line for each."""
    tries = _Tries(case, simulated)
    lane, busy = busiest_lane(case.config, case.app, case.report)
    longer = tries.first(_longer(case))
    others = [
        tries.first(_own_lane(case, lane)),
        tries.first(_in_parts(case)),
        tries.first(_background_waits(case), at_a_cost=True),
    ]
    fewer = tries.first(_fewer(case))
    if not any((longer, *others, fewer)):
        others.append(_nothing(case, busy))
    if busy < BUSY:
        room = "the lane has room, so requests that come together wait for each other: " if longer else ""
        lines = [room + longer if longer else _no_deadline(case), *others, fewer]
    else:
        sizes = [size for model in case.models for size in case.config.models[model].batch]
        more = "" if max(sizes) > 1 else "; larger batch sizes (batch = [1, 2, 4] of its models), where they pay"
        full = f"the lane is full: a faster or smaller model{more}" + (f", or {fewer}" if fewer else "")
        lines = [full, longer or _no_deadline(case), *others]
    return [line for line in lines if line]


class _Tries:
    """Simulates changes, at most :data:`TRIES_MAX`."""

    def __init__(self, case: ShortApp, simulated: Simulated) -> None:
        self._case = case
        self._simulated = simulated
        self._left = TRIES_MAX

    def first(self, trials: Iterator[ChangeTrial], at_a_cost: bool = False) -> str:
        """The first change that helps, with what it does, or ``""``. ``at_a_cost``: others may fall short by it."""
        app = self._case.app
        for trial in trials:
            after = self._try(trial, trial.load or self._case.load)
            if after is None:
                return ""
            lost = self._case.short(after)
            if app in lost or (lost and not at_a_cost) or not self._holds_below(trial):
                continue
            paid = "".join(f", and only {after.apps[name].finish_rate:.1%} of {name}" for name in lost)
            return f"{trial.words}: {after.apps[app].finish_rate:.1%} of {app} are in time then{paid}"
        return ""

    def _try(self, trial: ChangeTrial, load: float) -> Optional[Report]:
        if self._left <= 0:
            return None
        self._left -= 1
        return self._simulated(load, trial.setting, trial.words.partition(":")[0])

    def _holds_below(self, trial: ChangeTrial) -> bool:
        """Beyond the rates that were asked for, the search for a break goes through smaller loads first: the largest
        that held must hold still."""
        case = self._case
        if trial.load or case.load == 1.0 or not case.held:
            return True
        below = self._try(trial, case.held)
        return below is not None and not any(below.apps[name].finish_rate < case.least for name in case.rates)


# --- changes --------------------------------------------------------------------------------------------------------


def _longer(case: ShortApp) -> Iterator[ChangeTrial]:
    """Longer deadlines: at least what the slowest answers took."""
    slowest_ns = max(case.needs_ns, ms_to_ns(case.report.apps[case.app].p99_ms))
    for times in LONGER:
        least_ns = max(round(case.config.apps[case.app].slo_ns * times), round(slowest_ns * times / LONGER[0]))
        slo = format_duration(round_up(least_ns))
        words = f'a longer deadline, such as [app.{case.app}] slo = "{slo}"'
        yield ChangeTrial(words, case.setting._replace(table=case.table(slo=slo)))


def _no_deadline(case: ShortApp) -> str:
    told = f"no deadline helps: {case.app} falls short with {LONGER[-1]:g} times its slo, too"
    above = [name for name in _neighbours(case) if case.config.apps[name].priority_class not in YIELDING]
    if case.config.apps[case.app].priority_class not in YIELDING or not above:
        return told
    return (
        f"{told}. Work of class background starts only where it ends before the next request of a class above it is "
        "expected (docs/start/robot.md)"
    )


def _nothing(case: ShortApp, busy: float) -> str:
    """The sentence that no change helps, and what is full where it is no lane."""
    if busy < BUSY and not _neighbours(case):
        return (
            f"it is not the lane that is full: what the server itself takes for each request leaves {case.app} too "
            "little time ('edgeserve profile' measures it); ask less often, or of several servers"
        )
    return f"no change alone makes {case.app} hold: a lane of its own and fewer requests were tried, too"


def _neighbours(case: ShortApp) -> List[str]:
    """The other apps that are asked and share a lane."""
    own = set(lanes_of(case.config, case.app))
    return [name for name in case.rates if name != case.app and own.intersection(lanes_of(case.config, name))]


def _fewer(case: ShortApp) -> Iterator[ChangeTrial]:
    """Fewer requests of the app alone, then of all apps."""
    if not case.held:
        return
    for names in ([case.app], list(case.rates))[: len(case.rates)]:
        for part in FEWER:
            rates = {name: _rounded_down(case.rates[name] * case.held * part) for name in names}
            asked = {
                (name, client): rate * rates[name] / case.rates[name] if name in rates else rate
                for (name, client), rate in case.setting.asked.items()
            }
            told = " and ".join(f"{rate:g}/s" + (f" of {name}" if names[1:] else "") for name, rate in rates.items())
            yield case.trial(f"fewer requests: about {told} hold", 1.0, asked=asked)


def _own_lane(case: ShortApp, busiest: str) -> Iterator[ChangeTrial]:
    """A lane for the app's models alone; another one for all models of the busiest lane where the app shares its
    models, or is alone."""
    config, own = case.config, set(case.models)
    name = next(name for name in (case.app, f"{case.app}-lane", f"{case.app}-lane-2") if name not in config.lanes)
    others = {node.model for app in config.apps.values() if app.name != case.app for node in app.nodes}
    alone = bool(others) and not own & others
    table = case.table()
    written = table.get("lane", {})
    lane = {key: value for key, value in written.get(busiest, {}).items() if key != "cores"}
    table["lane"] = {**{known: written.get(known, {}) for known in config.lanes}, name: lane}
    told = [f"[lane.{name}]"]
    for model in config.models.values():
        lanes = before = model_lanes(config, model)
        if model.name in own if alone else busiest in before:
            lanes = [name] if alone else [*before, name]
        if alone or (model.lanes and lanes != before):
            table["model"][model.name]["lanes"] = lanes
            told.append(f"[model.{model.name}] lanes = [{', '.join(f'{lane!r}' for lane in lanes)}]")
    profiles = [
        replace(profile, lanes={**profile.lanes, name: profile.lanes[busiest]}) if busiest in profile.lanes else profile
        for profile in case.setting.profiles
    ]
    what = "a lane of its own" if alone else "another lane"
    yield case.trial(
        f"{what}, where two works at once do not slow each other ({', '.join(told)})", table=table, profiles=profiles
    )


def _in_parts(case: ShortApp) -> Iterator[ChangeTrial]:
    """The model of a background app cut into nodes that fit between the requests of others."""
    app = case.config.apps[case.app]
    if app.priority_class not in YIELDING or len(app.nodes) != 1:
        return
    model = case.config.models[app.nodes[0].model]
    times = dict(model.expected)
    for profile in case.setting.profiles:
        if profile.model == model.name:
            timings = next(iter(profile.lanes.values())).timings
            times.update((size, timing.median_ns) for size, timing in timings.items())
    if not set(model.batch) <= set(times):
        return
    for count in PARTS:
        table = case.table()
        names = [f"{model.name}-part-{index + 1}" for index in range(count)]
        part = {**table["model"][model.name], "lanes": list(model.lanes)} if model.lanes else table["model"][model.name]
        expected = {str(size): f"{math.ceil(times[size] / count)}ns" for size in model.batch}
        table["model"].update({name: {**part, "expected": expected} for name in names})
        del table["app"][case.app]["model" if "model" in table["app"][case.app] else "node"]
        table["app"][case.app]["node"] = [{"name": name} for name in names]
        longest = format_duration(math.ceil(times[model.batch[-1]] / count))
        yield case.trial(f"the model in {count} parts of at most {longest}, as nodes of one app", table=table)


def _background_waits(case: ShortApp) -> Iterator[ChangeTrial]:
    """Background work that may delay what goes before it, once in a while."""
    app = case.config.apps[case.app]
    if app.priority_class not in YIELDING:
        return
    for part in WAITS:
        wait_ns = min(round(part * NS_PER_S / (case.rates[case.app] * case.load)), app.slo_ns // 2)
        wait = format_duration(max(1_000_000, wait_ns // 1_000_000 * 1_000_000))
        yield case.trial(f'[app.{case.app}] background_wait = "{wait}"', table=case.table(background_wait=wait))


# --- small helpers ----------------------------------------------------------------------------------------------------


def _rounded_down(rate: float) -> float:
    """Three digits, never more than the rate."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return float(f"{math.floor(rate / unit + 1e-9) * unit:.6g}")


def lanes_of(config: Config, app: str) -> List[str]:
    """The lanes that an app's models may run on."""
    return list(
        dict.fromkeys(
            lane
            for name in [*[node.model for node in config.apps[app].nodes], *config.apps[app].variants]
            for lane in model_lanes(config, config.models[name])
        )
    )


def busiest_lane(config: Config, app: str, report: Report) -> Tuple[str, float]:
    """The lane of an app's models that is in use most, and how much of the time."""
    lane = max(lanes_of(config, app), key=lambda name: report.lanes.get(name, 0.0))
    return lane, report.lanes.get(lane, 0.0)
