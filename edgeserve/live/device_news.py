"""News of the device for the loop, and what ``stats`` tells of the board."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple

from edgeserve.sched.protocol.events import Event

if TYPE_CHECKING:
    from edgeserve.device.boards import Machine


class DeviceNews(NamedTuple):
    """Events from a monitor's thread."""

    events: List[Event]


def board_table(board: Machine) -> Dict[str, Any]:
    """The board, and no monitor."""
    return {"board": board.kind.slug, "model": board.model, "l4t": board.l4t, "jetpack": board.jetpack, "monitors": {}}
