"""The memory and the cores that control groups leave: both versions, groups in groups, containers, and who asks."""

from __future__ import annotations

import pytest
from board_trees import THOR, plant

from edgeserve.commands.doctor.system import check_memory, usable_cores
from edgeserve.config.loading import parse_config
from edgeserve.control_groups import ControlGroups
from edgeserve.device.memory import MemorySource
from edgeserve.live import machine_fit

GIB = 1 << 30
SERVICE = "system.slice/edgeserve.service"
UNIFIED, OLD = "sys/fs/cgroup", "sys/fs/cgroup/memory"
NONE_OF_OLD = 9223372036854771712


def group(folder, bound, used, cache=0):
    """The memory files of one group: a number of bytes or "max", what is used, and of it the cache not used lately."""
    if not folder.startswith(OLD):
        values = {"max": bound, "current": used, "stat": f"anon 1\ninactive_file {cache}\nactive_file 5\n"}
    else:
        stat = f"inactive_file 1\nhierarchical_memory_limit 7\ntotal_inactive_file {cache}\ntotal_active_file 5\n"
        bound = NONE_OF_OLD if bound == "max" else bound
        values = {"limit_in_bytes": bound, "usage_in_bytes": used, "stat": stat}
    return {f"{folder}/memory.{name}": f"{value}\n" for name, value in values.items()}


def of_version(top):
    """``/proc/self/cgroup`` of a service, or in version 1 beside other controllers, as systemd leaves them."""
    if top == UNIFIED:
        return {"proc/self/cgroup": f"0::/{SERVICE}\n"}
    return {"proc/self/cgroup": f"9:cpu,cpuacct:/\n4:memory:/{SERVICE}\n1:name=systemd:/x\n0::/{SERVICE}\n"}


CASES = {
    "a service's own": ([(SERVICE, 4 * GIB, 3 * GIB, GIB // 2)], 4, 1.5),
    "nothing is bounded": ([("", "max", GIB), (SERVICE, "max", GIB)], None, None),
    "the group around it is tighter": ([("system.slice", 2 * GIB, GIB), (SERVICE, 4 * GIB, GIB)], 2, 1),
    "the group around it is fuller": ([("system.slice", 5 * GIB, 5 * GIB), (SERVICE, 4 * GIB, GIB)], 4, 0),
    "only the group around it": ([("system.slice", 2 * GIB, GIB), (SERVICE, "max", GIB)], 2, 1),
    "more is used than the bound": ([(SERVICE, GIB, 2 * GIB)], 1, 0),
    "a container sees its group at the top": ([("", 3 * GIB, GIB)], 3, 2),
    "no number": ([(SERVICE, "", ""), ("", "x" * 40, "-1")], None, None),
}


@pytest.mark.parametrize("top", [UNIFIED, OLD])
@pytest.mark.parametrize(("groups", "bound", "free"), CASES.values(), ids=CASES)
def test_the_tightest_group_counts_in_both_versions(tmp_path, top, groups, bound, free):
    files = of_version(top)
    for folder, *values in groups:
        files.update(group(f"{top}/{folder}" if folder else top, *values))
    root = plant(tmp_path / "root", {**THOR.files, **files})  # 90,000 MiB are available
    groups = ControlGroups(root)
    assert groups.memory_bound_bytes() == (None if bound is None else bound * GIB)
    assert groups.memory_free_bytes() == (None if free is None else free * GIB)
    left = MemorySource(root).read(0).memory_available_bytes
    assert left == (90_000 << 20 if free is None else free * GIB)
    (finding,) = check_memory(root)
    assert ("control group" in finding.text) == (free is not None)


@pytest.mark.parametrize("path", ["/../../other.slice", "/gone", "", "/", "//"])
def test_a_group_that_cannot_be_seen_counts_as_its_nearest(tmp_path, path):
    files = {"proc/self/cgroup": f"0::{path}\n", **group(UNIFIED, GIB, 0), **group("sys/other.slice", 1, 0)}
    assert ControlGroups(plant(tmp_path / "root", files)).memory_bound_bytes() == GIB


def test_a_machine_without_groups_has_no_bound(tmp_path):
    groups = ControlGroups(str(tmp_path))
    assert (groups.memory_bound_bytes(), groups.memory_free_bytes(), groups.cores()) == (None, None, None)


def test_a_bound_that_changes_is_seen(tmp_path):
    root = plant(tmp_path / "root", {**THOR.files, **of_version(UNIFIED), **group(f"{UNIFIED}/{SERVICE}", "max", GIB)})
    source = MemorySource(root)
    assert source.read(0).memory_available_bytes == 90_000 << 20
    (tmp_path / "root" / UNIFIED / SERVICE / "memory.max").write_text(f"{3 * GIB}\n")
    assert source.read(0).memory_available_bytes == 2 * GIB
    source.close()


@pytest.mark.parametrize(
    "files",
    [
        {f"{UNIFIED}/{SERVICE}/cpu.max": "100000 100000\n", **of_version(UNIFIED)},
        {f"{UNIFIED}/system.slice/cpu.max": "50000 100000\n", f"{UNIFIED}/{SERVICE}/cpu.max": "max 100000\n"},
        {
            f"{UNIFIED}/cpu/cpu.cfs_quota_us": "100000\n",
            f"{UNIFIED}/cpu/cpu.cfs_period_us": "100000\n",
            **of_version(OLD),
        },
    ],
)
def test_the_quota_of_cores_is_the_tightest_too(tmp_path, files):
    (tmp_path / "root" / UNIFIED / SERVICE).mkdir(parents=True)
    assert usable_cores(plant(tmp_path / "root", {**of_version(UNIFIED), **files})) == 1


def test_a_model_larger_than_its_group_is_reported_before_it_is_loaded(monkeypatch):
    monkeypatch.setattr(ControlGroups, "memory_bound_bytes", lambda groups: 64 << 20)
    model = {"engine": "synthetic", "expected": {"1": "1ms"}, "memory": "100MB"}
    config = parse_config({"model": {"m": model}, "app": {"a": {"model": "m", "slo": "1s"}}})
    (problem,) = machine_fit.check_memory(config)
    assert "does not fit into the 64MiB that the control group" in problem.text
