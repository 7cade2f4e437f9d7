"""What was found, for people and as JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from edgeserve.config.schema import Config
from edgeserve.tools.tuning.candidates import title
from edgeserve.tools.tuning.search import Found
from edgeserve.tools.tuning.subjects import Tally, apps_of, rates
from edgeserve.tools.tuning.verdict import GAIN_MIN, Gain, Verdict, gain

OFF_MAX = 0.03
"""A simulation of the recorded configuration that is further off than this, for any app, says so: three points."""

TRIED_SHOWN_MAX = 12

NAMES = {"finish": "in time", "value": "value in time"}


class Honesty(NamedTuple):
    """How far the simulation is to be trusted: per app the requests, the finish rate as recorded and as simulated; and
    what is not known from the recording. Empty for a scenario, which is what it says it is."""

    apps: Mapping[str, Tuple[int, float, float]]
    notes: List[str]

    @property
    def off(self) -> float:
        """The largest difference of any app."""
        return max((abs(simulated - recorded) for _, recorded, simulated in self.apps.values()), default=0.0)


class Outcome(NamedTuple):
    """All that is told. Tallies are by load, of the part that reports."""

    config: Config
    blocks: str
    goal: str
    honesty: Honesty
    found: Found
    today: Mapping[float, Tally]
    best: Mapping[float, Tally]
    best_at: Mapping[float, Tally]
    verdict: Verdict


def print_outcome(outcome: Outcome, console: Any) -> None:
    """Tables and a sentence on a ``rich`` console."""
    _print_honesty(outcome.honesty, console)
    _print_tried(outcome, console)
    for load in outcome.today:
        _print_load(outcome, load, console)
    console.print(sentence(outcome), highlight=False, markup=False)


def sentence(outcome: Outcome) -> str:
    """What to do."""
    found, verdict, name = outcome.found, outcome.verdict, NAMES[outcome.goal]
    loads = ", ".join(f"{load:g}" for load in outcome.today)
    if repr(found.best) == repr(found.today):
        said = f"Keep what you have ({title(found.today)}): nothing that was tried is better over the loads {loads}."
    elif not verdict.take:
        said = (
            f"Keep what you have ({title(found.today)}): the best other, {title(found.best)}, changes what is "
            f"{name} by {verdict.total} points over the loads {loads}, and {verdict.why}."
        )
    else:
        gains = "; ".join(
            f"{gain(outcome.today[load], outcome.best[load], outcome.goal)} points at load {load:g}"
            for load in outcome.today
        )
        said = (
            f"Take {title(found.best)} instead of {title(found.today)}: {name}, {gains} (spread of {outcome.blocks})."
        )
        losers = _losers(outcome)
        if losers:
            said += f" It costs {', '.join(losers)}."
    if outcome.honesty.off > OFF_MAX:
        said += (
            f" Mind that the simulation of the recorded configuration is off by {100 * outcome.honesty.off:.1f} "
            "points for an app."
        )
    return said


def _losers(outcome: Outcome) -> List[str]:
    """Apps that lose beyond the spread, with what they lose."""
    found = []
    for load, today in outcome.today.items():
        for app in apps_of(outcome.config, today):
            lost = gain(today, outcome.best[load], outcome.goal, app)
            if lost.is_clear_loss and -lost.share >= GAIN_MIN:
                found.append(f"{app} {-100 * lost.share:.1f} ± {100 * lost.spread:.1f} points at load {load:g}")
    return found


def as_table(outcome: Outcome) -> Dict[str, Any]:
    """Everything as plain values for JSON."""
    found = outcome.found
    chosen = {"today": found.today, "best": found.best}
    return {
        "take": outcome.verdict.take,
        "why_not": outcome.verdict.why,
        "sentence": sentence(outcome),
        "goal": outcome.goal,
        "gain": _gain_table(outcome.verdict.total),
        "gain_min": GAIN_MIN,
        "configurations": {name: _candidate_table(candidate) for name, candidate in chosen.items()},
        "recorded": {
            app: {"offered": count, "recorded": recorded, "simulated": simulated}
            for app, (count, recorded, simulated) in outcome.honesty.apps.items()
        },
        "notes": outcome.honesty.notes,
        "spread_of": outcome.blocks,
        "loads": {f"{load:g}": _load_table(outcome, load) for load in outcome.today},
        "tried": [
            {
                "title": title(item.candidate),
                "configuration": _candidate_table(item.candidate),
                "scores": list(item.scores),
                "failed": item.failed,
            }
            for item in found.tried
        ],
    }


def _load_table(outcome: Outcome, load: float) -> Dict[str, Any]:
    best_at = outcome.found.best_at[load]
    tallies = {"today": outcome.today[load], "best": outcome.best[load], "best_at_this_load": outcome.best_at[load]}
    return {
        "best_at_this_load": _candidate_table(best_at),
        **{
            name: _tally_table(outcome, outcome.today[load], tally)
            for name, tally in tallies.items()
            if name != "best_at_this_load"
        },
        "with_best_at_this_load": _tally_table(outcome, outcome.today[load], outcome.best_at[load]),
    }


def _tally_table(outcome: Outcome, today: Tally, tally: Tally) -> Dict[str, Any]:
    rows = {}
    for app in [*apps_of(outcome.config, tally), ""]:
        found = rates(tally, app)
        rows[app or "(all)"] = {
            "offered": found.offered,
            "in_time": found.in_time,
            "value": found.value,
            "gain": _gain_table(gain(today, tally, outcome.goal, app)),
        }
    return rows


def _candidate_table(candidate: Any) -> Dict[str, Any]:
    return {app: {"kind": choice.kind, **dict(choice.options)} for app, choice in candidate}


def _gain_table(found: Gain) -> Dict[str, float]:
    return {"share": found.share, "spread": found.spread}


def _print_honesty(honesty: Honesty, console: Any) -> None:
    for note in honesty.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    if not honesty.apps:
        return
    rows = ", ".join(
        f"{app} {100 * recorded:.1f} % recorded, {100 * simulated:.1f} simulated ({100 * (simulated - recorded):+.1f})"
        for app, (_, recorded, simulated) in honesty.apps.items()
    )
    console.print(f"as it is, in time: {rows}", highlight=False, markup=False)


def _print_tried(outcome: Outcome, console: Any) -> None:
    """The best candidates of the part that chose."""
    from rich.markup import escape
    from rich.table import Table

    tried = [item for item in outcome.found.tried if not item.failed]
    failed = [item for item in outcome.found.tried if item.failed]
    count = len(outcome.found.tried)
    of = f": the best {TRIED_SHOWN_MAX} of {count}" if count > TRIED_SHOWN_MAX else ""
    console.print(f"\n{NAMES[outcome.goal]} by load, on the part that chose{of}", highlight=False, markup=False)
    table = Table()
    table.add_column("policy", overflow="fold")
    for load in outcome.today:
        table.add_column(f"{load:g}", justify="right", no_wrap=True)
    for item in tried[:TRIED_SHOWN_MAX]:
        mark = " (today)" if repr(item.candidate) == repr(outcome.found.today) else ""
        table.add_row(escape(title(item.candidate)) + mark, *(f"{100 * value:.1f}" for value in item.scores))
    console.print(table)
    for item in failed:
        console.print(
            f"could not run: {title(item.candidate)}: {item.failed.splitlines()[0]}", highlight=False, markup=False
        )


def _print_load(outcome: Outcome, load: float, console: Any) -> None:
    """One load: a row per app, today's configuration beside the best one."""
    from rich.markup import escape
    from rich.table import Table

    today, best = outcome.today[load], outcome.best[load]
    console.print(
        f"\nload {load:g}, on the part that reports ({outcome.blocks}): {title(outcome.found.best)}",
        highlight=False,
        markup=False,
    )
    table = Table()
    for name in ("app", "offered", "in time today", "in time then", "value today", "value then", "gain"):
        table.add_column(name, justify="left" if name == "app" else "right", no_wrap=True)
    apps = apps_of(outcome.config, today)
    for app in [*apps, *([""] if len(apps) > 1 else [])]:
        now, then = rates(today, app), rates(best, app)
        table.add_row(
            escape(app) or f"(all {len(apps)})",
            str(now.offered),
            f"{100 * now.in_time:.1f}",
            f"{100 * then.in_time:.1f}",
            f"{100 * now.value:.1f}",
            f"{100 * then.value:.1f}",
            str(gain(today, best, outcome.goal, app)),
        )
    console.print(table)
    other = outcome.found.best_at[load]
    if repr(other) != repr(outcome.found.best):
        console.print(
            f"best at load {load:g} alone: {title(other)}, {gain(today, outcome.best_at[load], outcome.goal)} points",
            highlight=False,
            markup=False,
        )
