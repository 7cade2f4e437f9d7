"""The source of a model's plan: the cache, or a build now, with its progress in words."""

from __future__ import annotations

import logging
import math
import os
from typing import Any, Dict, Mapping, Optional

from edgeserve.config.model_files import Stamps, graph_parts, stamps, weights_size_bytes
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.tensorrt import building
from edgeserve.engines.tensorrt.build_errors import BuildFailed
from edgeserve.engines.tensorrt.building import MEMORY_FLOOR_BYTES, BuildLimits, BuildProgress, build_plan
from edgeserve.engines.tensorrt.library import Library
from edgeserve.engines.tensorrt.plans import LOCK_LOOK_S, Identity, PlanCache, StoredPlan, built_on
from edgeserve.engines.tensorrt.settings import BuildRequest, Settings
from edgeserve.units import NS_PER_S, format_duration

log = logging.getLogger("edgeserve.tensorrt")

TACTIC_BYTES_MIN = 64 << 20
"""Below this no kernel of use could be timed; the bound on the host's free memory ends such a build."""

TOLD_EVERY_S = 10.0
"""Progress of a build goes to the log so often."""


class PlanSource:
    """One model's plans. ``progress``: how far a build is, or the wait for another process's. Knows no lane."""

    def __init__(self, name: str, settings: Settings, device_index: int) -> None:
        self._name = name
        self._where = f"model {name!r}"
        self._settings = settings
        self._device_index = device_index
        self.progress = ""

    def obtain(
        self,
        library: Library,
        device: CudaDevice,
        cache: PlanCache,
        identity: Identity,
        path: str,
        before: Stamps,
        request: BuildRequest,
        may_build: bool,
        rebuilds: bool,
    ) -> StoredPlan:
        """A plan of the files as they were ``before`` they were hashed, built now where none fits and that is allowed.
        ``rebuilds``: its kernels are timed anew."""
        settings = self._settings
        request = request._replace(file=os.path.abspath(path))
        if not may_build and cache.find(self._name, identity) is None:
            raise BuildFailed(
                f"{self._where}: there is no plan of {os.path.basename(path)} in {settings.plans} for "
                f"{library.name} {library.version} on this device, and a server builds none: that takes minutes, "
                "and the whole GPU. "
                f"Run 'edgeserve profile CONFIG --model {self._name}' first, or set [model.{self._name}] "
                "options.allow_build = true"
            )

        def build(plan: str) -> Dict[str, Any]:
            facts = self._built(library, device, cache, identity, request, plan, rebuilds)
            if stamps(graph_parts(path)) != before:
                raise BuildFailed(
                    f"{self._where}: {path}, or a file of its weights, changed while its plan was built; load it again "
                    "when all its files are in their place"
                )
            log.warning("%s: the plan was built in %.1f s", self._where, facts["build_s"])
            return facts

        def waiting(looks: int) -> None:
            self.progress = f"waiting for another process that builds the plan, for {looks * LOCK_LOOK_S:.0f} s"

        waits = math.ceil(settings.build_timeout_ns / NS_PER_S / LOCK_LOOK_S)
        return cache.obtain(self._name, identity, self._where, build, waits, waiting)

    def _built(
        self,
        library: Library,
        device: CudaDevice,
        cache: PlanCache,
        identity: Identity,
        request: BuildRequest,
        plan: str,
        rebuilds: bool,
    ) -> Dict[str, Any]:
        """Build the plan into the file ``plan``, and return the facts that the cache keeps of it."""
        settings, model_bytes, facts = self._settings, weights_size_bytes(request.file), built_on(device.info)
        expected_s = cache.estimate_s(identity, model_bytes, len(request.sizes))
        teller = _Teller(self._where, expected_s)

        def told(progress: BuildProgress) -> None:
            self.progress = teller.tell(progress)

        log.warning(
            "%s: %s %s builds a plan for batch sizes %s; %s",
            self._where,
            library.name,
            library.version,
            request.sizes,
            "no build on this device is remembered to say how long"
            if expected_s is None
            else f"about {format_duration(int(expected_s * NS_PER_S))}",
        )
        built = build_plan(
            identity.library,
            request._replace(tactic_bytes=settings.build_memory_bytes or free_for_tactics(device)),
            self._where,
            plan,
            cache.timing_cache(identity, facts) if settings.timing_cache and not rebuilds else "",
            BuildLimits(settings.build_memory_bytes, settings.build_timeout_ns),
            told,
            self._device_index,
        )
        about = {"model_bytes": model_bytes, "profiles_count": len(request.sizes), "model": self._name}
        return {**built, **about, "built_on": facts}


def free_for_tactics(device: CudaDevice) -> int:
    """The bytes of the device's memory that the builder may take while it times kernels: all that is free now. By
    itself TensorRT takes up to three quarters of an integrated GPU's memory, also where other programs use it."""
    return max(TACTIC_BYTES_MIN, free_now(device) - (MEMORY_FLOOR_BYTES if device.info.integrated else 0))


def free_now(device: CudaDevice) -> int:
    """The free bytes of the device's memory. On a board CUDA does not count as free what the kernel could reclaim."""
    return building.available_bytes() if device.info.integrated else device.memory().free


class _Teller:
    """Progress of a build in words: each time, and to the log, not too often."""

    def __init__(self, where: str, expected_s: Optional[float]) -> None:
        self._where = where
        self._expected_s = expected_s
        self._told_s = 0.0

    def tell(self, progress: BuildProgress) -> str:
        left = (
            ""
            if self._expected_s is None
            else (f", about {max(0.0, self._expected_s - progress.elapsed_s):.0f} s left")
        )
        text = f"building for {progress.elapsed_s:.0f} s ({progress.phase} {100 * progress.share:.0f} %{left})"
        if progress.elapsed_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = progress.elapsed_s
            log.warning("%s: %s", self._where, text)
        return text


def precision_text(request: BuildRequest, library: Library, metadata: Mapping[str, Any]) -> str:
    """The precision of a plan, and the effect of another, as text. ``metadata``: the plan's."""
    types = metadata["types"]
    has = ", ".join(types) or "no floating type"
    if request.precision == "fp16" and library.api.weak_types:
        return f"built with precision = 'fp16': float16 where that is faster, else as the file has it ({has})"
    if request.precision == "fp16":
        kept = ", ".join(f"{count} {kind}" for kind, count in sorted(metadata.get("float32_nodes", {}).items()))
        return f"built with precision = 'fp16': float16, and in float32 {kept or 'nothing'}"
    text = f"built in {has}, as the file has it"
    if "float32" not in types or "float16" in types:
        return text
    return (
        f"{text}. options.precision = 'fp16' may be faster and takes half of the memory; compare the answers before "
        "you keep it"
    )
