"""Draw ``docs/reference/errors.md``: every error with its code, and every reason, from ``edgeserve.errors``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

from draw.reference import plain
from edgeserve import errors

PAGE, SCRIPT = "docs/reference/errors.md", "scripts/draw/errors.py"


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    return {"errors": error_table(), "reasons": reason_table()}


def error_table() -> str:
    """Every error, with its code, what it is a kind of and what its docstring says."""
    rows = ["| error | code | is a | when |", "| --- | --- | --- | --- |"]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    for kind in kinds:
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not errors.Refusal)
        when = plain(kind).replace("\n", " ").replace("|", "\\|")
        rows.append(f"| `errors.{kind.__name__}` | `{kind.code}` | {bases} | {when} |")
    return "\n".join(rows)


def reason_table() -> str:
    """Every reason of a refusal, with its outcomes."""
    rows = ["| reason | outcome | means |", "| --- | --- | --- |"]
    return "\n".join(rows + [f"| `{reason}` | {when} | {what} |" for reason, (when, what) in errors.REASONS.items()])


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
