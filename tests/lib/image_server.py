"""A server with an app that finds what is bright, and says its deadline; for tests of fronts."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Iterator

from edgeserve.config.loading import load_config
from edgeserve.runtime import Runtime

PLACE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "examples", "ros2")

CONFIG = """
[server]
endpoint = "ipc://{folder}/bus/socket"

[model.detect]
engine = "python"
function = "detector:find"
options = {{ example = "detector:example" }}
expected = {{ 1 = "5ms" }}

[app.detect]
model = "detect"
slo = "10s"
stream = "newest_wins"

[app.detect.inputs]
image = {{ dtype = "uint8", shape = [-1, -1, 3] }}
"""


@contextlib.contextmanager
def image_server() -> Iterator[Any]:
    """The runtime, and the path of its configuration."""
    with tempfile.TemporaryDirectory(prefix="es") as folder:
        shutil.copy(os.path.join(PLACE, "detector.py"), folder)
        path = os.path.join(folder, "edge.toml")
        Path(path).write_text(CONFIG.format(folder=folder))
        with Runtime(load_config(path), serve=True) as runtime:
            yield runtime, path
