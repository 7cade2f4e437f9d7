"""The dynamic example with its real models: a small build of the network with early exits, and the recogniser. Skips,
saying why, when digits and recogniser are neither cached nor to be fetched."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest
from linked_files import own_cache

from edgeserve.client import Client
from edgeserve.commands import assets
from edgeserve.config.loading import load_config
from edgeserve.config.schema import Config
from edgeserve.engines.functions import import_function
from edgeserve.runtime import Runtime

NEEDS = "the example draws text with opencv, exports with onnx: pip install -r examples/dynamic/requirements.txt"
pytestmark = pytest.mark.nightly
pytest.importorskip("cv2", reason=NEEDS)
pytest.importorskip("onnx", reason=NEEDS)
pytest.importorskip("onnxruntime", reason="the example's models need onnxruntime: pip install '.[onnx]'")

DYNAMIC = str(Path(__file__).parents[2] / "examples" / "dynamic")
SMALL = 256  # wide: learnt and exported within a second or two, and the same graph


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of these tests' own with the fetched packages by reference."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        own_cache(patch, folder, assets.read_assets(os.path.join(DYNAMIC, "assets.toml")))
        yield str(folder)


def module(name: str) -> Any:
    """A module of the example, whichever other example's was imported before."""
    return sys.modules[import_function(f"{name}:{'forms' if name == 'inputs' else 'main'}", DYNAMIC, "test").__module__]


@pytest.fixture(scope="module")
def built(cache: str) -> Dict[str, Dict[str, float]]:
    """A small network where the real one lies; what checking it said."""
    report: Dict[str, Dict[str, float]] = module("build").build(path_in(cache), SMALL)
    return report


@pytest.fixture(scope="module")
def session(cache: str, built: Any) -> Any:
    return module("build").session_of(path_in(cache))


def path_in(cache: str) -> str:
    return os.path.join(cache, "dynamic-digits-1", "exits.onnx")


def exits_of(session: Any, images: np.ndarray) -> List[int]:
    return [int(session.run(["exit"], {"image": image[np.newaxis]})[0][0]) for image in images]


def one_of_each(session: Any) -> np.ndarray:
    """Three digits: one that leaves at each exit."""
    images = np.array([request["image"] for request in module("inputs").meters(100)])
    exits = exits_of(session, images)
    return images[[exits.index(number) for number in (1, 2, 3)]]


# --- the network with early exits -------------------------------------------------------------------------------------


def test_scanned_digits_leave_early_and_photographed_ones_late(built: Dict[str, Dict[str, float]]) -> None:
    scanned, photographed = built["scanned"], built["photographed"]
    assert scanned["right"] > 0.9
    assert scanned["exit_1"] > 0.7 > 0.5 > photographed["exit_1"]
    assert photographed["exit_3"] > 0.15
    assert photographed["right"] >= photographed["right_first_look"]  # looking again is not worse


def test_only_needed_looks_are_taken(session: Any, cache: str, tmp_path: Path) -> None:
    """Which nodes ran, by ONNX Runtime's own account: the branches are real, and decided for the batch."""
    one, two, three = one_of_each(session)
    looks = {
        "one": [one],
        "two": [two],
        "three": [three],
        "one and one": [one, one],
        "one and two": [one, two],
        "all": [one, two, three],
    }
    deepest = {}
    for name, images in looks.items():
        profiled = module("build").session_of(path_in(cache), str(tmp_path / name.replace(" ", "_")))
        profiled.run(None, {"image": np.array(images)})
        with open(profiled.end_profiling(), encoding="utf-8") as file:
            ran = " ".join(event["name"] for event in json.load(file) if event.get("cat") == "Node")
        deepest[name] = [look for look in ("first_look", "second_look", "third_look") if look in ran]
    first, second, third = ["first_look"], ["first_look", "second_look"], ["first_look", "second_look", "third_look"]
    assert deepest == {
        "one": first,
        "two": second,
        "three": third,
        "one and one": first,
        "one and two": second,
        "all": third,
    }


