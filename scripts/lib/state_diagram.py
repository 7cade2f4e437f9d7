"""A state diagram in Mermaid's words as an SVG drawing, for a site that loads no script from elsewhere.

States stand in columns, by the longest way from the start; an edge that passes a column has a place of its own there.
Only ``A --> B`` and ``A --> B : label`` are read.
"""

from __future__ import annotations

import html
import re
from typing import Dict, List, NamedTuple, Sequence, Set, Tuple

COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 190, 58, 92, 32, 24
SWEEPS = 8
HALO = 'stroke="var(--md-default-bg-color, white)" stroke-width="4" paint-order="stroke"'
"""Around a label, so that it can be read where an edge passes behind it."""

END = "[*]"
"""Mermaid's mark of start and end."""


class Edge(NamedTuple):
    """``via``: the places in the columns between; ``back``: against the direction of all others."""

    source: str
    target: str
    label: str
    via: Tuple[str, ...] = ()
    back: bool = False


def read(text: str) -> List[Edge]:
    """The edges of a diagram, those from and to ``[*]`` left out."""
    found = re.findall(r"(?m)^\s*(\S+) --> (\S+?)(?: : (.*))?$", text)
    return [Edge(source, target, label) for source, target, label in found if END not in (source, target)]


def columns(edges: Sequence[Edge]) -> Tuple[Dict[str, int], Set[Tuple[str, str]]]:
    """The column of each state, and the edges that lead back."""
    after: Dict[str, List[str]] = {}
    for edge in edges:
        after.setdefault(edge.source, []).append(edge.target)
        after.setdefault(edge.target, [])
    column: Dict[str, int] = {}
    back: Set[Tuple[str, str]] = set()

    def visit(state: str, path: Tuple[str, ...]) -> None:
        if column.get(state, -1) < len(path):
            column[state] = len(path)
            for target in after[state]:
                if target in path or target == state:
                    back.add((state, target))
                else:
                    visit(target, (*path, state))

    visit(next(iter(after)), ())
    return column, back


def draw(text: str) -> str:
    """The drawing, in the colour of the text around it."""
    edges = read(text)
    column, back = columns(edges)
    places: List[List[str]] = [[] for _ in range(max(column.values()) + 1)]
    for state, number in column.items():
        places[number].append(state)
    routed = []
    for edge in edges:
        if (edge.source, edge.target) in back:
            routed.append(edge._replace(back=True))
            continue
        via = tuple(f"{edge.source}>{edge.target}@{at}" for at in range(column[edge.source] + 1, column[edge.target]))
        for at, name in enumerate(via, column[edge.source] + 1):
            places[at].append(name)
        routed.append(edge._replace(via=via))
    _untangle(places, routed)
    return _drawn(places, routed, column)


def _untangle(places: List[List[str]], edges: Sequence[Edge]) -> None:
    """Order each column by where its neighbours in the one before and behind it stand."""
    beside: Dict[str, List[str]] = {}
    for edge in edges:
        chain = (edge.source, *edge.via, edge.target)
        for one, other in zip(chain, chain[1:]) if not edge.back else ():
            beside.setdefault(one, []).append(other)
            beside.setdefault(other, []).append(one)
    for _ in range(SWEEPS):
        for at, names in enumerate(places):
            where = {
                name: index / max(1, len(column) - 1) if len(column) > 1 else 0.5
                for near in (at - 1, at + 1)
                if 0 <= near < len(places)
                for column in [places[near]]
                for index, name in enumerate(column)
            }
            names.sort(
                key=lambda name: (
                    sum(where.get(other, 0.5) for other in beside.get(name, ["?"])) / len(beside.get(name, ["?"])),
                    name,
                )
            )


def _drawn(places: List[List[str]], edges: Sequence[Edge], column: Dict[str, int]) -> str:
    rows = max(len(names) for names in places)
    width, height = COLUMN * (len(places) - 1) + WIDTH + 2 * MARGIN, ROW * rows + 2 * MARGIN
    point = {
        name: (MARGIN + WIDTH / 2 + COLUMN * at, MARGIN + ROW * rows * (index + 0.5) / len(names))
        for at, names in enumerate(places)
        for index, name in enumerate(names)
    }
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="state diagram" '
        f'style="max-width:{width}px;width:100%" font-family="inherit" font-size="12" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>',
    ]
    for edge in edges:
        path, (x, y) = _line(edge, point)
        parts.append(f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".6" marker-end="url(#tip)"/>')
        words = edge.label.split(", ")
        lines = [", ".join(words[at : at + 2]) for at in range(0, len(words), 2)]
        parts += [
            f'<text x="{x:.0f}" y="{y - 4 - 13 * (len(lines) - 1 - number):.0f}" fill="currentColor" {HALO}>'
            f"{html.escape(line)}</text>"
            for number, line in enumerate(lines)
        ]
    for name in column:
        x, y = point[name]
        parts.append(
            f'<rect x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
            'fill="currentColor" fill-opacity=".08" stroke="currentColor"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}" fill="currentColor">{html.escape(name)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _line(edge: Edge, point: Dict[str, Tuple[float, float]]) -> Tuple[str, Tuple[float, float]]:
    """An edge's path and the place of its label."""
    (x, y), (to_x, to_y) = point[edge.source], point[edge.target]
    if edge.back:
        middle, top = (x + to_x) / 2, min(y, to_y) - HEIGHT / 2 - 34
        return (
            f"M{x:.0f} {y - HEIGHT / 2:.0f}C{x:.0f} {top:.0f} {to_x:.0f} {top:.0f} {to_x:.0f} {to_y - HEIGHT / 2:.0f}"
        ), (middle, top + 6)
    stops = [(x + WIDTH / 2, y), *[point[name] for name in edge.via], (to_x - WIDTH / 2, to_y)]
    path = f"M{stops[0][0]:.0f} {stops[0][1]:.0f}"
    for (one_x, one_y), (two_x, two_y) in zip(stops, stops[1:]):
        half = (one_x + two_x) / 2
        path += f"C{half:.0f} {one_y:.0f} {half:.0f} {two_y:.0f} {two_x:.0f} {two_y:.0f}"
    (one_x, one_y), (two_x, two_y) = stops[0], stops[1]
    return path, ((one_x + two_x) / 2, (one_y + two_y) / 2)
