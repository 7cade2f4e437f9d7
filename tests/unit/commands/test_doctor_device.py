"""The doctor on the constructed boards: each item of its list, found and mended; GPU libraries that are broken."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from dataclasses import replace
from typing import Dict, List

import pytest
from board_trees import AGX_ORIN, AGX_XAVIER, BARE, DESKTOP, ORIN_NANO, ORIN_NX, THOR, TREES, plant
from tegrastats_lines import CASES

from edgeserve.cli import main
from edgeserve.commands import doctor
from edgeserve.commands.doctor import access, engines, interpreter, probes, recording, system, telemetry
from edgeserve.commands.doctor.finding import GOOD, NOTE, WRONG, Finding
from edgeserve.device.boards import KINDS, Machine, detect_board

CPU, ORIN, CARD = (Machine(KINDS[slug]) for slug in ("cpu", "agx-orin", "desktop-gpu"))


def by_subject(found: List[Finding]) -> Dict[str, Finding]:
    for finding in found:
        assert bool(finding.mend) == (finding.status != GOOD), finding
        assert finding.text
    return {finding.subject: finding for finding in found}


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_every_board_is_examined_and_every_finding_has_a_mend(tree, tmp_path):
    found = by_subject(doctor.examine(root=tree.plant(tmp_path / "root"), quick=True))
    assert {"board", "processor", "memory", "python", "telemetry"} <= set(found)


def test_a_hot_and_throttled_orin(tmp_path):
    root = AGX_ORIN.plant(tmp_path / "root")
    found = by_subject(doctor.examine(root=root, quick=True))
    assert found["board"].text.startswith("NVIDIA Jetson AGX Orin Developer Kit, L4T 36.4.3 (JetPack 6.2)")
    assert found["power mode"].text == "MAXN"
    assert (found["heat"].status, found["heat"].text) == (
        WRONG,
        "tj 98.5 C (soft limit 92 C, hard limit 97 C): clocks are lowered, or will be",
    )
    assert found["power"].text.endswith("power_alarm:VDD_GPU_SOC")
    assert found["gpu clock"].status == NOTE
    assert "jetson_clocks" in found["gpu clock"].mend
    assert "GPU load 100% (gpu devfreq)" in found["telemetry"].text
    assert "33.50 W (power rails)" in found["telemetry"].text
    assert found["dla"].text.startswith("2 DLA cores")


def test_an_orin_whose_surface_alone_is_hot_has_nothing_wrong(tmp_path):
    root = AGX_ORIN.plant(tmp_path / "root")
    warm = {f"sys/class/thermal/thermal_zone{zone}/temp": "71000\n" for zone in (0, 1, 4)}
    plant(tmp_path / "root", {**warm, "dev/nvmap": "", "dev/nvhost-gpu": ""})
    found = doctor.examine(root=root, quick=True)
    assert [finding for finding in found if finding.status == WRONG] == []
    assert by_subject(found)["heat"].text == "tj 71.0 C (soft limit 92 C, hard limit 97 C)"


def test_a_cool_board_with_locked_clocks(tmp_path):
    found = by_subject(doctor.examine(root=ORIN_NX.plant(tmp_path / "root"), quick=True))
    assert [found[subject].status for subject in ("heat", "gpu clock", "telemetry")] == [GOOD, GOOD, GOOD]
    assert found["power mode"].mend == "sudo nvpmodel -m 0"


def test_thor_lacks_the_load_of_its_gpu(tmp_path):
    root = THOR.plant(tmp_path / "root")
    finding = by_subject(telemetry.check_telemetry(root, detect_board(root)))["telemetry"]
    assert (finding.status, finding.text.split(";")[0]) == (NOTE, "nothing tells GPU load")
    assert "nvidia-ml-py" in finding.mend and "groups" not in finding.mend


def test_a_container_that_was_not_given_the_gpu(tmp_path):
    found = by_subject(doctor.examine(root=ORIN_NANO.plant(tmp_path / "root"), quick=True))
    assert found["container"].status == WRONG
    assert "--runtime nvidia" in found["container"].mend
    plant(tmp_path / "root", {"dev/nvmap": ""})
    assert system.check_container(str(tmp_path / "root"), detect_board(str(tmp_path / "root")))[0].status == GOOD


def test_what_is_wrong_with_a_gpu_is_no_hindrance_for_a_configuration_without_one(tmp_path):
    root = ORIN_NANO.plant(tmp_path / "root")
    config = tmp_path / "edge.toml"
    config.write_text('[model.m]\nengine = "synthetic"\n[app.a]\nmodel = "m"\n')
    assert by_subject(doctor.examine(str(config), root, quick=True))["container"].status == NOTE
    config.write_text('[device.gpu]\nkind = "cuda"\n' + config.read_text())
    assert by_subject(doctor.examine(str(config), root, quick=True))["container"].status == WRONG


def test_over_current_is_what_is_added_while_one_looks(tmp_path, monkeypatch):
    root = AGX_ORIN.plant(tmp_path / "root")
    assert telemetry.check_over_current(root, 0.0)[0].text == "none now (since start: oc3 27390)"
    counter = tmp_path / "root/sys/class/hwmon/hwmon3/oc3_event_cnt"
    monkeypatch.setattr(telemetry.time, "sleep", lambda wait_s: counter.write_text("27395\n"))
    finding = telemetry.check_over_current(root)[0]
    assert (finding.status, finding.text.split(":")[0], "oc3 5 times" in finding.text) == (NOTE, "in 2 s", True)
    assert telemetry.check_over_current(BARE.plant(tmp_path / "bare")) == []


def tegrastats_program(tmp_path, line):
    path = tmp_path / "tegrastats"
    path.write_text(f"#!{sys.executable}\nimport time\nprint({line!r}, flush=True)\ntime.sleep(600)\n")
    path.chmod(0o755)
    return str(path)


def test_a_line_of_tegrastats_and_what_is_left_over(tmp_path):
    good = telemetry.check_tegrastats(ORIN, tegrastats_program(tmp_path, CASES[0].line))
    assert by_subject(good)["tegrastats"].status == GOOD
    odd = telemetry.check_tegrastats(ORIN, tegrastats_program(tmp_path, CASES[0].line + " NEW[3]~5 X"))
    assert by_subject(odd)["tegrastats"].text.endswith("not understood: NEW[3]~5 X")
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    assert by_subject(telemetry.check_tegrastats(ORIN, str(silent)))["tegrastats"].status == NOTE
    assert by_subject(telemetry.check_tegrastats(ORIN, ""))["tegrastats"].status == NOTE
    assert telemetry.check_tegrastats(CPU, "") == []


def test_device_nodes_that_this_user_may_not_use(tmp_path, monkeypatch):
    root = plant(tmp_path / "root", {"dev/nvmap": "", "dev/nvhost-gpu": ""})
    assert by_subject(access.check_nodes(root, ORIN))["device nodes"].status == GOOD
    monkeypatch.setattr(access.os, "access", lambda path, mode: not path.endswith("nvhost-gpu"))
    finding = by_subject(access.check_nodes(root, ORIN))["device nodes"]
    assert finding.status == WRONG
    assert finding.mend.startswith("sudo usermod -aG ")
    assert by_subject(access.check_nodes(plant(tmp_path / "none", {}), ORIN))["device nodes"].status == WRONG
    assert access.check_nodes(root, CPU) == []


def test_the_cache_must_be_writable_roomy_and_lasting(tmp_path, monkeypatch):
    mounts = f"/dev/nvme0 / ext4 rw 0 0\ntmpfs {tmp_path}/ram tmpfs rw 0 0\n"
    root = plant(tmp_path / "root", {"proc/mounts": mounts})
    (tmp_path / "ram").mkdir()
    monkeypatch.setattr(access, "CACHE_BYTES_LITTLE", 0)
    assert by_subject(access.check_cache(str(tmp_path / "new" / "cache"), root))["cache"].status == GOOD
    lost = by_subject(access.check_cache(str(tmp_path / "ram"), root))["cache"]
    assert (lost.status, "gone after a restart" in lost.text) == (NOTE, True)
    monkeypatch.setattr(access, "CACHE_BYTES_LITTLE", 1 << 60)
    assert "little room" in by_subject(access.check_cache(str(tmp_path), root))["cache"].text
    monkeypatch.setattr(access.os, "access", lambda path, mode: False)
    assert by_subject(access.check_cache(str(tmp_path), root))["cache"].status == WRONG
    assert access.file_system("/a/b", "x / ext4 rw\ny /a nfs rw\nz /ab tmpfs rw\n") == "nfs"


def test_locked_memory_is_looked_at_beside_a_gpu(monkeypatch):
    monkeypatch.setattr(access.resource, "getrlimit", lambda which: (8 << 20, 8 << 20))
    assert by_subject(access.check_locked_memory(ORIN))["locked memory"].status == NOTE
    assert access.check_locked_memory(CPU) == []
    monkeypatch.setattr(access.resource, "getrlimit", lambda which: (access.resource.RLIM_INFINITY,) * 2)
    assert access.check_locked_memory(ORIN) == []


def test_the_limit_of_open_files_bounds_the_clients(monkeypatch):
    monkeypatch.setattr(access.resource, "getrlimit", lambda which: (1024, 1024))
    assert by_subject(access.check_open_files())["open files"].status == GOOD
    monkeypatch.setattr(access.resource, "getrlimit", lambda which: (300, 300))
    finding = by_subject(access.check_open_files())["open files"]
    assert (finding.status, "room for 28 clients" in finding.text) == (WRONG, True)
    more = int(finding.mend.split()[2].rstrip(","))
    monkeypatch.setattr(access.resource, "getrlimit", lambda which: (300, more))
    assert by_subject(access.check_open_files())["open files"].status == GOOD, "what it advises is enough"


def test_memory_in_pieces_swap_in_memory_and_a_desktop(tmp_path):
    files = {
        **AGX_XAVIER.files,
        "proc/buddyinfo": "Node 0, zone Normal 9 9 9 0 0 0 0 0 0 0 0\n",
        "proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 1 0 5\n",
    }
    root = plant(tmp_path / "root", files)
    assert "will fail" in by_subject(system.check_memory(root))["memory"].text
    (tmp_path / "root/etc/systemd/system").mkdir(parents=True)
    os.symlink("/lib/systemd/system/graphical.target", tmp_path / "root/etc/systemd/system/default.target")
    assert set(by_subject(system.check_swap(root, ORIN))) == {"swap", "desktop"}
    assert by_subject(system.check_swap(root, CPU))["swap"].status == GOOD


def test_a_date_that_is_long_past():
    assert by_subject(system.check_wall_clock(1e6))["wall clock"].status == NOTE
    assert system.check_wall_clock(1.8e9) == []


@pytest.mark.parametrize(
    ("l4t", "slug", "versions", "words"),
    [
        ("36.4.7", "orin-nx", {}, "NvMapMemAllocInternalTagged"),
        ("36.4.3", "agx-orin", {"tensorrt": "11.4.1"}, "TensorRT 11.4.1 supports no JetPack before 7.2.2"),
        ("36.4.3", "agx-orin", {"numpy": "2.1.0"}, "numpy 2.1.0"),
        ("36.4.3", "agx-orin", {"torch": "2.5.0+cu124"}, "compute capability 8.7"),
    ],
)
def test_known_trouble(l4t, slug, versions, words):
    board = Machine(KINDS[slug], l4t=l4t, jetpack="6")
    (finding,) = interpreter.check_known_bad(board, versions)
    by_subject([finding])
    assert words in finding.text
    assert interpreter.check_known_bad(CPU, versions) == []


def test_no_trouble_is_known_of_jetpacks_own():
    board = Machine(KINDS["agx-orin"], l4t="36.4.3", jetpack="6.2")
    own = {"tensorrt": "10.3.0", "numpy": "1.26.4", "torch": "2.5.0a0+nv24.08"}
    assert interpreter.check_known_bad(board, own) == []


def test_jetpacks_packages_are_seen_by_this_python(tmp_path):
    board = Machine(KINDS["agx-orin"], l4t="36.4.3", jetpack="6.2")
    root = tmp_path / "root"
    root.mkdir()
    check = interpreter.check_system_packages
    assert "python3-libnvinfer" in by_subject(check(board, (3, 10), [], str(root)))["tensorrt files"].mend
    place = root / "usr/lib/python3/dist-packages"
    (place / "tensorrt").mkdir(parents=True)
    assert "--system-site-packages" in by_subject(check(board, (3, 10), ["/x"], str(root)))["tensorrt files"].mend
    assert by_subject(check(board, (3, 10), ["/x", str(place)], str(root)))["tensorrt files"].status == GOOD
    assert check(board, (3, 12), [], str(root)) == check(CPU, (3, 10), [], str(root)) == []


WHOLE = {"driver": 12060, "devices": 1, "name": "Orin", "major": 8, "minor": 7, "integrated": 1, "round_trip": True}


@pytest.mark.parametrize(
    ("found", "board", "status"),
    [
        (WHOLE, ORIN, GOOD),
        ({**WHOLE, "round_trip": False}, ORIN, WRONG),
        ({"absent": "no such file"}, ORIN, WRONG),
        ({"absent": "no such file"}, CPU, None),
        ({"crashed": "no answer within 60 s"}, CARD, WRONG),
        ({"failed": "cuInit", "status": 999}, CARD, WRONG),
        ({"failed": "cuInit", "status": 100}, CPU, NOTE),
        ({"driver": 12060, "devices": 0}, CARD, NOTE),
    ],
)
def test_what_the_driver_says(found, board, status):
    judged = probes.judge_cuda(found, board)
    assert (judged[0].status if judged else None) == status
    by_subject(judged)
    if found is WHOLE:
        assert judged[0].text == "Orin, compute capability 8.7, driver for CUDA 12.6, integrated"


TORCH = {"version": "2.5", "cuda": "12.6", "available": True, "capability": "8.7", "architectures": ["sm_80", "sm_90"]}


@pytest.mark.parametrize(
    ("found", "board", "status"),
    [
        ({**TORCH, "kernel": True}, ORIN, GOOD),
        ({**TORCH, "error": "no kernel image is available"}, ORIN, WRONG),
        ({**TORCH, "available": False}, ORIN, NOTE),
        ({**TORCH, "available": False}, CPU, GOOD),
        ({"absent": "x"}, ORIN, None),
        ({"crashed": "ended with status -11"}, ORIN, WRONG),
    ],
)
def test_what_torch_says(found, board, status):
    judged = probes.judge_torch(found, board)
    assert (judged[0].status if judged else None) == status
    by_subject(judged)


ORT = {"version": "1.31.1", "offered": True}


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        ({**ORT, "used": True, "kernel": True}, GOOD, "runs on the GPU"),
        ({**ORT, "used": True, "error": "no kernel image is available"}, WRONG, "no kernel image is available"),
        ({**ORT, "used": False, "kernel": True}, WRONG, "it went to the CPU instead"),
        ({**ORT, "used": True, "kernel": False}, WRONG, "wrong result"),
        ({"crashed": "ended with status -6"}, WRONG, "fails on the GPU"),
        ({**ORT, "offered": False}, None, ""),
        ({"absent": "x"}, None, ""),
    ],
)
def test_what_onnxruntime_says_of_a_kernel(found, status, words):
    judged = probes.judge_onnxruntime(found, ORIN)
    assert (judged[0].status if judged else None) == status
    assert all(words in finding.text for finding in judged)
    assert all("from that index alone" in finding.mend for finding in judged if status == WRONG)


def test_a_probe_that_crashes_or_hangs_is_a_finding_and_no_crash():
    assert probes.probe("print('noise\\n{\"a\": 1}')") == {"a": 1}
    assert probes.probe("import os; os.abort()")["crashed"].startswith("ended with status -6")
    assert "no answer within" in probes.probe("import time; time.sleep(600)", 0.5)["crashed"]
    assert "ImportError" in probes.probe("raise ImportError('libfoo')")["crashed"]


def test_the_probes_are_programs_that_end_with_an_object():
    for program in (probes.CUDA, probes.TORCH, probes.ONNXRUNTIME):
        compile(program, "probe", "exec")
    found = probes.probe(probes.CUDA)
    assert set(found) & {"absent", "failed", "devices"}, found
    on_the_cpu = probes.ONNXRUNTIME.replace("CUDAExecutionProvider", "CPUExecutionProvider")
    found = probes.probe(on_the_cpu)
    assert "absent" in found or (found["used"], found["kernel"]) == (True, True), found


def test_engines_tell_of_themselves_and_a_broken_one_is_a_finding(tmp_path, monkeypatch):
    (tmp_path / "kind_engine.py").write_text("def findings(config):\n    return [('kind', 'good', str(config), '')]\n")
    (tmp_path / "broken_engine").mkdir()
    (tmp_path / "broken_engine" / "diagnose.py").write_text("def findings(config):\n    raise OSError('libx.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = by_subject(engines.check_engines(None, ["kind_engine", "broken_engine.diagnose", "no_engine.diagnose"]))
    assert found["kind"] == Finding("kind", GOOD, "None")
    assert (found["broken_engine"].status, "libx.so" in found["broken_engine"].text) == (WRONG, True)


def test_a_desktop_without_its_library_is_told_of_it(tmp_path, monkeypatch):
    from edgeserve.device import nvml

    monkeypatch.setattr(nvml, "load_library", lambda: (None, "nvidia-ml-py is not installed (pip ...)"))
    root = DESKTOP.plant(tmp_path / "root")
    finding = by_subject(telemetry.check_telemetry(root, replace(CARD)))["telemetry"]
    assert finding.status == NOTE
    assert finding.text.startswith("nothing tells GPU load, GPU clock, power")


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_a_recorded_machine_says_elsewhere_what_it_said_itself(tree, tmp_path, capsys):
    root = tree.plant(tmp_path / "root")
    plant(tmp_path / "root", {"etc/shadow": "secret", "proc/1/environ": "secret"})
    archive = tmp_path / "board.tar.gz"
    assert main(["doctor", "--collect", str(archive), "--root", root]) == 0
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        assert not any(name.startswith("/") or "shadow" in name or "environ" in name for name in names)
        tar.extractall(tmp_path / "copy", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        assert sum(entry.size for entry in tar) < 1 << 20
        printed = capsys.readouterr().out.splitlines()
        assert {entry.name for entry in tar if entry.isfile()} <= set(printed)
    said = doctor.examine_tree(root)
    assert doctor.examine_tree(str(tmp_path / "copy")) == said
    assert detect_board(str(tmp_path / "copy")) == detect_board(root)
    capsys.readouterr()
    assert main(["doctor", "--root", str(tmp_path / "copy"), "--json"]) in (0, 1)
    assert [item["text"] for item in json.loads(capsys.readouterr().out)] == [finding.text for finding in said]


def test_a_recording_is_bounded_for_any_content_of_files(tmp_path):
    root = tmp_path / "root"
    plant(root, {f"sys/class/thermal/thermal_zone{zone}/type": "x" * (1 << 20) for zone in range(12)})
    taken = recording.collect(doctor.examine_tree, str(tmp_path / "board.tar.gz"), str(root))
    assert 0 < sum(taken.values()) <= 8 << 20


def test_collecting_writes_over_nothing_and_a_root_must_be_there(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main(["doctor", "--collect", str(tmp_path / "mine")]) == 2
    assert main(["doctor", "--root", str(tmp_path / "none")]) == 2
    assert main(["doctor", "edge.toml", "--root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "File exists" in said and "no such directory" in said and "leave the configuration out" in said


@pytest.mark.parametrize(
    ("found", "board", "status", "says"),
    [
        ({"version": "0.3.36", "gpu": True}, ORIN, GOOD, "built for a GPU"),
        ({"version": "0.3.36", "gpu": False}, ORIN, NOTE, "setup.sh --language"),
        ({"version": "0.3.36", "gpu": False}, CARD, NOTE, "GGML_CUDA=on"),
        ({"version": "0.3.36", "gpu": False}, CPU, GOOD, "on the CPU"),
        ({"crashed": "ended with status -6"}, ORIN, WRONG, "ended with status -6"),
    ],
)
def test_llama_cpp_says_whether_it_was_built_for_the_gpu(found, board, status, says):
    (finding,) = probes.judge_llama(found, board)
    assert finding.status == status and says in f"{finding.text} {finding.mend}"
    assert probes.judge_llama({"absent": "no module"}, board) == []


def test_llama_cpp_is_asked_in_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "llama_cpp.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "crashed" in probes.probe(probes.LLAMA)
