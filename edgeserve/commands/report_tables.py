"""Reports of simulated runs as text tables on a ``rich`` console."""

from __future__ import annotations

from typing import Any, List, Mapping, Tuple

from edgeserve.sim.report import AppReport, Report

ROWS_MAX = 20
"""Apps in a table: of more, the worst are shown (the JSON has all)."""


def print_reports(reports: Mapping[str, Report], console: Any) -> None:
    """Print a table per policy on a ``rich`` console: a row per app, and what the lanes did."""
    from rich.table import Table

    for title, report in reports.items():
        table = Table(title=f"{title} ({report.seeds} seeds x {report.counted_s:g} s)", title_justify="left")
        for name in ("app", "offered", "in time", "late", "value", "of seeds", "p50 ms", "p90 ms", "p99 ms", "gap ms"):
            table.add_column(name, justify="left" if name == "app" else "right", no_wrap=True)
        worst = sorted(report.apps, key=lambda name: (report.apps[name].finish_rate, name))[:ROWS_MAX]
        rows = {name: app for name, app in report.apps.items() if name in worst}
        if len(report.apps) > 1:
            rows[f"(all {len(report.apps)})"] = report.total
        for name, app in rows.items():
            shares = (
                (f"{app.finish_rate:.1%}", str(app.late), f"{app.value_share:.3f}", _range_text(app))
                if app.offered
                else ("-", str(app.late), "-", "-")
            )
            table.add_row(
                name,
                str(app.offered),
                *shares,
                f"{app.p50_ms:.2f}",
                f"{app.p90_ms:.2f}",
                f"{app.p99_ms:.2f}",
                f"{app.gap_max_ms:.0f}",
            )
        console.print(table)
        for name, app in rows.items():  # below the table: no row of reasons fits beside its columns
            if app.ended:
                others = ", ".join(f"{count} {reason}" for reason, count in list(app.ended.items())[:4])
                console.print(f"{name} ended otherwise: {others}", highlight=False, markup=False, soft_wrap=True)
        if report.clients:
            _print_clients(report, console)
        for line in _remarks(report):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def client_rows(report: Report) -> List[Tuple[str, ...]]:
    """A head and a row per client: the worst, and what the lanes did for each."""
    worst = sorted(report.clients, key=lambda name: (report.clients[name].finish_rate, name))[:ROWS_MAX]
    rows: List[Tuple[str, ...]] = [("client", "offered", "in time", "over share", "lanes kept")]
    for name, client in report.clients.items():
        if name in worst:
            kept = f"{report.lanes_kept(client):.3f}"
            rows.append((name, str(client.offered), f"{client.finish_rate:.1%}", str(client.over_share), kept))
    return rows


def _print_clients(report: Report, console: Any) -> None:
    from rich.table import Table

    head, *rows = client_rows(report)
    table = Table()
    for name in head:
        table.add_column(name, justify="left" if name == "client" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _range_text(app: AppReport) -> str:
    low, high, _ = app.rate_range
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _remarks(report: Report) -> List[str]:
    lanes = []
    for name, share in report.lanes.items():
        lost = report.lanes_lost.get(name, 0.0)
        lanes.append(f"{name} {share:.1%}" + (f" ({lost:.1%} of it lost)" if lost else ""))
    lines = [
        f"lanes in use: {', '.join(lanes)}; goodput {report.goodput:.1f}/s",
        "in time over time: "
        + " ".join(f"{100 * done / offered:.0f}" if offered else "-" for offered, done in report.total.over_time)
        + " %",
    ]
    for name, app in report.apps.items():
        if app.rated:
            lines.append(
                f"{name}: answers in time are expected to be worth {app.quality:.3f} of a whole one, from "
                f"{app.branches:.2f} branches each"
            )
        if app.variants:
            told = [f"{variant} {count / app.in_time:.0%}" for variant, count in sorted(app.variants.items())]
            lines.append(f"{name}: answers in time have a quality of {app.quality:.3f}, from {', '.join(told)}")
    for name, device in report.devices.items():
        lines.append(
            f"device {name}: {device['power_w']:.1f} W on average, {report.total.joules_per_answer:.3g} J per "
            f"answer in time, at most {device['heat_c_max']:.0f} C, out of memory {device['oom_kills']:.0f} "
            "times"
        )
    sizes = [
        f"{model} " + " ".join(f"{jobs}:{count / sum(counts.values()):.0%}" for jobs, count in counts.items())
        for model, counts in report.batches.items()
        if len(counts) > 1
    ]
    if sizes:
        lines.append("jobs in a batch: " + "; ".join(sizes[:ROWS_MAX]))
    return lines + ([f"costs of the loop and the machine: {report.costs}"] if report.costs else [])


def print_sweep(found: Mapping[float, Mapping[str, Report]], console: Any) -> None:
    """Print what was in time, in percent: a row per app and load, a column per policy, and the range of seeds."""
    from rich.table import Table

    first = next(iter(next(iter(found.values())).values()))
    table = Table(title=f"in time by load ({first.seeds} seeds x {first.counted_s:g} s)", title_justify="left")
    for name in ("app", "load", *next(iter(found.values()))):
        table.add_column(name, justify="left" if name == "app" else "right", no_wrap=True)
    worst = sorted(
        first.apps,
        key=lambda name: min(
            report.apps[name].finish_rate for reports in found.values() for report in reports.values()
        ),
    )[:ROWS_MAX]
    for name in [name for name in first.apps if name in worst] + ["(all)"] * (len(first.apps) > 1):
        for load, reports in found.items():
            cells = []
            for report in reports.values():
                app = report.apps.get(name, report.total)
                cells.append(f"{app.finish_rate:.1%} ({_range_text(app)})" if app.offered else "-")
            table.add_row(name, f"{load:g}", *cells)
    console.print(table)
    if first.costs:
        console.print(
            f"costs of the loop and the machine: {first.costs}", highlight=False, markup=False, soft_wrap=True
        )
