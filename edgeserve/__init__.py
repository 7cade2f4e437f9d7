"""EdgeServe: many models on one device, every deadline kept or refused early.

The public names are imported on first use, so that ``import edgeserve`` costs nothing and needs no engine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeserve.client import AsyncClient, Client
    from edgeserve.config.loading import load_config
    from edgeserve.config.schema import Config
    from edgeserve.runtime import Runtime

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Config", "Runtime", "__version__", "load_config"]

_HOMES = {"Runtime": "edgeserve.runtime", "Client": "edgeserve.client", "AsyncClient": "edgeserve.client",
          "Config": "edgeserve.config.schema", "load_config": "edgeserve.config.loading"}

if os.environ.get("EDGESERVE_CORE"):
    from edgeserve import compiled
    compiled.choose(os.environ["EDGESERVE_CORE"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgeserve' has no attribute {name!r}")
    import importlib
    return getattr(importlib.import_module(_HOMES[name]), name)
