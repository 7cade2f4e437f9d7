"""The plot of ``edgeserve simulate --plot``, drawn with matplotlib (the extra ``plots``) in the format that the file's
name ends in.

The same data gives the same file: no date, no random ids.
"""

from __future__ import annotations

import io
import os
from typing import Any, Mapping, Sequence

from edgeserve.config.text_files import write_file
from edgeserve.errors import EdgeServeError
from edgeserve.sim.report import Report

COLUMNS_MAX = 3
PANELS_MAX = 12
"""Apps that get a panel of their own: of more, those that lose most."""

PANEL_IN = (4.6, 3.2)


def draw_sweep(path: str, found: Mapping[float, Mapping[str, Report]]) -> None:
    """What was in time over the load: a panel per app, a line per policy, and the range of the seeds around it.
    :class:`EdgeServeError` where matplotlib is not installed or the file cannot be written."""
    pyplot = load_pyplot()
    loads = list(found)
    first = found[loads[0]]
    names = list(next(iter(first.values())).apps)
    worst = sorted(
        names,
        key=lambda name: min(
            report.apps[name].finish_rate for reports in found.values() for report in reports.values()
        ),
    )[:PANELS_MAX]
    names = [name for name in names if name in worst]
    columns = min(COLUMNS_MAX, len(names))
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, squeeze=False, sharey=True, figsize=(PANEL_IN[0] * columns, PANEL_IN[1] * rows)
    )
    for axis, name in zip(axes.flat, names):
        for title in first:
            _line(axis, loads, [found[load][title].apps[name] for load in loads], title)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("load, times the scenario's rates")
        axis.set_ylim(0, 102)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    axes[0][0].set_ylabel("answered in time, %")
    axes[0][0].legend(fontsize=8, loc="lower left", frameon=False)
    _save(pyplot, figure, path)


def _line(axis: Any, loads: Sequence[float], apps: Sequence[Any], title: str) -> None:
    ranges = [app.rate_range for app in apps]
    (line,) = axis.plot(loads, [100 * app.finish_rate for app in apps], "o-", markersize=4, linewidth=1.5, label=title)
    axis.fill_between(
        loads,
        [100 * low for low, _, _ in ranges],
        [100 * high for _, high, _ in ranges],
        alpha=0.15,
        color=line.get_color(),
        linewidth=0,
    )


def _save(pyplot: Any, figure: Any, path: str) -> None:
    figure.tight_layout()
    content = io.BytesIO()
    kind = os.path.splitext(path)[1][1:].lower()
    try:
        figure.savefig(content, format=kind or None, metadata={"Date": None} if kind == "svg" else None)
    except ValueError as error:
        raise EdgeServeError(f"--plot {path}: cannot be written ({error})") from None
    finally:
        pyplot.close(figure)
    write_file(path, content.getvalue())


def load_pyplot() -> Any:
    """Matplotlib's ``pyplot``. Raises :class:`EdgeServeError` where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise EdgeServeError(
            "a plot needs matplotlib, which is not installed: pip install 'edgeserve-runtime[plots]'; "
            "--json FILE writes the numbers without it"
        ) from None
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "edgeserve",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
        }
    )
    from matplotlib import pyplot

    return pyplot
