"""Draw ``docs/reference/policy-options.md``: the options of every policy with their defaults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/

from lib import drawn

from draw import configuration

PAGE, SCRIPT = "docs/reference/policy-options.md", "scripts/draw/policy_options.py"


def parts() -> Dict[str, str]:
    """The page's parts by name."""
    return {"policy options": configuration.policy_table()}


if __name__ == "__main__":
    sys.exit(drawn.main(PAGE, parts(), SCRIPT))
