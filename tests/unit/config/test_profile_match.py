"""A profile beside the configuration: what has changed is said with both values, and only what still holds is used."""

from __future__ import annotations

import json

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.config.profile_match import (
    AT_START,
    EXPECTED,
    MEASURED,
    identity,
    lane_settings,
    match_profile,
    profile_command,
    times_from,
)
from edgeserve.config.profiles import LaneProfile, Profile, Timing, read_profile, restricted, write_profile

VERSIONS = {"edgeserve": "0.1.0", "python": "3.10.4", "onnxruntime": "1.16.3"}


def config_of(tmp_path, model=None, lane=None, app=None):
    """A network of two batch sizes on one lane; the three tables replace or add keys."""
    return parse_config(
        {
            "lane": {"cpu0": {"threads": 2, "cores": [0, 1]}, "cpu1": {}} if lane is None else lane,
            "model": {
                "m": {
                    "engine": "onnx",
                    "file": "m.onnx",
                    "batch": [1, 4],
                    "lanes": ["cpu0"],
                    "shapes": {"x": [3, 320, 320]},
                    "options": {"threads": 2},
                    **(model or {}),
                }
            },
            "app": {"a": {"model": "m", **(app or {})}},
        },
        str(tmp_path),
        "edge.toml",
    )


@pytest.fixture
def measured(tmp_path):
    """The profile of that network as ``edgeserve profile`` would write it, through a file; ``change`` edits its
    circumstances."""
    (tmp_path / "m.onnx").write_bytes(b"weights")

    def write(timings=None, lane=None, change=None, **circumstances):
        config = config_of(tmp_path)
        timing = Timing(100, 1000, 1500, 1100, 10)
        about = {"settings": lane_settings(config, "cpu0"), **(lane or {})}
        known = {
            "same": identity(config.models["m"], config.directory, VERSIONS),
            "lanes": {"cpu0": about},
            "inputs": {"x": ["float32", [3, 320, 320]]},
            **circumstances,
        }
        known.update(change or {})
        profile = Profile(
            "m",
            "orin",
            {"cpu0": LaneProfile(timings or {1: timing, 4: timing}, alone={"a": (1, 2)})},
            circumstances=known,
        )
        write_profile(str(tmp_path / "m.json"), profile)
        return read_profile(str(tmp_path / "m.json"))

    return write


def test_the_same_model_on_the_same_lane_matches(measured, tmp_path):
    match = match_profile(measured(), config_of(tmp_path), VERSIONS)
    assert (match.mismatches, match.lacking, match.doubts) == ((), (), ())
    assert match.usable == match.profile


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"engine": "synthetic"}, "engine is synthetic now, it was onnx when measured"),
        ({"options": {"threads": 4}}, "options.threads is 4 now, it was 2 when measured"),
        ({"options": {}}, "options.threads is not set now, it was 2 when measured"),
        (
            {"options": {"threads": 2, "providers": ["cuda"]}},
            'options.providers is ["cuda"] now, it was not set when measured',
        ),
        ({"shapes": {"x": [3, 640, 640]}}, "shapes.x is [3, 640, 640] now, it was [3, 320, 320] when measured"),
        ({"pad": {"x": 0.0}}, "pad.x is 0.0 now, it was not set when measured"),
        ({"state": {"h": "hn"}}, "state.h is hn now, it was not set when measured"),
    ],
)
def test_another_setting_of_the_model_is_said_with_both_values(measured, tmp_path, change, text):
    match = match_profile(measured(), config_of(tmp_path, change), VERSIONS)
    assert match.mismatches == (text,)
    assert match.usable.lanes == {}


@pytest.mark.parametrize(
    "change",
    [
        {"expected": {"1": "5ms"}},
        {"options": {"threads": 2, "process_timeout": "9s", "process_restarts_max": 1}},
        {"memory": "1MiB"},
        {"batch": [1]},
        {"pinned": True},
    ],
)
def test_what_changes_no_time_is_no_mismatch(measured, tmp_path, change):
    assert match_profile(measured(), config_of(tmp_path, change), VERSIONS).usable.lanes


def test_the_time_of_a_synthetic_model_is_a_setting(tmp_path):
    models = [
        config_of(tmp_path, {"engine": "synthetic", "expected": {"1": time}, "batch": [1]}).models["m"]
        for time in ("9ms", "3ms")
    ]
    slow, fast = [identity(model, str(tmp_path), {}) for model in models]
    assert slow["settings"]["expected"] == {"1": 9_000_000} != fast["settings"]["expected"]


