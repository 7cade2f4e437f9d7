"""Plots for the documentation, drawn with matplotlib (``pip install matplotlib``), as SVG files.

The same data gives the same file: no date, no random ids. Lines, steps and rows of bars only; what needs more belongs
into a notebook.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WIDTH_IN, HEIGHT_IN = 5.2, 3.4  # of one panel


class Line(NamedTuple):
    """One line of a panel. ``style`` is matplotlib's: ``"-"``, ``"--"``, ``"o"`` (points only), ``"steps"``."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"
    colour: str = ""


class Bar(NamedTuple):
    """A horizontal bar in a row of a panel. Bars with one label share a place in the legend."""

    row: int
    begin: float
    end: float
    colour: str
    label: str = ""


class Panel(NamedTuple):
    """One set of axes. ``marks`` are labelled vertical lines: (x, label). With ``rows``, y counts these from the top
    and ``bars`` lie in them."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Sequence[tuple] = ()
    y_from_zero: bool = True
    rows: Sequence[str] = ()
    bars: Sequence[Bar] = ()


def load_pyplot() -> Any:
    """Matplotlib's ``pyplot``, set to draw the same file from the same data."""
    import matplotlib

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


def draw(path: str, panels: Sequence[Panel], legend: str = "best", stacked: bool = False, columns: int = 0) -> str:
    """Draw the panels side by side (in so many ``columns``, if given), or ``stacked`` over a common x, into ``path``
    (relative to the repository); returns the path. ``legend``: where it stands, for matplotlib, or ``"beside"``."""
    pyplot = load_pyplot()
    if stacked:
        figure, axes = pyplot.subplots(
            len(panels), 1, sharex=True, squeeze=False, figsize=(WIDTH_IN * 2, HEIGHT_IN / 2 * len(panels) + 0.5)
        )
    else:
        columns = min(columns or len(panels), len(panels))
        rows = -(-len(panels) // columns)
        figure, axes = pyplot.subplots(rows, columns, figsize=(WIDTH_IN * columns, HEIGHT_IN * rows), squeeze=False)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
    for axis, panel in zip(axes.flat, panels):
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        known = set()
        for bar in panel.bars:
            label = bar.label if bar.label not in known else ""
            known.add(bar.label)
            axis.barh(
                bar.row,
                bar.end - bar.begin,
                left=bar.begin,
                height=0.7,
                color=bar.colour,
                label=label or None,
                edgecolor="white",
                linewidth=0.3,
            )
        if panel.rows:
            axis.set_yticks(range(len(panel.rows)), panel.rows)
            axis.set_ylim(len(panel.rows) - 0.4, -0.6)
            axis.grid(visible=False, axis="y")
        for line in panel.lines:
            more = {"color": line.colour} if line.colour else {}
            if line.style == "steps":
                axis.step(line.x, line.y, where="post", label=line.label, linewidth=1.5, **more)
            else:
                axis.plot(line.x, line.y, line.style, label=line.label or None, linewidth=1.5, markersize=4, **more)
        for at, label in panel.marks:
            axis.axvline(at, color="0.4", linewidth=0.8, linestyle=":")
            axis.annotate(
                label,
                (at, 1.0),
                xycoords=("data", "axes fraction"),
                fontsize=7,
                rotation=90,
                va="top",
                ha="right",
                color="0.3",
            )
        if panel.y_from_zero and not panel.rows:
            axis.set_ylim(bottom=0)
        if not stacked and any(item.label for item in (*panel.lines, *panel.bars)):
            beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
            axis.legend(fontsize=7, frameon=False, **(beside if legend == "beside" else {"loc": legend}))
    figure.tight_layout()
    if stacked:  # one legend for all, below
        figure.legend(*axes.flat[0].get_legend_handles_labels(), fontsize=8, loc="lower center", ncol=4, frameon=False)
        figure.subplots_adjust(bottom=0.55 / figure.get_figheight() + 0.1)
    full = os.path.join(ROOT, path)
    figure.savefig(full, metadata={"Date": None})
    pyplot.close(figure)
    return full
