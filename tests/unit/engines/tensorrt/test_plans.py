"""The cache of plans: what belongs to a plan, and what becomes of one that does not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from edgeserve.engines.cuda.device_info import DeviceInfo
from edgeserve.engines.tensorrt.build_errors import BuildFailed
from edgeserve.engines.tensorrt.plans import PlanCache, built_elsewhere, built_on, identity_of, l4t_release, power_mode
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.errors import EngineError

REQUEST = BuildRequest("x.onnx", [1, 2], {}, {}, [], 0, {}, {}, "model", 1 << 28, 0, 3, -1, [], 1)
ORIN = DeviceInfo(0, "Orin", (8, 7), True, True, 16, 2, 32 << 30, (12, 6))


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def root(tmp_path):
    """A board: its power modes and release, and a model."""
    write(str(tmp_path / "var/lib/nvpmodel/status"), "pmode:0002 fmode:quiet")
    write(str(tmp_path / "etc/nvpmodel.conf"), "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=2 NAME=MODE_30W >\n")
    write(str(tmp_path / "etc/nv_tegra_release"), "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic")
    write(str(tmp_path / "m.onnx"), "a model")
    return tmp_path


def identity(root, version="10.3.0", device=ORIN, request=REQUEST, library="tensorrt"):
    return identity_of(library, version, device, str(root / "m.onnx"), request, str(root))


def builder(text="plan", calls=None, **about):
    def build(path):
        if calls is not None:
            calls.append(path)
        write(path, text)
        return {"build_s": 12.0, "model_bytes": 100, "profiles_count": 2, **about}

    return build


def refuse(path):
    raise AssertionError("nothing had to be built")


def test_the_board_is_read_by_name(root):
    assert (power_mode(str(root)), l4t_release(str(root))) == ("MODE_30W", "36.4.3")
    write(str(root / "var/lib/nvpmodel/status"), "pmode:0007")
    assert power_mode(str(root)) == "number 7"
    assert (power_mode("/nowhere"), l4t_release("/nowhere")) == ("", "")


def test_a_plan_belongs_to_everything_that_it_was_built_from(root):
    same, other = identity(root), identity(root, request=REQUEST._replace(file="/elsewhere/x.onnx"))
    assert same.digest() == other.digest()
    others = [
        identity(root, version="10.3.1"),
        identity(root, device=ORIN._replace(compute_capability=(7, 2))),
        identity(root, library="tensorrt_rtx"),
        identity(root, device=ORIN._replace(multiprocessors=8)),
        identity(root, device=None),
        identity(root, request=REQUEST._replace(sizes=[1, 4])),
        identity(root, request=REQUEST._replace(precision="fp16")),
        identity(root, request=REQUEST._replace(ranges={"x": [[1], [2], [3]]})),
    ]
    write(str(root / "m.onnx"), "another")
    others.append(identity(root))
    write(str(root / "etc/nv_tegra_release"), "# R36 (release), REVISION: 5.0")
    others.append(identity(root))
    assert len({item.digest() for item in (same, *others)}) == 1 + len(others)


def test_a_power_mode_a_driver_and_a_name_make_no_other_plan_but_are_told(root):
    facts = built_on(ORIN, str(root))
    before = identity(root).digest()
    write(str(root / "var/lib/nvpmodel/status"), "pmode:0000")
    updated = ORIN._replace(name="Orin Super", cuda=(12, 9))
    assert identity(root, device=updated).digest() == before
    told = built_elsewhere({"built_on": json.loads(json.dumps(facts))}, built_on(updated, str(root)))
    assert "power mode MAXN (built with MODE_30W)" in told and "GPU Orin Super" in told and "CUDA driver 12.9" in told
    assert built_elsewhere({"built_on": facts}, facts) == "" == built_elsewhere({}, facts)


@pytest.mark.parametrize("damage", ["truncated", "changed", "no metadata", "bad metadata", "foreign", "other format"])
def test_a_plan_that_does_not_fit_is_built_again_and_never_run(root, damage, caplog):
    cache = PlanCache(str(root / "plans"))
    plan = cache.obtain("m", identity(root), "model 'm'", builder("good plan"), 1)
    about = plan.path.replace(".plan", ".json")
    with open(about, encoding="utf-8") as file:
        metadata = json.load(file)
    if damage == "truncated":
        write(plan.path, "good")
    elif damage == "changed":
        write(plan.path, "evil plan")
    elif damage == "no metadata":
        os.unlink(about)
    elif damage == "bad metadata":
        write(about, "{")
    elif damage == "foreign":  # a cache copied from another board under this one's name
        metadata["identity"]["device"]["multiprocessors"] = 1
        write(about, json.dumps(metadata))
    else:
        write(about, json.dumps({**metadata, "format": 99}))
    assert cache.find("m", identity(root)) is None
    assert "is not used: it" in caplog.text
    again = cache.obtain("m", identity(root), "model 'm'", builder("good plan"), 1)
    assert again.was_built
    assert cache.find("m", identity(root)) is not None


def test_a_build_that_fails_leaves_nothing_behind(root):
    cache = PlanCache(str(root / "plans"))

    def fail(path):
        write(path, "half")
        raise BuildFailed("no")

    with pytest.raises(BuildFailed):
        cache.obtain("m", identity(root), "model 'm'", fail, 1)
    assert [name for name in os.listdir(root / "plans") if not name.endswith(".lock")] == []


HOLD = """import fcntl, sys
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_another_process_that_builds_is_waited_for_but_not_for_ever(root):
    cache = PlanCache(str(root / "plans"))
    os.makedirs(root / "plans")
    path = cache.path("m", identity(root), "lock")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(BuildFailed, match="another process has been building this plan for 0 s; see which one"):
                cache.obtain("m", identity(root), "model 'm'", refuse, 1)
        finally:
            other.stdin.close()
    assert cache.obtain("m", identity(root), "model 'm'", builder(), 1).was_built