def test_another_content_of_the_file_is_a_mismatch_and_another_name_is_none(measured, tmp_path):
    profile = measured()
    (tmp_path / "n.onnx").write_bytes(b"weights")
    assert match_profile(profile, config_of(tmp_path, {"file": "n.onnx"}), VERSIONS).mismatches == ()
    (tmp_path / "m.onnx").write_bytes(b"weights of another training")
    (text,) = match_profile(profile, config_of(tmp_path), VERSIONS).mismatches
    assert text.startswith("m.onnx has changed (sha256 ")
    assert profile.circumstances["same"]["files"]["file"]["sha256"][:12] + " when measured" in text
    (tmp_path / "m.onnx").unlink()  # a simulation elsewhere: nothing to compare
    assert match_profile(profile, config_of(tmp_path), VERSIONS).mismatches == ()


def test_the_source_of_a_function_counts_as_its_file(tmp_path):
    (tmp_path / "steps.py").write_text("def f(x): return x\n")
    config = config_of(
        tmp_path,
        {"engine": "python", "file": "", "function": "steps:f", "shapes": {}, "options": {"example": "steps:one"}},
    )
    same = identity(config.models["m"], str(tmp_path), {})
    assert same["files"]["function"]["name"] == "steps.py"
    profile = Profile("m", "orin", {"cpu0": LaneProfile({})}, circumstances={"same": same})
    assert match_profile(profile, config).mismatches == ()
    (tmp_path / "steps.py").write_text("import time\ndef f(x): time.sleep(1)\n")
    (text,) = match_profile(profile, config).mismatches
    assert "steps.py has changed" in text


@pytest.mark.parametrize(
    ("library", "version", "text"),
    [
        ("onnxruntime", "1.17.0", "onnxruntime is 1.17.0 now, it was 1.16.3 when measured"),
        ("python", "3.8.19", "python is 3.8.19 now, it was 3.10.4 when measured"),
        ("python", "3.10.14", None),  # a patch release
        ("tensorrt", "10.3", None),
    ],
)  # not recorded
def test_versions_count_up_to_their_patch_release(measured, tmp_path, library, version, text):
    match = match_profile(measured(), config_of(tmp_path), {**VERSIONS, library: version})
    assert match.mismatches == ((text,) if text else ())


def test_without_versions_those_of_this_machine_do_not_count(measured, tmp_path):
    assert match_profile(measured(), config_of(tmp_path)).mismatches == ()


@pytest.mark.parametrize(
    ("lane", "text"),
    [
        ({"threads": 4, "cores": [0, 1]}, "lane cpu0: threads is 4 now, it was 2 when measured"),
        ({"threads": 2}, "lane cpu0: cores is [] now, it was [0, 1] when measured"),
    ],
)
def test_a_lane_with_other_threads_or_cores_is_left_out(measured, tmp_path, lane, text):
    match = match_profile(measured(), config_of(tmp_path, lane={"cpu0": lane}), VERSIONS)
    assert match.mismatches == (text,)
    assert match.usable.lanes == {}
    config = config_of(tmp_path, {"lanes": []}, {"cpu0": {"threads": 2, "cores": [0, 1]}, "cpu1": {}})
    match = match_profile(measured(), config, VERSIONS)
    assert match.lacking == ("no time was measured on lane cpu1 (measured: cpu0)",)
    assert list(match.usable.lanes) == ["cpu0"]


def test_batch_sizes_without_a_time_are_named_beside_those_with_one(measured, tmp_path):
    match = match_profile(measured(), config_of(tmp_path, {"batch": [1, 2, 4, 8]}), VERSIONS)
    assert match.lacking == ("no time was measured for batch 2, 8 on cpu0 (measured: 1, 4)",)
    assert sorted(match.usable.lanes["cpu0"].timings) == [1, 4]


