"""EdgeServe: many models on one device, every deadline kept or refused early.

The public names are imported on first use, so that ``import edgeserve`` costs nothing and needs no engine.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's own, without the import of it
if TYPE_CHECKING:
    from typing import Any, List

    from edgeserve import errors
    from edgeserve.answers import Answer
    from edgeserve.app import App, Model, Node
    from edgeserve.async_runtime import AsyncRuntime
    from edgeserve.client import AsyncClient, Client
    from edgeserve.config.loading import load_config
    from edgeserve.config.schema import Config
    from edgeserve.live.world import LostDevice
    from edgeserve.runtime import Runtime

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "App",
    "AsyncClient",
    "AsyncRuntime",
    "Client",
    "Config",
    "LostDevice",
    "Model",
    "Node",
    "Runtime",
    "__version__",
    "errors",
    "load_config",
]

_HOMES = {
    "Answer": "edgeserve.answers",
    "App": "edgeserve.app",
    "AsyncClient": "edgeserve.client",
    "AsyncRuntime": "edgeserve.async_runtime",
    "Client": "edgeserve.client",
    "Config": "edgeserve.config.schema",
    "LostDevice": "edgeserve.live.world",
    "Model": "edgeserve.app",
    "Node": "edgeserve.app",
    "Runtime": "edgeserve.runtime",
    "load_config": "edgeserve.config.loading",
}

if os.environ.get("EDGESERVE_CORE"):
    from edgeserve import compiled

    compiled.choose(os.environ["EDGESERVE_CORE"])


def __getattr__(name: str) -> Any:
    import importlib

    if name == "errors":
        return importlib.import_module("edgeserve.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'edgeserve' has no attribute {name!r} (public names: {', '.join(__all__)})")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> List[str]:
    return sorted(__all__)
