"""The profiler: its statistics against known answers, and the command on models whose times are stated."""

from __future__ import annotations

import argparse
import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edgeserve.cli import main
from edgeserve.commands import measure_lane
from edgeserve.commands import profile as command
from edgeserve.commands.alone import PASSES, measure_alone
from edgeserve.commands.measure import (
    StopRule,
    drift,
    fit_affine,
    measure_loads,
    measure_prompt,
    measure_size,
    p99_error,
    quantile_bounds,
    summarise,
)
from edgeserve.config.loading import load_config
from edgeserve.config.machine import board_name, device_slug, slug
from edgeserve.config.profile_match import match_profile
from edgeserve.config.profiles import (
    QUANTILES,
    LaneProfile,
    Profile,
    Timing,
    profile_path,
    read_profile,
    write_profile,
)
from edgeserve.device.host import BusyTime, busy_time, clocks_mhz, load_average, others_busy
from edgeserve.engines.base import BlockingSession, Engine, Footprint, Result
from edgeserve.engines.denormals import is_flushing
from edgeserve.engines.versions import engine_versions
from edgeserve.errors import ConfigError
from edgeserve.offload.pin import allowed_cores


class Stated(Engine):
    """Takes what ``durations`` says, on its own clock."""

    def __init__(self, durations):
        self.now_ns = 0
        self.durations = iter(durations)
        self.loads = 0

    def load(self):
        self.loads += 1
        self.now_ns += 1000 * self.loads
        return Footprint(1)

    def unload(self):
        self.now_ns += 5

    def example(self):
        return {}

    def run(self, batch):
        self.now_ns += next(self.durations)
        return [Result({})]


# --- statistics ---


