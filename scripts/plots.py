"""Plots for the documentation, drawn with matplotlib (``pip install edgeserve-runtime[plots]``), as SVG files.

The same data gives the same file: no date, no random ids. Lines and steps only; what needs more belongs into a
notebook.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTH_IN, HEIGHT_IN = 5.2, 3.4  # of one panel


class Line(NamedTuple):
    """One line of a panel. ``style`` is matplotlib's: ``"-"``, ``"--"``, ``"o"`` (points only), ``"steps"``."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"
    colour: str = ""


class Panel(NamedTuple):
    """One set of axes. ``marks`` are labelled vertical lines: (x, label)."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    marks: Sequence[tuple] = ()
    y_from_zero: bool = True


def draw(path: str, panels: Sequence[Panel], legend: str = "best") -> str:
    """Draw the panels side by side into ``path`` (relative to the repository); returns the path."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("plots need matplotlib: pip install matplotlib, or edgeserve-runtime[plots]") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "edgeserve", "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3})
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(1, len(panels), figsize=(WIDTH_IN * len(panels), HEIGHT_IN), squeeze=False)
    for axis, panel in zip(axes[0], panels):
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        for line in panel.lines:
            more = {"color": line.colour} if line.colour else {}
            if line.style == "steps":
                axis.step(line.x, line.y, where="post", label=line.label, linewidth=1.5, **more)
            else:
                axis.plot(line.x, line.y, line.style, label=line.label or None, linewidth=1.5, markersize=4, **more)
        for at, label in panel.marks:
            axis.axvline(at, color="0.4", linewidth=0.8, linestyle=":")
            axis.annotate(label, (at, 1.0), xycoords=("data", "axes fraction"), fontsize=7, rotation=90,
                          va="top", ha="right", color="0.3")
        if panel.y_from_zero:
            axis.set_ylim(bottom=0)
        if any(line.label for line in panel.lines):
            axis.legend(fontsize=7, loc=legend, frameon=False)
    figure.tight_layout()
    full = os.path.join(ROOT, path)
    figure.savefig(full, metadata={"Date": None})
    pyplot.close(figure)
    return full
