"""``python -m edgeserve`` is the ``edgeserve`` command, for an environment whose commands are not on the path."""

from __future__ import annotations

import sys

from edgeserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
