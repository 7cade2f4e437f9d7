"""What is known of one model when its file was read and it was tried."""

from __future__ import annotations

from typing import NamedTuple

from edgeserve.tools.init.roles import Roles
from edgeserve.tools.init.trial import Tried


class Found(NamedTuple):
    """One model: its name, its file relative to the configuration, what it is, and how its trial went."""

    name: str
    file: str
    roles: Roles
    tried: Tried
