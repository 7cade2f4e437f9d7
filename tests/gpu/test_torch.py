"""The ``torch`` engine on CUDA, held to the contract, and what only a device shows."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from gpu import why_no_torch
from serving import command, wait_until
from vector_items import TORCH_STATE, VectorModel

from edgeserve.client import Client
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, run_batch
from edgeserve.errors import OutOfMemory, RequestError

pytestmark = pytest.mark.skipif(bool(why_no_torch()), reason=why_no_torch() or "there is a device")

LANE = LaneInfo("cuda", name="gpu0", depth=2)


class OnCuda(VectorModel):
    lane = LANE
    tolerance = 1e-3  # TF32 may be on
    settings = {"engine": "torch", "shapes": {"x": (4,)}, "function": "torch_models:Linear"}


class TestModule(OnCuda):
    pass


class TestModuleOneAtATime(OnCuda):
    lane = LANE._replace(depth=1)


class TestModuleByGraphs(OnCuda):
    settings = {**OnCuda.settings, "options": {"graph": True}}


class TestModuleInHalfPrecision(OnCuda):
    tolerance = 1e-2
    settings = {**OnCuda.settings, "options": {"precision": "float16"}}


class TestExported(OnCuda):
    def make(self, directory: str) -> Engine:
        import torch
        import torch_models

        file = torch_models.exported(directory, torch_models.Linear(), (torch.ones(2, 4),))
        return self.built(directory, function="", file=file)


class TestTorchScriptState(OnCuda):
    stateful = True

    def make(self, directory: str) -> Engine:
        import torch_models

        file = torch_models.scripted(directory, torch_models.Recurrent())
        return self.built(directory, **TORCH_STATE, function="", file=file)


def test_unloading_gives_the_memory_back(tmp_path):
    import torch

    model = ModelConfig("big", "torch", function="torch_models:Wide", shapes={"x": (1024,)})
    engine = make_engine(model, [LANE], str(tmp_path))
    free = torch.cuda.mem_get_info()[0]
    footprint = engine.load()
    assert footprint.weights_bytes == 64 * 1024 * 1024 * 4
    assert torch.cuda.mem_get_info()[0] < free - footprint.weights_bytes // 2
    engine.unload()
    assert torch.cuda.mem_get_info()[0] > free - footprint.weights_bytes // 2


def test_a_full_device_is_out_of_memory_and_the_next_batch_runs(tmp_path):
    model = ModelConfig("greedy", "torch", function="torch_models:Greedy", shapes={"x": (1,)})
    engine = make_engine(model, [LANE], str(tmp_path))
    engine.load()
    session = engine.open(LANE._replace(clock_ns=time.monotonic_ns, common={}))
    with pytest.raises(OutOfMemory, match="model 'greedy'.*no room on cuda") as caught:
        run_batch(session, Batch([{"x": np.ones(1, np.float32)}], 1))
    assert caught.value.asked_bytes and caught.value.free_bytes is not None
    assert run_batch(session, Batch([{"x": np.zeros(1, np.float32)}], 1))[0][0].error is None
    engine.unload()


LOST = """
import time, numpy as np
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_batch
from edgeserve.errors import DeviceLost
lane = LaneInfo("cuda", name="gpu0", clock_ns=time.monotonic_ns, common={})
model = ModelConfig("table", "torch", function="torch_models:Lookup", shapes={"x": (1,)},
                    options={"inputs": {"x": {"dtype": "int64", "shape": [1]}}})
engine = make_engine(model, [lane], ".")
engine.load()
session = engine.open(lane)
try:
    run_batch(session, Batch([{"x": np.array([10**6])}], 1))
except DeviceLost as error:
    assert "model 'table'" in str(error), error
    print("lost", error)
"""


def test_a_sticky_error_is_a_lost_device():
    """In a process of its own: nothing else runs in it afterwards."""
    library = Path(__file__).resolve().parents[1] / "lib"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(library)!r})\n{LOST}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "lost model 'table'" in done.stdout, done.stdout + done.stderr


SERVED = """
[server]
endpoint = "ipc://{folder}/bus"
[device.cpu]
[device.gpu]
kind = "cuda"
[lane.cpu0]
[lane.gpu0]
device = "gpu"
[model.table]
engine = "torch"
function = "torch_models:Lookup"
shapes = {{ x = [1] }}
lanes = ["gpu0"]
options = {{ inputs = {{ x = {{ dtype = "int64", shape = [1] }} }} }}
[model.nap]
engine = "synthetic"
expected = {{ 1 = "300ms" }}
lanes = ["cpu0"]
[app.table]
model = "table"
slo = "20s"
[app.nap]
model = "nap"
slo = "20s"
"""


def test_a_server_whose_device_is_lost_answers_everybody_and_ends_for_the_next_one(monkeypatch):
    """As under a service manager: status 75, and what other lanes had is answered."""
    library = Path(__file__).resolve().parents[1] / "lib"
    with tempfile.TemporaryDirectory(prefix="es") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(f"{folder}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")
        monkeypatch.syspath_prepend(str(library))
        monkeypatch.setenv("PYTHONPATH", ":".join([str(library), *sys.path]))
        Path(f"{folder}/edge.toml").write_text(SERVED.format(folder=folder), encoding="utf-8")
        with open(f"{folder}/log", "w+", encoding="utf-8") as log:
            server = subprocess.Popen(command(f"serve {folder}/edge.toml"), stderr=log)
            try:
                wait_until(lambda: "ready on" in Path(log.name).read_text(encoding="utf-8") or server.poll(), 90)
                with Client(f"ipc://{folder}/bus") as client:
                    client.infer("table", {"x": np.array([3])})
                    nap = client.submit("nap", {"x": np.zeros(1)})
                    asked = [client.submit("table", {"x": np.array([index])}) for index in (10**6, 1, 2)]
                    ends = [future.exception(30) for future in asked]
                    assert all(isinstance(end, (RequestError, type(None))) for end in ends) and ends[0], ends
                    nap.result(30)
                    assert server.wait(60) == 75, Path(log.name).read_text(encoding="utf-8")
            finally:
                server.kill()
                server.wait(10)
