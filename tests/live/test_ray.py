"""A deployment on a local Ray cluster: two replicas, refusals that are tried elsewhere, a replica that is killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed; make test-ray")
pytest.importorskip("ray.serve", reason="Ray Serve is not installed; make test-ray")

import ray
from ray import serve

from edgeserve.errors import BadInput, DeadlineExpired, Rejected, RequestError, UnknownApp
from edgeserve.fronts.ray.calls import RayCall

LIB = str(Path(__file__).resolve().parents[1] / "lib")
ROOT = Path(__file__).resolve().parents[2]
WAIT_S_MAX = 90.0


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


METRICS = free_port()

# Gates hold one lane of a replica; what an app expects is made by its synthetic node, on another lane.
CONFIG = """
[policy.edf]
trials = false

[lane.cpu0]
hang = "200s"

[lane.cpu1]

[model.one]
engine = "python"
function = "ray_functions:who"
options.example = "ray_functions:example"
lanes = ["cpu0"]

[model.who]
engine = "python"
function = "ray_functions:who"
options.example = "ray_functions:example"
lanes = ["cpu0"]

[model.pid]
engine = "python"
function = "ray_functions:who"
options.example = "ray_functions:example"
lanes = ["cpu1"]

[model.pause]
engine = "synthetic"
expected = {{ 1 = "30ms" }}
lanes = ["cpu1"]

[model.other_pause]
engine = "synthetic"
expected = {{ 1 = "{other}" }}
lanes = ["cpu1"]

[model.lm]
engine = "synthetic"
expected = {{ 1 = "2ms" }}
lanes = ["cpu1"]
options.sequence = {{ slots = 4, context_tokens = 100000, bytes_per_token = 10 }}

[app.chat]
model = "lm"
slo = "200s"

[app.pid]
model = "pid"
slo = "200s"

[app.slow]
model = "pause"
slo = "200s"

[model.busy]
engine = "synthetic"
expected = {{ 1 = "2s" }}
lanes = ["cpu1"]

[app.busy]
model = "busy"
slo = "200s"

[app.who]
slo = "200s"
outputs = ["gate.pid"]

[[app.who.node]]
name = "gate"
model = "who"

[[app.who.node]]
name = "pause"
model = "pause"
after = ["gate"]

[app.one]
slo = "200s"
pending_max = 1
outputs = ["gate.pid"]

[[app.one.node]]
name = "gate"
model = "one"

[[app.one.node]]
name = "pause"
model = "other_pause"
after = ["gate"]
"""


def until(condition, what):
    """Wait for a condition; its value."""
    end_s = time.monotonic() + WAIT_S_MAX
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end_s, f"{what} did not happen within {WAIT_S_MAX:g} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster():
    """A client of two replicas, ``a`` and ``b``, on a cluster of this test's own."""
    place = tempfile.mkdtemp(prefix="es-ray-")  # a socket's path is bounded
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), LIB, *([before] if before else [])])
    for name, other in (("a", "1ms"), ("b", "300ms")):  # app one is quicker on a: it is asked first
        Path(place, f"{name}.toml").write_text(CONFIG.format(other=other), encoding="utf-8")
    from edgeserve.fronts.ray.deployment import RayDevice, run

    try:
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            _temp_dir=place,
            _metrics_export_port=METRICS,
        )
        yield run({name: RayDevice(f"{place}/{name}.toml") for name in "ab"})
    finally:
        serve.shutdown()
        ray.shutdown()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
        shutil.rmtree(place, ignore_errors=True)


def chat(steps):
    return {"inputs": {"steps": np.int64(steps)}, "hints": {"steps": float(steps)}, "timeout_ms": 30_000}


def test_an_answer_in_pieces_comes_as_it_is_made_and_ends_with_its_reader(cluster):
    with cluster.stream("chat", **chat(20)) as pieces:
        assert len(list(pieces)) > 2 and pieces.answer().outcome == "completed"
    with cluster.stream("chat", **chat(20_000)) as pieces:  # 40 s of work
        assert next(pieces)
        assert sum(open_at(cluster, name) for name in "ab") == 1
    until(lambda: not any(open_at(cluster, name) for name in "ab"), "the end of an unread answer")
    with pytest.raises(DeadlineExpired):
        list(cluster.stream("chat", slo_ms=-1, **chat(20)))


def both_up(cluster):
    return all(row["up"] for row in cluster.stats()["dispatcher"].values())


def open_at(cluster, replica):
    return cluster.stats()["replicas"][replica]["open"]


def refusal(cluster, app, slo_ms):
    """The error of a request, unless the way took all of its time."""
    with pytest.raises((Rejected, DeadlineExpired)) as refused:
        cluster.infer(app, {}, slo_ms=slo_ms)
    return refused.value if isinstance(refused.value, Rejected) else None


@pytest.mark.timeout(300)
def test_requests_are_answered_and_errors_are_typed(cluster):
    until(lambda: both_up(cluster), "both replicas answering")
    answer = cluster.infer("who", {})
    assert answer["pid"] != os.getpid() and not answer.late
    assert sum(answer.breakdown_ms.values()) == pytest.approx(answer.total_ms)
    with pytest.raises(UnknownApp, match="nobody"):
        cluster.infer("nobody", {})
    with pytest.raises(BadInput, match="royal"):
        cluster.infer("who", {}, priority_class="royal")


