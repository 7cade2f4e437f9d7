"""Reports from the estimates of models: whether an app can be in time at all, and where served batches
contradict what an estimate began with."""

from __future__ import annotations

import logging
from typing import Any, Collection, Dict, Mapping, NamedTuple, Optional, Tuple

from edgeserve.config.profile_record import profile_command
from edgeserve.config.python_names import as_given
from edgeserve.config.schema import Config
from edgeserve.sched.core.state import State
from edgeserve.sched.latency.batch_time import BatchTime
from edgeserve.sched.latency.contradiction import EXPECTED, PROFILE, Contradiction
from edgeserve.sched.latency.path_cost import AppCosts
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.protocol.events import Request
from edgeserve.sched.requests.graph import App
from edgeserve.sched.requests.states import RequestRecord
from edgeserve.units import NS_PER_S, PPM, counted, format_duration, ns_to_ms

log = logging.getLogger("edgeserve")


class AppFit(NamedTuple):
    """The expected time of a lone request of an app, on ``lane`` first; ``alone_ns`` of None: no lane could run it.
    ``wait_ns``: until its first models are loaded. ``needs_ns``: the deadline that its policy would want then. Of an
    app of one model of sequences: ``steps`` of a usual answer, and how long one takes (``step_ns``)."""

    app: str
    slo_ns: int
    lane: str = ""
    alone_ns: Optional[int] = None
    wait_ns: int = 0
    needs_ns: int = 0
    steps: int = 0
    step_ns: int = 0

    @property
    def fits(self) -> bool:
        """True if it would be in time with its models loaded; true where nothing is known."""
        return self.alone_ns is None or self.needs_ns <= self.slo_ns

    def table(self) -> Dict[str, Any]:
        """The fit as plain values, for logs and for the bus."""
        expected_ms = None if self.alone_ns is None else ns_to_ms(self.alone_ns)
        return {"slo_ms": ns_to_ms(self.slo_ns), "expected_ms": expected_ms, "expected_on": self.lane}

    def prospect(self, since_ns: int = 0) -> Dict[str, Any]:
        """The expected times of a request that arrived ``since_ns`` after this was computed."""
        wait_ns = max(0, self.wait_ns - since_ns)
        known = self.alone_ns is not None
        return {
            **self.table(),
            "wait_ms": ns_to_ms(wait_ns) if known else None,
            "slo_ms_min": ns_to_ms(wait_ns + self.needs_ns) if known else None,
        }


def expected_of_app(state: State, app: App, by_policy: bool = False) -> ExpectedEnd | None:
    """When a usual request to an app would end that arrived now, by the shared estimate or as its policy sees that;
    None while no lane could run it. ``deadline_ns_min`` counts from now."""
    board, now_ns = state.board, state.board.now_ns
    policy = state.policy_of[app.name]
    usual = Request(0, app.name, now_ns, now_ns + app.slo_ns, on_late=app.on_late, hints=app.usual)
    request = RequestRecord(usual, app, policy)
    expected = policy.expected_end(request, None, board) if by_policy else expected_end(request, None, board)
    if expected is None or expected.deadline_ns_min is None:
        return expected
    return expected._replace(deadline_ns_min=expected.deadline_ns_min - now_ns)


def app_fit(state: State, app: App, by_policy: bool = False) -> AppFit:
    """The present estimate for an app: the shared one, or the one that its policy uses."""
    expected = expected_of_app(state, app, by_policy)
    if expected is None:
        return AppFit(app.name, app.slo_ns)
    alone_ns = expected.alone_ns
    needs_ns = alone_ns if expected.deadline_ns_min is None else expected.deadline_ns_min - expected.wait_ns
    steps = step_ns = 0
    model = app.nodes[0].model
    if app.simple and model in state.sequences.models:
        steps = round(app.usual.get("steps", 0)) or state.sequences.usual_steps(model)
        step_ns = state.latency[model, expected.lane].alone_likely_ns
    fit = AppFit(app.name, app.slo_ns, expected.lane, alone_ns, expected.wait_ns, max(alone_ns, needs_ns))
    return fit._replace(steps=steps, step_ns=step_ns)


def times_table(latency: BatchTime, now_ns: int) -> Dict[str, Any]:
    """The estimates of a model on a lane as plain numbers, times in ms: ``stats`` shows them."""
    sizes: Dict[str, Any] = {}
    for size in latency.sizes:
        known = latency.known(size, now_ns)
        sizes[str(size)] = {
            "typical_ms": ns_to_ms(latency.typical_ns[size]),
            "likely_ms": ns_to_ms(latency.likely_ns[size]),
            "estimate_ms": ns_to_ms(latency.estimate_ns[size]),
            "source": known.source,
            "measured": known.measured,
            "age_ms": None if known.age_ns is None else ns_to_ms(known.age_ns),
        }
    table: Dict[str, Any] = {
        "pace": latency.slowdown_ppm / PPM,
        "pace_measured": latency.slowdown_count,
        "sizes": sizes,
    }
    found = latency.served.contradiction()
    if found is not None:
        table["contradiction"] = {
            "source": found.source,
            "size": found.size,
            "began_ms": ns_to_ms(found.began_ns),
            "served_ms": ns_to_ms(found.served_ns),
            "batches": found.batches,
        }
    return table


