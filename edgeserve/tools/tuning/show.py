"""What was found, for people and as JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple

from edgeserve.config.schema import Config
from edgeserve.tools.tuning.candidates import title
from edgeserve.tools.tuning.search import SearchResult
from edgeserve.tools.tuning.subjects import Subject
from edgeserve.tools.tuning.verdict import (
    GAIN_MIN,
    GOALS,
    Tally,
    Verdict,
    apps_of,
    clients_of,
    gain,
    offered,
    score,
    sums_of,
)

OFF_MAX = 0.03
"""A simulation of the recorded configuration that is further off than this, for any app, says so: three points."""

TRIED_SHOWN_MAX = 12
CLIENTS_SHOWN_MAX = 20

NAMES = {"finish": "in time", "value": "value in time"}


class TuneResult(NamedTuple):
    """All that is told. Tallies are by load, of the part that reports."""

    config: Config
    subject: Subject
    goal: str
    found: SearchResult
    today: Mapping[float, Tally]
    best: Mapping[float, Tally]
    best_at: Mapping[float, Tally]
    verdict: Verdict

    @property
    def off(self) -> float:
        """The largest difference of what was recorded and what is simulated, of any app."""
        return max(
            (abs(simulated - recorded) for _, recorded, simulated in self.subject.recorded.values()), default=0.0
        )


def print_outcome(outcome: TuneResult, console: Any) -> None:
    """Tables and a sentence on a ``rich`` console."""
    _print_trust(outcome.subject, console)
    _print_tried(outcome, console)
    for load in outcome.today:
        _print_load(outcome, load, console)
    console.print(sentence(outcome), highlight=False, markup=False)


def sentence(outcome: TuneResult) -> str:
    """What to do."""
    found, verdict, name = outcome.found, outcome.verdict, NAMES[outcome.goal]
    loads = ", ".join(f"{load:g}" for load in outcome.today)
    if found.best == found.today:
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
            f"Take {title(found.best)} instead of {title(found.today)}: {name}, {gains} (spread of "
            f"{outcome.subject.blocks_name})."
        )
        losers = _losers(outcome)
        if losers:
            said += f" It costs {', '.join(losers)}."
    if outcome.off > OFF_MAX:
        said += (
            f" Mind that the simulation of the recorded configuration is off by {100 * outcome.off:.1f} "
            "points for an app."
        )
    return said


def _losers(outcome: TuneResult) -> List[str]:
    """Apps that lose beyond the spread, with what they lose."""
    found = []
    for load, today in outcome.today.items():
        for app in apps_of(outcome.config, today):
            lost = gain(today, outcome.best[load], outcome.goal, app)
            if lost.is_clear_loss and -lost.share >= GAIN_MIN:
                found.append(f"{app} {lost.lost} points at load {load:g}")
    return found


def as_table(outcome: TuneResult) -> Dict[str, Any]:
    """Everything as plain values for JSON."""
    found = outcome.found
    chosen = {"today": found.today, "best": found.best}
    return {
        "take": outcome.verdict.take,
        "why_not": outcome.verdict.why,
        "sentence": sentence(outcome),
        "goal": outcome.goal,
        "gain": outcome.verdict.total._asdict(),
        "gain_min": GAIN_MIN,
        "configurations": {name: _candidate_table(candidate) for name, candidate in chosen.items()},
        "recorded": {
            app: {"offered": count, "recorded": recorded, "simulated": simulated}
            for app, (count, recorded, simulated) in outcome.subject.recorded.items()
        },
        "notes": outcome.subject.notes,
        "spread_of": outcome.subject.blocks_name,
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


def _load_table(outcome: TuneResult, load: float) -> Dict[str, Any]:
    today = outcome.today[load]
    clients = {
        client: {"today": _client_table(today, client), "best": _client_table(outcome.best[load], client)}
        for client in clients_of(today)
    }
    return {
        **({"clients": clients} if clients else {}),
        "best_at_this_load": _candidate_table(outcome.found.best_at[load]),
        "today": _tally_table(outcome, today, today),
        "best": _tally_table(outcome, today, outcome.best[load]),
        "with_best_at_this_load": _tally_table(outcome, today, outcome.best_at[load]),
    }


def _client_table(tally: Tally, client: str) -> Dict[str, Any]:
    theirs = sums_of(tally, client=client)
    return {
        "offered": offered(tally, client=client),
        "in_time": score(tally, "finish", client=client),
        "over_share": sum(sums.over_share for sums in theirs),
        "lane_share": sum(sums.lane_ns for sums in theirs) / max(1.0, sum(sums.lane_ns for sums in tally.values())),
    }


def _tally_table(outcome: TuneResult, today: Tally, tally: Tally) -> Dict[str, Any]:
    return {
        app or "(all)": {
            "offered": offered(tally, app),
            "in_time": score(tally, "finish", app),
            "value": score(tally, "value", app),
            "gain": gain(today, tally, outcome.goal, app)._asdict(),
        }
        for app in [*apps_of(outcome.config, tally), ""]
    }


def _candidate_table(candidate: Any) -> Dict[str, Any]:
    return {app: {"kind": choice.kind, **dict(choice.options)} for app, choice in candidate}


def _print_trust(subject: Subject, console: Any) -> None:
    for note in subject.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    if not subject.recorded:
        return
    rows = ", ".join(
        f"{app} {100 * recorded:.1f} % recorded, {100 * simulated:.1f} simulated ({100 * (simulated - recorded):+.1f})"
        for app, (_, recorded, simulated) in subject.recorded.items()
    )
    console.print(f"as it is, in time: {rows}", highlight=False, markup=False)


def _print_tried(outcome: TuneResult, console: Any) -> None:
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
        mark = " (today)" if item.candidate == outcome.found.today else ""
        table.add_row(escape(title(item.candidate)) + mark, *(f"{100 * value:.1f}" for value in item.scores))
    console.print(table)
    for item in failed:
        console.print(
            f"could not run: {title(item.candidate)}: {item.failed.splitlines()[0]}", highlight=False, markup=False
        )


def _print_load(outcome: TuneResult, load: float, console: Any) -> None:
    """One load: a row per app, today's configuration beside the best one."""
    from rich.markup import escape
    from rich.table import Table

    today, best = outcome.today[load], outcome.best[load]
    console.print(
        f"\nload {load:g}, on the part that reports ({outcome.subject.blocks_name}): {title(outcome.found.best)}",
        highlight=False,
        markup=False,
    )
    table = Table()
    for name in ("app", "offered", "in time today", "in time then", "value today", "value then", "gain"):
        table.add_column(name, justify="left" if name == "app" else "right", no_wrap=True)
    apps = apps_of(outcome.config, today)
    for app in [*apps, *([""] if len(apps) > 1 else [])]:
        shares = [score(tally, goal, app) for goal in GOALS for tally in (today, best)]
        table.add_row(
            escape(app) or f"(all {len(apps)})",
            str(offered(today, app)),
            *(f"{100 * share:.1f}" for share in shares),
            str(gain(today, best, outcome.goal, app)),
        )
    console.print(table)
    _print_clients(today, best, console)
    other = outcome.found.best_at[load]
    if other != outcome.found.best:
        console.print(
            f"best at load {load:g} alone: {title(other)}, {gain(today, outcome.best_at[load], outcome.goal)} points",
            highlight=False,
            markup=False,
        )


def _print_clients(today: Tally, best: Tally, console: Any) -> None:
    """A row per client, where clients are known: today beside the best."""
    from rich.markup import escape
    from rich.table import Table

    clients = clients_of(today)
    if not clients:
        return
    table = Table()
    for name in ("client", "offered", "in time today", "then", "over share today", "then", "lane time today", "then"):
        table.add_column(name, justify="left" if name == "client" else "right", no_wrap=True)
    worst = sorted(clients, key=lambda client: (score(today, "finish", client=client), client))[:CLIENTS_SHOWN_MAX]
    for client in [name for name in clients if name in worst]:
        rows = [_client_table(tally, client) for tally in (today, best)]
        table.add_row(
            escape(client),
            str(rows[0]["offered"]),
            *(f"{100 * row['in_time']:.1f}" for row in rows),
            *(str(row["over_share"]) for row in rows),
            *(f"{100 * row['lane_share']:.1f} %" for row in rows),
        )
    console.print(table)
