"""The findings of ``edgeserve doctor`` on TensorRT: the library, a small model built and run, and which plans are
there.

:func:`findings` is what the doctor calls. The library is looked at in a process of its own
(``python -m edgeserve.engines.tensorrt.diagnose``): without a driver some builds of it end the process.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edgeserve.config.model_files import model_path, weights_size_bytes
from edgeserve.config.profile_record import profile_command
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.engines.base import Batch, LaneInfo, run_whole
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import is_available, open_driver
from edgeserve.engines.options import Options
from edgeserve.engines.tensorrt.construct import DLA_RELEASES
from edgeserve.engines.tensorrt.library import INSTALL_MEND, load_plugins, open_library
from edgeserve.engines.tensorrt.plan_file import describe
from edgeserve.engines.tensorrt.plans import ANY_VERSION, PlanCache, identity_of
from edgeserve.engines.tensorrt.settings import KNOWN_OPTIONS, is_plan, own_sms, read_settings
from edgeserve.engines.tensorrt.tensorrt_engine import TensorrtEngine
from edgeserve.errors import DeviceMissing, EdgeServeError
from edgeserve.units import NS_PER_S, counted, format_duration, format_size

Found = Tuple[str, str, str, str]
"""Subject, status (``good``, ``note`` or ``wrong``), text, mend."""

GOOD, NOTE, WRONG = "good", "note", "wrong"

PROBE_S = 180.0
"""TensorRT's first build on a board loads hundreds of megabytes of kernels."""

DOUBLING = base64.b64decode(
    b"CAgSADo/Cg4KAXgKAXgSAXkiA0FkZBIBZ1oUCgF4Eg8KDQgBEgkKAxIBQgoCCARiFAoBeRIPCg0IARIJCgMSAUIKAggEQgQKABAN"
)
"""An ONNX model: ``y[B,4] = x + x``, float32."""


def findings(config: Optional[Config]) -> List[Found]:
    """The findings on TensorRT here, and on the plans of the configuration's models."""
    models = [model for model in config.models.values() if model.engine == "tensorrt"] if config is not None else []
    if config is None and not is_available():
        return []  # it is not configured, and there is nothing that it could run on
    choices = {str(model.options.get("library", "auto")) for model in models} or {"auto"}
    looked = {choice: look(choice) for choice in sorted(choices)} if models or config is None else {}
    found = [judge(about, bool(models)) for about in looked.values()]
    if config is not None and not any(about.get("error") for about in looked.values()):
        found += [plan_of(config, model, looked[str(model.options.get("library", "auto"))]) for model in models]
    return found


def look(choice: str, limit_s: float = PROBE_S, plan: str = "", plugins: Sequence[str] = ()) -> Dict[str, Any]:
    """The report of a probing process on the library of ``choice``, or on a plan that was built elsewhere, with the
    plugins that it needs; ``{"error": why}`` without a report."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "edgeserve.engines.tensorrt.diagnose", choice, *([plan, *plugins] if plan else [])],
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {limit_s:.0f} s"}
    lines = done.stdout.strip().splitlines()
    try:
        found: Dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        found = {}
    words = done.stderr.strip().splitlines()
    return found or {"error": f"the check ended with status {done.returncode}{f': {words[-1]}' if words else ''}"}


def judge(about: Dict[str, Any], wanted: bool) -> Found:
    """One finding of what :func:`look` saw. ``wanted``: a model of the configuration needs it."""
    bad = WRONG if wanted else NOTE
    if about.get("missing"):
        return ("tensorrt", bad, str(about["error"]), INSTALL_MEND)
    name = f"{about.get('library', 'TensorRT')} {about.get('version', '')}".strip()
    if about.get("code") == DeviceMissing.code:
        return (
            "tensorrt",
            bad,
            f"{name} is here, and the GPU is not: {about['error']}",
            "make the GPU reachable, as the text and the findings above say",
        )
    if about.get("error"):
        return (
            "tensorrt",
            bad,
            f"{name} cannot build and run a small model: {about['error']}",
            "install the TensorRT that belongs to this driver (on a Jetson: sudo apt install tensorrt), and look "
            "at the findings above",
        )
    return (
        "tensorrt",
        GOOD,
        f"{name} built and ran a small model in {about['build_s']:.1f} s on {about['device']}, "
        f"{about['graphs']} CUDA graphs, {counted(about['dla_cores'], 'DLA core')}",
        "",
    )


def plan_of(config: Config, model: ModelConfig, about: Dict[str, Any]) -> Found:
    """Find whether a model's plan is there. A start that has to build takes minutes on a board."""
    subject = f"plan of {model.name}"
    try:
        lanes = 1 if about["shared"] else lanes_of(config, model)
        sms = own_sms(config.lanes[name].sms for name in model.lanes or config.lanes if name in config.lanes)
        settings = read_settings(model, Options(model, KNOWN_OPTIONS), lanes, config.directory, sms)
        path = model_path(model, config.directory)
        if settings.request.dla_core >= about["dla_cores"]:
            cores = counted(about["dla_cores"], "DLA core")
            return (
                subject,
                WRONG,
                f"options.dla_core = {settings.request.dla_core}, and {about['library']} {about['version']} has "
                f"{cores} here",
                DLA_RELEASES,
            )
        if is_plan(path):
            return _given(subject, path, about, settings.request.plugins)
        device = CudaDevice(open_driver(settings.cuda), device_index_of(config, model))
        info = device.info
        device.close()
        cache = PlanCache(settings.plans)
        identity = identity_of(
            about["library"],
            ANY_VERSION if settings.request.version_compatible else about["version"],
            None if settings.request.compute_capabilities else info,
            path,
            settings.request,
        )
        plan = cache.find(model.name, identity)
        if plan is not None:
            return (
                subject,
                GOOD,
                f"{format_size(plan.size_bytes)}, built in {plan.metadata.get('build_s', 0):.0f} s",
                "",
            )
        expected_s = cache.estimate_s(identity, weights_size_bytes(path), len(settings.request.sizes))
    except EdgeServeError as error:
        return (subject, WRONG, str(error), "mend the configuration or the device, as the text says")
    time = "an unknown time" if expected_s is None else f"about {format_duration(int(expected_s * NS_PER_S))}"
    return (
        subject,
        NOTE,
        f"there is none for this library and device: building it takes {time}, and "
        + ("the next start does" if settings.allow_build else "a server does not begin that"),
        profile_command(config),
    )