@pytest.mark.parametrize(
    ("drift", "lane_drift", "texts"),
    [
        (0.04, -0.09, []),
        (0.3, 0.2, ["the device got 30% slower while batch 4 was measured on cpu0 (up to 10% is usual)"]),
        (0.0, -0.2, ["the device got 20% faster while all batch sizes was measured on cpu0 (up to 10% is usual)"]),
    ],
)
def test_a_device_that_drifted_is_a_doubt_and_the_times_stay(measured, tmp_path, drift, lane_drift, texts):
    timings = {size: Timing(100, 1000, 1500, 1100, 10, drift=drift if size == 4 else 0.0) for size in (1, 4)}
    match = match_profile(measured(timings, {"drift": lane_drift}), config_of(tmp_path), VERSIONS)
    assert list(match.doubts) == [text.replace("sizes was", "sizes were") for text in texts]
    assert match.usable.lanes


@pytest.mark.parametrize(
    ("others", "cores", "said"), [(0.1, 2, False), (1.5, 2, True), (1.5, 8, False), (0.3, 2, True), (0.2, 2, False)]
)
def test_other_programs_on_the_cores_are_a_doubt_where_none_was_left(measured, tmp_path, others, cores, said):
    """The lane has two threads."""
    match = match_profile(measured(lane={"load": {"others": others, "cores": cores}}), config_of(tmp_path), VERSIONS)
    assert bool(match.doubts) == said
    if said:
        assert f"kept {others} of 2 cores busy while cpu0 was measured with 2 threads" in match.doubts[0]
        assert match.usable.lanes


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"max": 2000.0}, False),
        ({"max": 2090}, False),
        ({"max": 1200}, True),
        ({"max": 0.0}, False),
        ({}, False),
        (None, False),
    ],
)
def test_another_highest_clock_is_a_doubt(measured, tmp_path, now, said):
    """As in another power mode. Virtual machines say 0, or nothing."""
    match = match_profile(measured(clocks_mhz={"max": 2000}), config_of(tmp_path), VERSIONS, now)
    assert [text.partition(":")[0] for text in match.doubts] == [
        "the processor's highest clock is 1200 MHz now, it was 2000 MHz when measured"
    ] * said
    assert match.usable.lanes
    assert match_profile(measured(clocks_mhz={"max": 0}), config_of(tmp_path), VERSIONS, now).doubts == ()


def test_an_app_that_brings_another_shape_than_the_example_is_a_doubt(measured, tmp_path):
    def doubts(inputs, **app):
        return match_profile(measured(), config_of(tmp_path, app={"inputs": inputs, **app}), VERSIONS).doubts

    assert doubts({"x": {"dtype": "float32", "shape": [3, 320, 320]}}) == ()
    assert doubts({"x": {"dtype": "float32", "shape": [3, -1, -1]}}) == ()  # any length
    assert doubts({"other": {"dtype": "float32", "shape": [1]}}) == ()
    (text,) = doubts({"x": {"dtype": "uint8", "shape": [3, 640, 640]}})
    assert "input x is uint8[3, 640, 640] in app a, it was float32[3, 320, 320] when measured" in text


def test_times_alone_of_other_examples_do_not_count(measured, tmp_path):
    profile = measured(lane={"examples": {"a": "inputs:old"}})
    assert match_profile(profile, config_of(tmp_path, app={"examples": "inputs:old"})).usable == profile
    match = match_profile(profile, config_of(tmp_path, app={"examples": "inputs:new"}))
    assert match.mismatches == ("[app.a] examples is inputs:new now, it was inputs:old when measured",)
    assert match.usable.lanes["cpu0"].alone == {}
    assert match.usable.lanes["cpu0"].timings == profile.lanes["cpu0"].timings


@pytest.mark.parametrize("circumstances", [{}, {"same": 3, "lanes": [], "inputs": "x"}])
def test_a_profile_that_does_not_say_what_it_was_measured_with_is_a_doubt(tmp_path, circumstances):
    profile = Profile("m", "orin", {"cpu0": LaneProfile({1: Timing(1, 1, 1, 1, 1)})}, circumstances=circumstances)
    match = match_profile(profile, config_of(tmp_path, {"batch": [1]}), VERSIONS)
    assert match.doubts == ("it does not say with which engine, file and options it was measured",)
    assert match.usable == profile


def test_where_the_times_come_from(measured, tmp_path):
    profile = measured()
    config = config_of(tmp_path, {"batch": [1, 4, 8], "expected": {"8": "9ms"}})
    model = config.models["m"]
    assert times_from(config, model, profile) == EXPECTED
    assert times_from(config, model, None) == AT_START
    assert times_from(config_of(tmp_path), model, restricted([profile], {("m", "cpu0"): ("a",)})[0]) == EXPECTED
    whole = config_of(tmp_path)
    assert times_from(whole, whole.models["m"], profile) == MEASURED


