"""The ``edgeserve`` command, and ``python -m edgeserve`` for an environment whose commands are not on the path.

Its modules are imported inside, so that Ctrl-C is quiet from the start.
"""

from __future__ import annotations

import sys


def main() -> int:
    """The exit status of the command (:func:`edgeserve.cli.main`)."""
    try:
        from edgeserve.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130  # as shells say it


if __name__ == "__main__":
    sys.exit(main())
