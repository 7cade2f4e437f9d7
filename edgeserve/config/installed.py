"""Entry points of other packages, by the groups that fronts and commands have."""

from __future__ import annotations

from typing import Dict, NamedTuple


class Installed(NamedTuple):
    """An entry point: the ``module`` or ``module:Class`` that it names, and the package that installs it."""

    place: str
    package: str


def installed(group: str) -> Dict[str, Installed]:
    """The entry points of a group by their names; of two of one name the first on the path. Nothing is imported."""
    from importlib import metadata  # a megabyte that a server without fronts spares

    found: Dict[str, Installed] = {}
    for package in metadata.distributions():
        try:
            for point in package.entry_points:
                if point.group == group:
                    found.setdefault(point.name, Installed(point.value, str(package.metadata["Name"])))
        except Exception:  # noqa: BLE001 what cannot be read of one package does not concern the others
            continue
    return found