def expected_text(fit: AppFit) -> str:
    """The expected time of a lone request and its lane, as text."""
    assert fit.alone_ns is not None, "asked where it is known"
    load = f", after {format_duration(fit.wait_ns)} of loading" if fit.wait_ns > 0 else ""
    answer = ""
    if fit.steps:
        answer = f" for an answer (usually {counted(fit.steps, 'step')} of {format_duration(fit.step_ns)})"
    return f"expected {format_duration(fit.alone_ns)} alone on {fit.lane}{answer}{load}"


def parts_text(costs: AppCosts) -> str:
    """The expected number of parts of an app's fan-outs and the time of one part, as text; empty without fan-outs."""
    told = []
    for node in costs.app.nodes:
        if node.fan_out:
            parts, (alone_ns, share_ns) = costs.parts_of(node), costs.part_ns(node)
            each = format_duration(alone_ns)
            if share_ns < alone_ns:
                each += f" alone and {format_duration(share_ns)} in full batches"
            told.append(f"{counted(parts or 1, 'part')} of {node.name} (one takes {each})")
    return f" with {', '.join(told)}" if told else ""


def alone_too_slow(fit: AppFit) -> str:
    """The warning that a lone request cannot make its deadline."""
    return (
        f"app {fit.app}: {expected_text(fit)}, more than its slo of {format_duration(fit.slo_ns)} allows: unless "
        "it turns out faster, no request of it can be in time"
    )


def too_slow(fit: AppFit, on_late: str = "") -> str:
    """The same, and what to change. A language model's answer ends early, or late, by ``on_late``."""
    slo = f'set [app.{fit.app}] slo = "{format_duration(fit.needs_ns, round_up=True)}" or more'
    if fit.steps and on_late != "drop":
        until = "end late" if on_late == "answer" else "end there with what they have written (on_late = 'partial')"
        return (
            f"app {fit.app}: {expected_text(fit)}, more than its slo of {format_duration(fit.slo_ns)} allows: longer "
            f"answers {until}; {slo}"
        )
    return (
        f"{alone_too_slow(fit)}; {slo}, or, where that time is wrong, mend [model.*] expected or run "
        "'edgeserve profile'"
    )


def log_fits(state: State, told: Collection[str] = (), source: str = "") -> None:
    """Log each app's expected time beside its deadline at the start, a line each; a warning where a request cannot make
    it even alone, unless it was ``told`` before. ``source``: the configuration's."""
    for app in state.apps.values():
        fit = app_fit(state, app, by_policy=True)
        if fit.alone_ns is None:
            log.warning("app %s: no lane can run it now", app.name)
            continue
        if fit.fits:
            slo = format_duration(app.slo_ns)
            parts = parts_text(state.costs[app.name])
            log.info("app %s: %s%s, slo %s", app.name, expected_text(fit), parts, slo)
        elif app.name not in told:
            log.warning("%s", as_given(source, too_slow(fit, app.on_late)))


LOOK_NS = 5 * NS_PER_S
"""The time between two looks at the latency models, taken at the end of a batch."""


class ContradictionLog:
    """The latency models of which nothing was said yet."""

    def __init__(
        self, config: Config, latency: Mapping[Tuple[str, str], BatchTime], state: State | None = None
    ) -> None:
        self._config = config
        self._quiet = dict(latency)
        self._state = state
        self._apps = state.apps if state is not None else {}
        self._fans_out = [name for name, app in self._apps.items() if any(node.fan_out for node in app.nodes)]

    def look(self) -> None:
        """Say what contradicts now. O(models on lanes)."""
        for name in list(self._fans_out):
            self._look_at_parts(name)
        for key, latency in list(self._quiet.items()):
            found = latency.served.contradiction()
            if found is not None:
                del self._quiet[key]
                log.warning("%s", warning_text(self._config, latency.model, latency.lane, found))

    def _look_at_parts(self, name: str) -> None:
        """Once each fan-out of an app was seen, say what a request of it takes."""
        assert self._state is not None, "apps come from a state"
        app, costs = self._apps[name], self._state.costs[name]
        if all(costs.parts_of(node) is not None for node in app.nodes if node.fan_out):
            self._fans_out.remove(name)
            fit = app_fit(self._state, app, by_policy=True)
            if fit.alone_ns is not None:
                alone = format_duration(fit.alone_ns)
                log.info("app %s: now expected %s alone on %s%s", name, alone, fit.lane, parts_text(costs))


def warning_text(config: Config, model: str, lane: str, found: Contradiction) -> str:
    """Both numbers, and what to do."""
    began, served = format_duration(found.began_ns), format_duration(found.served_ns)
    where = "it" if config.source.startswith("(") else config.source
    command = f"run '{profile_command(config, model, force=found.source == PROFILE)}'"
    if found.source == PROFILE:
        believed, mend = f"its profile says {began}", f"else {command}"
    elif found.source == EXPECTED:
        believed, mend = f"[model.{model}.expected] says {began}", f"else correct {where}, or {command}"
    else:
        believed, mend = f"the runs at start took {began}", f"else {command}, so that it need not measure at start"
    factor = max(found.served_ns, found.began_ns) / max(1, min(found.served_ns, found.began_ns))
    return as_given(
        config.source,
        f"model {model} on lane {lane}: batches of {found.size} take {served}, {believed} (a factor of "
        f"{factor:.1f}, as most of the last {found.batches} batches looked at). Estimates follow what is served, "
        f"but fall back after a pause and at the next start. Look for throttling and other load; {mend}",
    )
