"""Drive Frigate's own ``zmq`` detector, from a checkout of Frigate, against a front that is running.

    edgeserve front frigate --app detect --listen tcp://127.0.0.1:5555 &
    python scripts/dev/frigate_plugin.py CHECKOUT [--endpoint tcp://127.0.0.1:5555] [--shape 1,320,320,3]

The plugin, of type ``zmq``, is the checkout's file as it is. What it imports of the rest of
Frigate is replaced by names where the packages that the rest needs are not installed: the plugin uses none of it.
Needs pydantic. Prints what the plugin found; the exit status is 1 where the answer has another form.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import types
from typing import Any

import numpy as np


def main() -> int:
    """0 when the plugin got its 20 rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:5555")
    parser.add_argument("--shape", default="1,320,320,3")
    parser.add_argument("--dtype", default="uint8")
    parser.add_argument("--model-type", default="yologeneric")
    parser.add_argument("--image", metavar="FILE", help="a .npy file; default: noise")
    args = parser.parse_args()
    shape = tuple(int(length) for length in args.shape.split(","))
    image = np.load(args.image) if args.image else np.random.default_rng(1).integers(0, 255, shape).astype(args.dtype)
    plugin = loaded(args.checkout)
    settings = plugin.ZmqDetectorConfig(type="zmq", endpoint=args.endpoint)
    model = types.SimpleNamespace(
        path="/config/model.onnx",
        width=shape[2],
        height=shape[1],
        model_type=types.SimpleNamespace(name=args.model_type),
    )
    object.__setattr__(settings, "model", model)
    rows = plugin.ZmqIpcDetector(settings).detect_raw(image)
    for kind, score, top, left, bottom, right in rows[rows[:, 1] > 0]:
        print(f"class {kind:.0f} with {score:.2f} at {left:.3f} {top:.3f} {right:.3f} {bottom:.3f}")
    print(f"{(rows[:, 1] > 0).sum()} detections in an array of {rows.dtype} {rows.shape}")
    return int(rows.shape != (20, 6) or rows.dtype != np.float32)


def loaded(checkout: str) -> Any:
    """The plugin's module."""
    path = os.path.join(checkout, "frigate", "detectors", "plugins", "zmq_ipc.py")
    if not os.path.exists(path):
        sys.exit(f"frigate_plugin: {path} is not there; expected a checkout of Frigate")
    sys.path.insert(0, checkout)
    try:
        import frigate.detectors.detection_api  # noqa: F401 whether all that Frigate needs is installed
    except ImportError as error:
        print(f"frigate_plugin: the rest of Frigate cannot be imported ({error}); the plugin alone is", file=sys.stderr)
        stand_in()
    found = importlib.util.spec_from_file_location("frigate_zmq_ipc", path)
    assert found is not None and found.loader is not None, "the file exists"
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def stand_in() -> None:
    """Bases of the plugin's two classes: a detector that has a configuration, and a configuration with a type."""
    import pydantic

    class BaseDetectorConfig(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)
        type: str = "cpu"
        model: Any = None

    class DetectionApi:
        def __init__(self, detector_config: Any) -> None:
            self.detector_config = detector_config

    for name, members in (
        ("frigate", {}),
        ("frigate.detectors", {}),
        ("frigate.detectors.detection_api", {"DetectionApi": DetectionApi}),
        ("frigate.detectors.detector_config", {"BaseDetectorConfig": BaseDetectorConfig}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(members)
        module.__path__ = []  # type: ignore[attr-defined]
        sys.modules[name] = module


if __name__ == "__main__":
    sys.exit(main())