def test_parts_of_profiles_are_kept_apart(measured):
    profile = measured()
    assert restricted([profile], {}) == []
    (kept,) = restricted([profile], {("m", "cpu0"): ()})
    assert kept.lanes["cpu0"].alone == {}
    assert kept.lanes["cpu0"].timings == profile.lanes["cpu0"].timings
    assert restricted([profile], {("m", "cpu0"): ("a",), ("m", "cpu1"): ()}) == [profile]


def test_the_command_that_measures_again_names_the_file(tmp_path):
    config = config_of(tmp_path)
    assert profile_command(config, "m", force=True) == "edgeserve profile edge.toml --model m --force"
    assert profile_command(parse_config({}), "m") == "edgeserve profile CONFIG --model m"


def test_an_identity_is_what_a_file_gives_back(tmp_path):
    """Tuples, whole numbers as keys and infinities come back from JSON as they are compared."""
    config = config_of(tmp_path, {"pad": {"x": float("-inf")}, "options": {"fan_out": (1, 2)}})
    same = identity(config.models["m"], str(tmp_path), VERSIONS)
    assert json.loads(json.dumps(same)) == same


CARD = {"name": "NVIDIA L4", "compute_capability": "8.9", "driver": "580.65"}
ORIN = {"name": "Orin", "compute_capability": "8.7", "multiprocessors": 16, "driver": "CUDA 12.6"}


@pytest.mark.parametrize(
    ("measured_on", "now", "usable", "said"),
    [
        (CARD, CARD, True, ""),
        (CARD, {}, True, ""),
        (
            CARD,
            {**CARD, "name": "NVIDIA H200"},
            False,
            "lane cpu0: the GPU's name is NVIDIA H200 now, it was NVIDIA L4",
        ),
        (CARD, {**CARD, "compute_capability": "9.0"}, False, "compute_capability is 9.0 now, it was 8.9"),
        (ORIN, {**ORIN, "multiprocessors": 4}, False, "multiprocessors is 4 now, it was 16"),
        (CARD, {**CARD, "multiprocessors": 58}, True, ""),
        (CARD, {**CARD, "driver": "590.1"}, True, "the GPU's driver is 590.1 now, it was 580.65 when measured"),
        ({}, CARD, True, "does not say on which GPU it was measured, and this is NVIDIA L4"),
    ],
    ids=[
        "the same",
        "unknown here",
        "another card",
        "another capability",
        "a smaller one",
        "as of before",
        "another driver",
        "not noted",
    ],
)
def test_a_profile_of_another_card_is_not_used(tmp_path, measured, measured_on, now, usable, said):
    profile = measured(lane={"card": measured_on} if measured_on else {})
    match = match_profile(profile, config_of(tmp_path), VERSIONS, cards={"cpu0": now} if now else {})
    assert bool(match.usable.lanes) == usable
    texts = [*match.mismatches, *match.doubts]
    assert bool(texts) == bool(said) and said in "".join(texts)
    assert bool(match.mismatches) != usable


@pytest.mark.parametrize(
    ("kind", "now_mhz", "clock_mhz", "said"),
    [("cuda", 918.0, 0.0, True), ("cuda", 918.0, 1300.0, False), ("cuda", 0.0, 0.0, False), ("cpu", 918.0, 0.0, False)],
)
def test_a_profile_that_names_no_clock_says_so_where_there_is_one_to_compare(kind, now_mhz, clock_mhz, said):
    config = parse_config(
        {
            "device": {"d": {"kind": kind}},
            "lane": {"l": {"device": "d"}},
            "model": {"m": {"engine": "synthetic"}},
            "app": {"a": {"model": "m"}},
        }
    )
    same = identity(config.models["m"], config.directory, {})
    lane = LaneProfile({1: Timing(1, 1, 1, 1, 1)}, clock_mhz=clock_mhz)
    profile = Profile("m", "orin", {"l": lane}, circumstances={"same": same})
    found = match_profile(profile, config, {}, {"gpu": now_mhz})
    assert [text for text in found.doubts if "at which clock" in text] == [
        "lane l: it does not say at which clock of the GPU it was measured: the highest that was "
        "seen since the start counts"
    ] * said
