"""Kernels that TensorRT for RTX compiles when a context is made, kept in a file beside the plan: without it each start
compiles them again, some 15 seconds for a network of usual size. Other libraries compile at the build alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, Optional

from edgeserve.engines.tensorrt.library import Library

log = logging.getLogger("edgeserve.tensorrt")


class RuntimeCache:
    """The kernels of one loaded plan. It belongs to the engine and goes before it. ``path``: the file, ``""`` for
    none: then its contexts alone share them."""

    def __init__(self, library: Library, engine: Any, path: str) -> None:
        self._path = path
        self._known = b""
        self.config = engine.create_runtime_config()
        self.config.set_execution_context_allocation_strategy(
            library.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        self._cache = self.config.create_runtime_cache()
        if path:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                self._known = file.read()
            if self._known and not self._cache.deserialize(self._known):
                log.info("%s is not used: %s", path, library.why("it is of another GPU, driver or release"))
                self._cache.reset()
        self.config.set_runtime_cache(self._cache)

    def keep(self) -> None:
        """Write the kernels where there are new ones. A file that cannot be written costs the next start its time, and
        nothing else."""
        held = self._cache.serialize() if self._path else None
        data = bytes(memoryview(held)) if held is not None else b""
        if not data or data == self._known:
            return
        beside = f"{self._path}.{os.getpid()}"
        try:
            with open(beside, "wb") as file:
                file.write(data)
            os.replace(beside, self._path)
            self._known = data
        except OSError as error:
            log.info("%s cannot be kept: %s", self._path, error)
            with contextlib.suppress(OSError):
                os.unlink(beside)


def runtime_cache(library: Library, engine: Any, path: str) -> Optional[RuntimeCache]:
    """The kernels of an engine; ``None`` for a library that compiles none."""
    return RuntimeCache(library, engine, path) if library.api.compiles_at_load else None