def _given(subject: str, path: str, about: Dict[str, Any], plugins: Sequence[str]) -> Found:
    """The finding on a plan that was built elsewhere: whether it runs here. It is never built again."""
    found = look(about["library"], plan=path, plugins=plugins)
    if found.get("error"):
        return (
            subject,
            WRONG,
            str(found["error"]),
            "build the plan on this device with this library, or name the ONNX file instead of the plan",
        )
    takes = " and ".join(str(low) if low == high else f"{low} to {high}" for low, high in found["batches"])
    return (subject, GOOD, f"{format_size(os.path.getsize(path))}, built elsewhere, takes batches of {takes}", "")


def device_index_of(config: Config, model: ModelConfig) -> int:
    """The index of the GPU of the model's first lane."""
    names = [name for name in model.lanes or config.lanes if name in config.lanes]
    device = config.devices.get(config.lanes[names[0]].device) if names else None
    return device.index if device is not None else 0


def lanes_of(config: Config, model: ModelConfig) -> int:
    """The number of lanes of its first lane's device that may run a model."""
    lanes = [config.lanes[name].device for name in model.lanes or config.lanes if name in config.lanes]
    return lanes.count(lanes[0]) if lanes else 1


def main(choice: str, plan: str = "", *plugins: str) -> Dict[str, Any]:
    """Import the library, build and run a small model, or read a plan; runs in a process of its own."""
    try:
        load_plugins(plugins, plan)
        if plan:
            return {"batches": sorted(set(describe(plan, choice).batches))}
        library = open_library(choice)
    except EdgeServeError as error:
        return {"error": str(error), "missing": True}
    about: Dict[str, Any] = {"library": library.name, "version": library.version, "shared": library.api.profiles_shared}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "doubling.onnx"), "wb") as file:
            file.write(DOUBLING)
        model = ModelConfig(
            "doctor",
            engine="tensorrt",
            file="doubling.onnx",
            batch=(1, 2),
            options={"plans": "plans", "library": library.name},
        )
        lane = LaneInfo("cuda", clock_ns=lambda: 0, common={})  # the times are not used
        try:
            ran = _ran(TensorrtEngine(model, [lane], folder), lane, folder)
            return {**about, **ran, "dla_cores": int(library.trt.Builder(library.log).num_DLA_cores)}
        except EdgeServeError as error:
            return {**about, "error": str(error), "code": error.code}


def _ran(engine: TensorrtEngine, lane: LaneInfo, folder: str) -> Dict[str, Any]:
    engine.load()
    try:
        session = engine.open(lane)
        items = [{"x": np.full(4, value, np.float32)} for value in (1.0, 2.0)]
        results, _ = run_whole(session, Batch(items, 2))
        for item, result in zip(items, results):
            if not np.allclose(result.outputs["y"], item["x"] * 2):
                return {"error": f"it computed {result.outputs['y'].tolist()}, right is {(item['x'] * 2).tolist()}"}
        return {"device": engine.device_name, "graphs": getattr(session, "graphs", 0), "build_s": engine.build_s}
    finally:
        engine.unload()
        for shared in (lane.common or {}).values():
            if hasattr(shared, "close"):
                shared.close()


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:] or ["auto"])))
