"""Draw the state diagrams of ``docs/reference/lifecycle.md`` from the tables in
``edgeserve.sched.requests.states``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

from edgeserve.sched.requests.states import JOB_TABLE, REQUEST_TABLE

PAGE, SCRIPT = "docs/reference/lifecycle.md", "scripts/draw/lifecycle.py"

Table = Mapping[Tuple[str, str], str]


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    return {"request diagram": diagram(REQUEST_TABLE), "job diagram": diagram(JOB_TABLE)}


def diagram(table: Table) -> str:
    """The table as a Mermaid state diagram. The first row's state is the first; states that nothing leaves are ends.
    Words that lead from one state to the same next one share an arrow."""
    first = next(iter(table))[0]
    arrows: Dict[Tuple[str, str], List[str]] = {}
    for (state, what), following in table.items():
        arrows.setdefault((state, following), []).append(what)
    left = {state for state, _ in table}
    ends = list(dict.fromkeys(following for following in table.values() if following not in left))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {state} --> {following} : {', '.join(words)}" for (state, following), words in arrows.items()]
    lines += [f"    {state} --> [*]" for state in ends]
    return "\n".join([*lines, "```"])


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