def test_the_fit_finds_a_line_exactly():
    assert fit_affine({size: 1000 + 250 * size for size in (1, 2, 4, 8, 16)}) == (1000, 250, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_fit_weighs_relative_errors(seed):
    """10 % of noise on every size moves the small sizes' prediction by about 10 %, however large the others are."""
    noise = random.Random(f"{seed}/fit")
    times = {size: round((2000 + 500 * size) * noise.uniform(0.9, 1.1)) for size in (1, 2, 4, 8, 16, 32, 64)}
    fixed, per_item, error_max = fit_affine(times)
    assert error_max <= 0.2
    assert fixed + per_item == pytest.approx(2500, rel=0.15)
    assert fixed + 64 * per_item == pytest.approx(34_000, rel=0.15)


def test_the_fit_is_never_negative():
    assert fit_affine({1: 100, 2: 400, 4: 1600})[0] == 0  # worse than linear
    fixed, per_item, _ = fit_affine({1: 1000, 2: 900, 4: 800})
    assert (per_item, fixed >= 800) == (0, True)
    assert fit_affine({4: 1000}) == (0, 250, 0.0)  # one size: all of it per item


@pytest.mark.parametrize("seed", range(3))
def test_the_bounds_enclose_the_true_quantile(seed):
    """With exponential samples, the known p99 lies inside the interval in about 95 of 100 sets."""
    draw = random.Random(f"{seed}/bounds")
    true_p99 = -np.log(0.01) * 1e6
    inside = 0
    for _ in range(100):
        low, high = quantile_bounds(sorted(int(draw.expovariate(1e-6)) for _ in range(600)), 0.99)
        inside += low <= true_p99 <= high
    assert inside >= 88


def test_too_few_samples_say_nothing_of_the_p99():
    assert quantile_bounds(list(range(100)), 0.99) is None
    assert p99_error(list(range(1, 101))) == 1.0
    assert quantile_bounds([], 0.99) is None
    assert p99_error([100] * 1000) == 0.0


def test_drift():
    assert drift([100] * 50) == 0
    assert drift([100] * 25 + [120] * 25) == pytest.approx(0.2)
    assert drift([120] * 25 + [100] * 25) == pytest.approx(-1 / 6)
    assert drift([1, 1000]) == 0  # too few to say


def test_summary():
    samples = [1000 + index for index in range(1001)]
    timing = summarise(samples)
    assert (timing.count, timing.median_ns, timing.p99_ns) == (1001, 1500, 1990)
    assert timing.mean_ns == 1500
    assert timing.sd_ns == pytest.approx(289, abs=1)
    assert len(timing.quantiles_ns) == len(QUANTILES)
    assert timing.quantiles_ns[0] == 1000
    assert timing.quantiles_ns[-1] == 2000
    assert timing.drift > 0.4


# --- when to stop ---


def measured(durations, **rule):
    engine = Stated(durations)
    return measure_size(BlockingSession(engine), {}, 1, lambda: engine.now_ns, StopRule(**rule))


def test_steady_times_stop_early():
    draw = random.Random("steady")
    samples = measured((round(draw.gauss(1e6, 1e4)) for _ in range(10**6)), time_ns_max=10**12)
    assert 380 <= len(samples) <= 600  # as soon as the p99 has an upper bound at all


def test_a_long_tail_takes_more_runs():
    draw = random.Random("tail")
    samples = measured((round(draw.lognormvariate(13, 0.8)) for _ in range(10**6)), time_ns_max=10**14)
    assert len(samples) > 1500
    assert p99_error(sorted(samples)) <= 0.05


def test_time_and_runs_are_bounded():
    assert len(measured([10**9] * 100, runs_min=10, time_ns_max=3 * 10**9)) == 10  # never fewer than the least
    assert len(measured([10**8] * 100, runs_min=10, time_ns_max=3 * 10**9)) == 30
    draw = random.Random("wild")
    wild = (round(draw.paretovariate(0.5) * 1000) for _ in range(10**6))
    assert len(measured(wild, runs_max=2000, time_ns_max=10**18)) == 2000


def test_someone_may_stop_it():
    engine = Stated([10] * 100)
    done = measure_size(BlockingSession(engine), {}, 1, lambda: engine.now_ns, StopRule(), lambda: engine.now_ns >= 50)
    assert len(done) == 5


def test_load_time_is_the_median_and_leaves_it_loaded():
    engine = Stated([])
    assert measure_loads(engine, lambda: engine.now_ns) == 2000
    assert engine.loads == 3


# --- the command ---

CONFIG = """
[lane.cpu0]
cores = [0]
[lane.cpu1]
[model.steady]
engine = "synthetic"
batch = [1, 2, 4]
options = { c0 = "200us", c1 = "100us" }
load = "1ms"
lanes = ["cpu0"]
[model.bare]
engine = "python"
function = "profile_functions:double"
lanes = ["cpu1"]
[model.host]
engine = "python"
function = "profile_functions:double"
lanes = ["cpu1"]
options = { example = "profile_functions:example" }
[model.broken]
engine = "onnx"
file = "none.onnx"
lanes = ["cpu0"]
"""
FUNCTIONS = """
def double(inputs):
    return {"y": inputs["x"] * 2}
def example():
    return {"x": 21}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "edge.toml").write_text(CONFIG)
    (tmp_path / "profile_functions.py").write_text(FUNCTIONS)
    return str(tmp_path / "edge.toml")


def run(config, *words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.main(parser.parse_args([config, "--device", "here", "--seconds", "0.05", "--no-machine", *words]))


def path_of(config, model):
    return profile_path(os.path.join(os.path.dirname(config), "profiles"), "here", model)


class Reads(Stated):
    """A model that reads each token of a prompt in 3 us, and begins no prompt as the one before."""

    def __init__(self):
        super().__init__(())
        self.begun = []

    def run(self, batch):
        prompt = batch.items[0]["tokens"]
        self.begun.append(prompt[0])
        self.now_ns += 3000 * len(prompt) + 500
        return [Result({})]


def test_reading_a_prompt_is_told_by_its_token():
    model = Reads()
    example = {"tokens": [5, 6, 7], "max_tokens": 4}
    assert measure_prompt(BlockingSession(model), example, 128, lambda: model.now_ns) == 3003
    assert all(one != next_one for one, next_one in zip(model.begun, model.begun[1:]))
    assert measure_prompt(BlockingSession(model), {"x": 1}, 128, lambda: model.now_ns) == 0


def test_a_profile_keeps_how_long_a_prompt_takes_to_be_read(tmp_path):
    timing = Timing(10, 5, 5, 5, 0)
    for token_ns in (0, 7228):
        path = str(tmp_path / f"{token_ns}.json")
        write_profile(path, Profile("m", "here", {"cpu0": LaneProfile({1: timing}, prompt_token_ns=token_ns)}))
        assert read_profile(path).lanes["cpu0"].prompt_token_ns == token_ns


def test_a_profile_says_what_was_measured_and_how(config, capsys):
    assert run(config, "--model", "steady") == 0
    profile = read_profile(path_of(config, "steady"))
    lane = profile.lanes["cpu0"]
    assert sorted(lane.timings) == [1, 2, 4]
    assert all(lane.timings[size].median_ns >= 200_000 + 100_000 * size for size in (1, 2, 4))
    assert lane.load_ns >= 1_000_000
    assert profile.weights_bytes > 0
    assert profile.circumstances["same"]["versions"]["python"].startswith("3.")
    assert profile.circumstances["lanes"]["cpu0"]["settings"] == {"device_kind": "cpu", "threads": 1, "cores": [0]}
    assert {"date", "device_name", "clocks_mhz", "cores", "load_average"} <= set(profile.circumstances)
    printed = capsys.readouterr().out
    assert "after a batch of another size: 1: " in printed
    assert "steady" in printed
    assert "* batch" in printed
    assert "A server that runs goes on with the times that it has: start it again to use these." in printed


def test_it_goes_on_where_it_stopped(config, capsys):
    assert run(config, "--model", "steady", "--batch", "1,2") == 0
    first = read_profile(path_of(config, "steady"))
    assert run(config, "--model", "steady") == 0
    second = read_profile(path_of(config, "steady"))
    assert sorted(second.lanes["cpu0"].timings) == [1, 2, 4]
    for size in (1, 2):  # not measured again: not one nanosecond differs
        assert second.lanes["cpu0"].timings[size] == first.lanes["cpu0"].timings[size]
    assert "kept from an earlier run" in capsys.readouterr().out
    assert run(config, "--model", "steady", "--force") == 0
    assert read_profile(path_of(config, "steady")).lanes["cpu0"].timings[1] != first.lanes["cpu0"].timings[1]


def test_a_damaged_profile_is_replaced(config):
    os.makedirs(os.path.dirname(path_of(config, "host")))
    with open(path_of(config, "host"), "w", encoding="utf-8") as file:
        file.write("{")
    assert run(config, "--model", "host", "--json") == 0
    assert read_profile(path_of(config, "host")).lanes["cpu1"].timings[1].count >= 10


def test_what_cannot_be_measured_is_said_and_the_rest_is_measured(config, capsys):
    assert run(config) == 1
    errors = capsys.readouterr().err
    assert "not measured: bare on cpu1" in errors
    assert "options.example = 'module:function'" in errors
    assert "not measured: broken on cpu0" in errors
    assert "there is no file" in errors
    assert os.path.exists(path_of(config, "steady"))
    assert os.path.exists(path_of(config, "host"))
    assert not os.path.exists(path_of(config, "bare"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "stedy"], "--model 'stedy' is not in the configuration; did you mean 'steady'"),
        (["--lane", "gpu0"], "--lane 'gpu0' is not in the configuration"),
        (["--batch", "1,x"], "--batch '1,x': expected batch sizes"),
        (["--model", "steady", "--lane", "cpu1"], "nothing to measure: no model of steady may run on cpu1"),
        (["--seconds", "0"], "--seconds 0: expected a time above 0"),
        (["--seconds", "inf"], "--seconds inf: expected a time above 0, 3600 at most"),
        (["--device", "../other"], "--device ../other: expected a plain name"),
        (["--out", "/dev/null"], "/dev/null/.*: profiles cannot be written there .*; name another directory"),
    ],
)
def test_wrong_usage(config, words, message):
    with pytest.raises(ConfigError, match=message):
        run(config, *words)


def test_ctrl_c_ends_the_checks_behind_the_last_size(config):
    path = path_of(config, "steady")

    def all_sizes_are_written():
        return os.path.exists(path) and set(read_profile(path).lanes["cpu1"].timings) == {1, 2, 4}

    folder = os.path.join(os.path.dirname(config), "profiles")
    rule = StopRule(time_ns_max=10**7)
    outcome = command.profile_model(
        load_config(config), "steady", "cpu1", (1, 2, 4), folder, "here", rule, stopped=all_sizes_are_written
    )
    assert outcome.measured == (1, 2, 4) and "interrupted" in outcome.why
    assert read_profile(path).circumstances["lanes"]["cpu1"]["changes_ns"] == {}


def test_ctrl_c_keeps_what_was_measured(config, monkeypatch):
    """An interrupt after the first size: its timing stays on disk and the next run goes on from there."""
    calls = []
    real = measure_lane.measure_size

    def interrupted(session, item, size, *rest, **more):
        calls.append(size)
        return real(session, item, size, *rest, **more)

    monkeypatch.setattr(measure_lane, "measure_size", interrupted)
    outcome = command.profile_model(
        load_config(config),
        "steady",
        "cpu1",
        (1, 2, 4),
        os.path.join(os.path.dirname(config), "profiles"),
        "here",
        StopRule(time_ns_max=10**7),
        stopped=lambda: len(calls) > 1,
    )
    assert outcome.measured == (1,)
    assert "interrupted" in outcome.why
    assert list(read_profile(path_of(config, "steady")).lanes["cpu1"].timings) == [1]


@pytest.mark.parametrize("model", ["steady", "broken"])
def test_what_a_lane_asks_of_its_thread_is_not_handed_on_to_the_next_lane(config, model):
    known = load_config(config)
    assert known.lanes["cpu0"].cores

    def profile():
        before = allowed_cores(), is_flushing()
        command.profile_model(known, model, "cpu0", (1,), os.path.dirname(config), "here", StopRule(time_ns_max=1))
        return before, (allowed_cores(), is_flushing())

    with ThreadPoolExecutor(1) as thread:
        before, after = thread.submit(profile).result()
    assert before == after


# --- what a later run keeps ---


def edited(config, old, new):
    with open(config, encoding="utf-8") as file:
        text = file.read()
    assert old in text
    with open(config, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new))


def test_what_is_measured_with_other_options_is_measured_again_and_said(config, capsys):
    assert run(config, "--model", "steady", "--batch", "1") == 0
    first = read_profile(path_of(config, "steady"))
    edited(config, 'c1 = "100us"', 'c1 = "9ms"')
    assert run(config, "--model", "steady", "--batch", "1") == 0
    second = read_profile(path_of(config, "steady"))
    assert second.lanes["cpu0"].timings[1].median_ns > first.lanes["cpu0"].timings[1].median_ns + 5_000_000
    assert "steady: all measured again: options.c1 is 9ms now, it was 100us when measured" in capsys.readouterr().out


def test_a_changed_expectation_measures_nothing_again_where_it_is_not_the_time(config):
    assert run(config, "--model", "host") == 0
    first = read_profile(path_of(config, "host"))
    edited(config, "options = { example", 'expected = { 1 = "3ms" }\noptions = { example')
    assert run(config, "--model", "host") == 0
    assert read_profile(path_of(config, "host")).lanes["cpu1"].timings == first.lanes["cpu1"].timings


def test_what_was_measured_matches_the_configuration_that_it_was_measured_with(config):
    assert run(config, "--model", "steady,host") == 0
    loaded = load_config(config)
    for model in ("steady", "host"):
        versions = engine_versions(loaded.models[model])
        match = match_profile(read_profile(path_of(config, model)), loaded, versions)
        assert (match.mismatches, match.lacking) == ((), ())


def test_the_example_and_the_load_are_noted(config):
    assert run(config, "--model", "host") == 0
    known = read_profile(path_of(config, "host")).circumstances
    assert known["inputs"] == {"x": "int"}
    load = known["lanes"]["cpu1"]["load"]
    assert load["cores"] >= 1
    assert 0 <= load["others"] <= load["cores"] + 0.5
    assert measure_lane.described({"x": np.zeros((3, 2), np.uint8)}) == {"x": ["uint8", [3, 2]]}


def test_what_others_used_is_what_was_used_beyond_our_own():
    assert others_busy(BusyTime(10.0, 4.0), BusyTime(13.0, 5.0), 2.0) == 1.0
    assert others_busy(BusyTime(10.0, 4.0), BusyTime(11.0, 6.0), 2.0) == 0.0  # ours ran on other cores
    assert others_busy(BusyTime(0.0, 0.0), BusyTime(1.0, 0.0), 0.0) == 0.0
    before = busy_time(range(1024))
    total = sum(index * index for index in range(1_000_000))
    after = busy_time(range(1024))
    assert total > 0
    assert after.own_s >= before.own_s > 0
    assert after.all_s >= before.all_s


# --- apps alone ---

APPS = """
[app.short]
model = "host"
examples = "profile_functions:short"
[app.long]
node = [{ name = "first", model = "host", inputs = { x = "request.size" } }, { name = "then", model = "host" }]
examples = "profile_functions:long"
[app.silent]
model = "host"
"""
EXAMPLES = """
import time
def double(inputs):
    time.sleep(inputs["x"] / 1000)
    return {"x": inputs["x"]}
def example():
    return {"x": 0}
def short():
    return [{"x": x} for x in (1, 2, 1)]
def long():
    return [{"size": 6, "other": 0}]
"""


@pytest.fixture
def alone_config(tmp_path):
    (tmp_path / "edge.toml").write_text(CONFIG + APPS)
    (tmp_path / "profile_functions.py").write_text(EXAMPLES)
    return str(tmp_path / "edge.toml")


def alone_of(config, lane="cpu1"):
    return read_profile(path_of(config, "host")).lanes[lane].alone


def test_the_requests_of_each_app_are_measured_alone(alone_config, capsys):
    assert run(alone_config, "--model", "host") == 0
    alone = alone_of(alone_config)
    assert sorted(alone) == ["long", "short"]  # the one without examples, and the node behind the first, are left out
    assert len(alone["short"]) == 3
    assert list(alone["short"]) == sorted(alone["short"])
    assert alone["short"][0] >= 1_000_000
    assert alone["short"][2] >= 2_000_000
    assert alone["long"][0] >= 6_000_000  # request.size is the model's x
    assert "short alone on cpu1: 3 requests" in capsys.readouterr().out


def test_what_an_app_takes_alone_is_kept_until_its_examples_change(alone_config, capsys):
    assert run(alone_config, "--model", "host") == 0
    first = read_profile(path_of(alone_config, "host")).lanes["cpu1"]
    node = 'node = [{ name = "host", inputs = { x = "request.size" } }]\nexamples = "profile_functions:long"'
    edited(alone_config, 'model = "host"\nexamples = "profile_functions:short"', node)
    assert run(alone_config, "--model", "host") == 0
    second = read_profile(path_of(alone_config, "host")).lanes["cpu1"]
    assert second.timings == first.timings  # the sizes are not measured again
    assert second.alone["long"] == first.alone["long"]
    assert second.alone["short"][0] >= 6_000_000
    assert "long alone on cpu1: 1 request," in capsys.readouterr().out
    assert run(alone_config, "--model", "host", "--force", "--json") == 0
    assert alone_of(alone_config)["long"] != first.alone["long"]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("[]", "expected a list of requests"),
        ("[1]", "expected a list of requests"),
        ('[{"x": 1}]', "a request has no 'size', which node 'first' takes; it has x"),
    ],
)
def test_examples_that_cannot_be_used_are_said(alone_config, capsys, returned, words):
    path = os.path.join(os.path.dirname(alone_config), "profile_functions.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(EXAMPLES.replace('[{"size": 6, "other": 0}]', returned))
    assert run(alone_config, "--model", "host", "--json") == 1
    error = capsys.readouterr().err
    assert "[app.long] examples = 'profile_functions:long'" in error
    assert words in error


def alone(engine, items, *arguments, **named):
    return measure_alone(BlockingSession(engine), items, *arguments, **named)


def test_a_time_alone_is_the_median_of_its_passes():
    engine = Stated([10, 100, 70, 30, 20, 50])  # two items, three passes over both
    assert PASSES == 3
    assert alone(engine, [{}, {}], lambda: engine.now_ns) == [20, 50]


def test_the_time_for_an_app_is_bounded():
    engine = Stated([10] * 9)
    assert alone(engine, [{}] * 5, lambda: engine.now_ns, time_ns_max=25) == [10, 10, 10]  # a part of one pass
    engine = Stated([10] * 9)
    assert alone(engine, [{}] * 3, lambda: engine.now_ns, time_ns_max=25) == [10, 10, 10]  # one whole pass
    assert engine.now_ns == 30
    engine = Stated([10] * 9)
    assert alone(engine, [{}] * 3, lambda: engine.now_ns, 10**9, lambda: engine.now_ns >= 20) == [10, 10]


# --- the device's name ---


def test_device_names():
    cpuinfo = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz\nmodel name\t: other\n"
    assert slug(board_name("", cpuinfo, "x86_64")) == "intel-xeon-platinum-8481c"
    assert slug(board_name("NVIDIA Jetson AGX Orin Developer Kit\0", cpuinfo, "aarch64")) == (
        "nvidia-jetson-agx-orin-developer-kit"
    )
    assert slug(board_name("", "", "aarch64")) == "aarch64"
    cards = ["Model: \t\t NVIDIA L4\nIRQ:   28\n"] * 2
    assert slug(board_name("", cpuinfo, "x86_64", cards)) == "nvidia-l4-intel-xeon-platinum-8481c"
    assert slug(board_name("", cpuinfo, "x86_64", ["Model: NVIDIA T4\n", *cards])).startswith("nvidia-l4-nvidia-t4-")
    assert board_name("Jetson", cpuinfo, "aarch64", cards) == "Jetson"
    assert slug("***") == "unknown"
    assert device_slug() == slug(device_slug())
    assert isinstance(clocks_mhz(), dict)
    assert load_average() >= 0


# --- profiles that are checked ----------------------------------------------------------------------------------------


def test_the_command_says_of_every_file_whether_it_is_a_profile(tmp_path, capsys):
    timing = Timing(9, 5, 7, 5, 1)
    write_profile(str(tmp_path / "good.json"), Profile("good", "here", {"cpu0": LaneProfile({1: timing})}))
    text = (tmp_path / "good.json").read_text()
    assert main(["doctor", str(tmp_path)]) == 0
    (tmp_path / "bad.json").write_text(text.replace('"median_ns": 5', '"median_ns": -5'))
    (tmp_path / "torn.json").write_text(text[:40])
    (tmp_path / "x.schema.json").write_text("{}")  # lies among profiles and is none
    assert main(["doctor", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "good.json: good on here: cpu0 [1]" in said and "2 wrong" in said and "x.schema.json" not in said
    assert "profile lanes.cpu0 timings.1 median_ns = -5: expected a whole number from 0" in said
    assert main(["doctor", str(tmp_path / "absent.json")]) == 1
    assert main(["profile"]) == 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {}, []),
        ({"clocks_locked": True}, {"clocks_locked": True}, []),
        (
            {"clocks_locked": True},
            {"clocks_locked": False, "governors": ["schedutil"]},
            ["not locked (governor schedutil)"],
        ),
        ({"power_mode": "MAXN"}, {"power_mode": "MODE_15W"}, ["changed from MAXN to MODE_15W"]),
    ],
)
def test_clocks_that_can_vary_are_a_remark(before, after, words):
    remarks = command.remarks_on_clocks({"device": {"before": before, "after": after}})
    assert len(remarks) == len(words) and all(word in remark for word, remark in zip(words, remarks))


def test_the_batch_that_saturates_a_lane_is_told_where_several_sizes_were_measured():
    def timing(ms):
        return Timing(9, ms * 10**6, 7, 5, 1)

    assert command.saturation({1: timing(20)}) == ""
    assert command.saturation({1: timing(20), 4: timing(20), 8: timing(40)}) == ", saturated by a batch of 4 in 20ms"