def test_a_plan_that_another_process_built_meanwhile_is_taken(root, monkeypatch):
    cache = PlanCache(str(root / "plans"))
    finds = [None]
    real = PlanCache.find

    def find(self, name, wanted):
        if finds:
            return finds.pop()  # before the lock: not there yet
        return real(self, name, wanted)

    PlanCache(str(root / "plans")).obtain("m", identity(root), "model 'm'", builder(), 1)
    monkeypatch.setattr(PlanCache, "find", find)
    assert not cache.obtain("m", identity(root), "model 'm'", refuse, 1).was_built


def test_a_directory_that_cannot_be_written_is_told(root):
    write(str(root / "file"), "")
    with pytest.raises(EngineError, match="plans cannot be kept in .*; set options.plans to a directory"):
        PlanCache(str(root / "file" / "plans")).obtain("m", identity(root), "model 'm'", refuse, 1)


def test_the_time_of_a_build_is_estimated_from_those_before(root):
    cache = PlanCache(str(root / "plans"))
    mine = identity(root)
    assert cache.estimate_s(mine, 100, 2) is None
    cache.obtain("m", mine, "model 'm'", builder(build_s=10.0), 1)
    assert cache.estimate_s(identity(root, version="10.4"), 100, 4) == 20.0  # the same model, twice the profiles
    write(str(root / "m.onnx"), "another model")
    assert cache.estimate_s(identity(root), 300, 2) == 30.0  # another model, three times as large
    assert cache.estimate_s(identity(root, device=ORIN._replace(multiprocessors=1)), 300, 2) is None


def test_timings_are_shared_by_models_and_by_nothing_else(root):
    cache = PlanCache(str(root / "plans"))
    facts = built_on(ORIN, str(root))
    mine = cache.timing_cache(identity(root), facts)
    assert mine == cache.timing_cache(identity(root, request=REQUEST._replace(sizes=[8])), facts)
    assert mine != cache.timing_cache(identity(root, version="10.4"), facts)
    write(str(root / "var/lib/nvpmodel/status"), "pmode:0000")
    assert mine != cache.timing_cache(identity(root), built_on(ORIN, str(root)))
