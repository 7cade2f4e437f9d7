"""Cases that are run in several processes, their results as tables, and the tables beside a reference's numbers."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence

from common import runs

Cells = Dict[str, Dict[str, Dict[str, float]]]
"""Table -> row -> column -> value."""


def run_cells(
    run: Callable[[Any], Any], cases: Sequence[Any], processes: int
) -> Dict[str, Dict[str, Dict[str, List[Any]]]]:
    """The results of all cases by ``table``, ``row`` and ``where`` of a case, in the order of the cases."""
    found: Dict[str, Dict[str, Dict[str, List[Any]]]] = {}
    for case, result in runs.done(run, cases, processes):
        found.setdefault(case.table, {}).setdefault(case.row, {}).setdefault(case.where, []).append(result)
    return found


def means(found: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]], field: str) -> Cells:
    """The mean of one field of the results."""
    return {
        table: {
            row: {
                where: sum([getattr(result, field) for result in results]) / len(results)
                for where, results in cells.items()
            }
            for row, cells in rows.items()
        }
        for table, rows in found.items()
    }


def by_column(rows: Mapping[str, Sequence[float]], columns: Sequence[Any]) -> Dict[str, Dict[str, float]]:
    """A reference's numbers, which stand in the order of the columns."""
    return {row: dict(zip(map(str, columns), values)) for row, values in rows.items()}


def show(
    title: str, cells: Mapping[str, Mapping[str, float]], reference: Mapping[str, Mapping[str, float]] | None = None
) -> None:
    """Print a table: ours, and the reference's number in brackets where it has one."""
    columns = list(next(iter(cells.values())))
    print(f"\n{title}\n{'':32}" + "".join(f"{column:>18}" for column in columns))
    for row, values in cells.items():
        known = (reference or {}).get(row, {})
        print(
            f"{row:32}"
            + "".join(
                f"{values[column]:9.2f}" + (f" ({known[column]:6.2f})" if column in known else " " * 9)
                for column in columns
            ),
            flush=True,
        )