def test_a_digits_answer_does_not_depend_on_its_company(session: Any) -> None:
    images = np.concatenate([one_of_each(session), [request["image"] for request in module("inputs").forms(13)]])
    together = session.run(None, {"image": images})
    for index, image in enumerate(images):
        alone = session.run(None, {"image": image[np.newaxis]})
        for mine, ours in zip(alone, together):
            np.testing.assert_allclose(mine[0], ours[index], atol=1e-5)
    assert together[2][:3].tolist() == [1, 2, 3]


def test_the_example_digit_takes_the_second_look(session: Any) -> None:
    assert exits_of(session, np.array([module("inputs").example_digit()["image"]])) == [2]


def test_the_same_seed_asks_the_same(cache: str) -> None:
    inputs = module("inputs")
    for app in ("plates", "lines"):
        first, second, other = (inputs.APPS[app](20, seed) for seed in (3, 3, 4))
        assert all(np.array_equal(one["x"], two["x"]) for one, two in zip(first, second))
        assert [item["x"].shape for item in first] != [item["x"].shape for item in other]
    widths = {app: [item["x"].shape[2] for item in inputs.APPS[app](50)] for app in ("plates", "lines")}
    assert np.mean(widths["lines"]) > 1.3 * np.mean(widths["plates"])


# --- the apps ---------------------------------------------------------------------------------------------------------


def config_of(folder: str, **server: Any) -> Config:
    config = load_config(os.path.join(DYNAMIC, "edge.toml"))
    return replace(
        config, server=replace(config.server, endpoint=f"ipc://{folder}/bus/socket", profiles=folder, **server)
    )


def test_all_four_apps_answer_and_the_scheduler_knows_how_wide_a_crop_is(built: Any, tmp_path: Path) -> None:
    """A server with both fronts: over the bus and in process. What the scheduler was told is in the recording."""
    load, record = module("load"), str(tmp_path / "recorded.jsonl")
    config = config_of(str(tmp_path), record=record)
    crops = module("inputs").plates(2)
    with Runtime(config, serve=True) as runtime, Client(runtime.endpoints[0]) as bus:
        for model in config.models:
            apps = load.apps_of(config, model)
            due = load.bursts(config, apps, 20, 0.5, 1.0, 1)
            result = load.send(bus, due, {app: module("inputs").APPS[app](8, 7) for app in apps}, 20 * 10**9)
            assert result["finish_rate"] == 1.0, result
            assert result["sent"] == len(due) > 5
        answer = runtime.infer("plates", crops[0], slo_ms=20_000)
        runtime.infer("lines", crops[1], slo_ms=20_000, hints={"length": 7, "words": 2})
        digit = runtime.infer("meters", module("inputs").example_digit(), slo_ms=20_000)
        runtime.check()
    assert answer.outputs["softmax_11.tmp_0"].shape[0] == crops[0]["x"].shape[2] // 8  # cut to its own share
    assert digit.outputs["exit"] == 2
    with open(record, encoding="utf-8") as file:
        hints = hints_by_app(file.read())
    assert {app for app, rows in hints.items() if any(rows)} == {"plates", "lines"}
    assert all(row["length"] % 32 == 0 for row in hints["plates"])
    assert hints["plates"][-1] == {"length": crops[0]["x"].shape[2]}
    assert hints["lines"][-1] == {"length": 7, "words": 2}


def hints_by_app(recorded: str) -> Dict[str, List[Dict[str, float]]]:
    """The hints of every arrival in a recording."""
    found: Dict[str, List[Dict[str, float]]] = {}

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "app" in value and "deadline_ns" in value:
                found.setdefault(value["app"], []).append(value.get("hints") or {})
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                walk(item)

    for line in recorded.splitlines():
        walk(json.loads(line))
    return found