@pytest.mark.timeout(300)
def test_a_refusal_carries_its_numbers_through(cluster):
    until(lambda: both_up(cluster), "both replicas answering")
    with pytest.raises(RequestError) as refused:
        cluster.infer("one", {}, slo_ms=0.5)  # the way alone takes longer
    assert refused.value.code == "deadline_expired"
    late = until(lambda: refusal(cluster, "busy", 1500), "a refusal that was not for the time of the way")
    assert late.reason == "cannot_make_deadline" and late.slo_ms_min > 1500 and late.lane == "cpu1"
    assert cluster.infer("slow", {}, slo_ms=100_000).outcome == "completed"


@pytest.mark.timeout(300)
def test_a_refused_request_is_tried_once_on_the_replica_that_can(cluster, tmp_path):
    until(lambda: both_up(cluster), "both replicas answering")
    gate = tmp_path / "gate"
    beside = serve.get_deployment_handle("a", "edgeserve")
    held = beside.infer.remote(RayCall("one", {"gate": str(gate)}))  # the dispatcher does not know of it
    try:
        until(lambda: open_at(cluster, "a") == 1, "a full replica")
        reply = cluster.reply(RayCall("one", {}))
        assert reply.tried == ("a", "b") and reply.answer is not None
        beside_b = serve.get_deployment_handle("b", "edgeserve")
        other = beside_b.infer.remote(RayCall("one", {"gate": str(gate)}))
        until(lambda: open_at(cluster, "b") == 1, "both full")
        reply = cluster.reply(RayCall("one", {}))
        assert reply.tried == ("a", "b") and reply.error.reason == "queue_full"
    finally:
        gate.touch()
    assert held.result(timeout_s=WAIT_S_MAX).answer["pid"] != other.result(timeout_s=WAIT_S_MAX).answer["pid"]


@pytest.mark.timeout(300)
def test_a_killed_replica_loses_no_request_and_comes_back(cluster, tmp_path):
    until(lambda: both_up(cluster), "both replicas answering")
    gate = tmp_path / "gate"
    calls = [cluster._handle.infer.remote(RayCall("who", {"gate": str(gate)})) for _ in range(40)]
    until(lambda: min(open_at(cluster, name) for name in "ab") > 5, "requests at both replicas")
    victim, returns = cluster_pid("a"), cluster.stats()["dispatcher"]["a"]["returns"]
    os.kill(victim, signal.SIGKILL)
    until(
        lambda: not cluster.stats()["dispatcher"]["a"]["up"] or cluster.stats()["dispatcher"]["a"]["returns"] > returns,
        "the loss being noticed",
    )
    gate.touch()
    replies = [call.result(timeout_s=WAIT_S_MAX) for call in calls]
    assert [str(reply.error) for reply in replies if reply.error is not None] == []
    assert victim not in {reply.answer["pid"] for reply in replies}
    assert sum(reply.tried == ("a", "b") for reply in replies) > 5, "what it had was tried on the other"
    until(lambda: cluster.stats()["dispatcher"]["a"]["returns"] > returns, "the replica coming back")
    assert cluster_pid("a") != victim


def cluster_pid(replica):
    """The process of a replica."""
    handle = serve.get_deployment_handle(replica, "edgeserve")
    return handle.infer.remote(RayCall("pid", {})).result(timeout_s=WAIT_S_MAX).answer["pid"]


@pytest.mark.timeout(300)
def test_each_replica_has_its_own_statistics_and_stories(cluster):
    until(lambda: both_up(cluster), "both replicas answering")
    answer = cluster.infer("who", {})
    stats = cluster.stats()
    assert sorted(stats["replicas"]) == ["a", "b"]
    assert sum(row["apps"]["who"]["accepted"] for row in stats["replicas"].values()) >= 1
    stories = [cluster.story(name, answer.id) for name in "ab"]
    assert any("app who" in line for lines in stories for line in lines[:1])


@pytest.mark.timeout(300)
def test_each_replica_has_its_own_metrics(cluster):
    until(lambda: both_up(cluster), "both replicas answering")
    for name in "ab":
        serve.get_deployment_handle(name, "edgeserve").infer.remote(RayCall("pid", {})).result(timeout_s=WAIT_S_MAX)

    def told():
        where = f"http://127.0.0.1:{METRICS}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(where, timeout=5) as page:
            return {
                re.search(r'deployment="(\w+)"', line)[1]
                for line in page.read().decode().splitlines()
                if line.startswith("ray_edgeserve_requests_total{") and 'app="pid"' in line
            }
        return set()

    until(lambda: told() == {"a", "b"}, "metrics of both replicas")


@pytest.mark.timeout(300)
def test_the_example_runs(cluster):
    """With the cluster of this module: one machine, one cluster."""
    command = [sys.executable, str(ROOT / "examples" / "ray" / "two.py"), "--requests", "40", "--address", "auto"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none lost" in done.stdout
