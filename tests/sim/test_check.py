"""``edgeserve check``: what holds, what breaks first and at which load, and what to change."""

from __future__ import annotations

import json
import random
import re

import pytest
from short_check import shorten

from edgeserve import cli
from edgeserve.commands import check as tool
from edgeserve.commands.check import first_break
from edgeserve.commands.language_truth import read_lengths, with_language_models
from edgeserve.config.loading import parse_config
from edgeserve.config.profiles import LaneProfile, Profile, Timing
from edgeserve.errors import ConfigError
from edgeserve.sim.report import AppReport, Report
from edgeserve.sim.run import simulate
from edgeserve.sim.scenario import parse_scenario

CONFIG = """
[model.detect]
engine = "synthetic"
{detect}
[model.slow]
engine = "synthetic"
expected = {{ 1 = "20ms" }}
[app.frames]
model = "detect"
slo = "{slo}"
[app.other]
model = "slow"
slo = "1s"
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    shorten(monkeypatch)


def check(tmp_path, capsys, *arguments, slo="100ms", detect='expected = { 1 = "10ms" }'):
    path = tmp_path / "edge.toml"
    path.write_text(CONFIG.format(slo=slo, detect=detect), encoding="utf-8")
    status = cli.main(["check", str(path), *arguments])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_rates_with_room_hold_and_the_first_break_is_said_with_its_lane(tmp_path, capsys):
    status, out, _ = check(tmp_path, capsys, "--rate", "frames=20", "--json")
    said = json.loads(out)
    assert (status, said["holds"]) == (0, True)
    assert said["apps"]["frames"]["in_time"] > 0.99
    assert said["apps"]["frames"]["policy"] == "plan"
    assert said["first_break"]["app"] == "frames"
    assert 1.5 < said["first_break"]["load"] < 5.5  # a lane of 100 runs a second, asked at random times
    status, out, _ = check(tmp_path, capsys, "--rate", "frames=20")
    assert "frames is the first to break, at" in out
    assert "not asked in this simulation, since no --rate names it: other" in out


@pytest.mark.worlds
def test_the_spread_of_the_runs_is_said_and_what_still_holds(tmp_path, capsys):
    status, out, _ = check(tmp_path, capsys, "--rate", "frames=40", "--json", slo="30ms")
    said = json.loads(out)
    low, high = said["apps"]["frames"]["in_time_range"]
    assert low <= said["apps"]["frames"]["in_time"] <= high and low < high
    assert said["first_break"]["held"] < said["first_break"]["load"]
    _, out, _ = check(tmp_path, capsys, "--rate", "frames=40", slo="30ms")
    assert f"{low:.1%} to {high:.1%}" in out and "in 2 runs" in out
    if said["first_break"]["held"]:
        assert f"{40 * said['first_break']['held']:.3g}/s still hold" in out


@pytest.mark.worlds
def test_who_stands_before_whom_is_said_by_a_run_without_it(tmp_path, capsys):
    path = tmp_path / "edge.toml"
    urgent = CONFIG.replace('slo = "1s"', 'slo = "1s"\nclass = "critical"')
    path.write_text(urgent.format(slo="20ms", detect='expected = { 1 = "10ms" }'), encoding="utf-8")
    assert cli.main(["check", str(path), "--rate", "frames=20", "--rate", "other=10", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["before_it"]["other"] > said["apps"]["frames"]["in_time"] + 0.05
    told = f"stands other (class critical), without which {said['before_it']['other']:.1%} of frames are in time"
    assert any(line == f"before frames (class normal) {told}" for line in said["change"])


def test_an_app_that_changes_nothing_or_has_another_lane_stands_before_none():
    lanes = {"one": {}, "two": {}}
    model = {"engine": "synthetic", "expected": {1: "1ms"}}
    models = {
        name: {**model, "lanes": [lane]} for name, lane in (("a", "one"), ("b", "one"), ("c", "two"), ("d", "one"))
    }
    config = parse_config(
        {"lane": lanes, "model": models, "app": {name: {"model": name, "slo": "1s"} for name in models}}
    )
    asked = []

    def simulated(load, without=""):
        asked.append(without)
        rates = {"": 0.8, "b": 0.95, "d": 0.81}
        apps = {name: AppReport(offered=100, in_time=100) for name in models}
        apps["a"] = AppReport(offered=100, in_time=round(100 * rates[without]))
        return Report(apps, AppReport(), {}, 1, 1.0)

    worst = tool.Break(2.0, "a", simulated(2.0))
    assert tool.stand_before(simulated, worst, config, dict.fromkeys(models, 1.0)) == {"b": 0.95}
    assert asked == ["", "b", "d"]


def test_more_than_the_lane_can_do_falls_short_and_says_what_would_hold(tmp_path, capsys):
    status, out, _ = check(tmp_path, capsys, "--rate", "frames=150", "--arrivals", "periodic")
    assert status == 1
    assert "falls short" in out
    assert "the lane is full" in out


def test_a_deadline_below_the_expected_time_is_named_before_anything_else(tmp_path, capsys):
    status, out, _ = check(tmp_path, capsys, "--rate", "frames=5", slo="8ms")
    assert status == 1
    assert "more than its slo of 8ms allows" in out


def test_times_that_are_not_known_are_measured_now(tmp_path, capsys):
    status, out, err = check(
        tmp_path,
        capsys,
        "--rate",
        "frames=20",
        "--arrivals",
        "periodic",
        detect='options = { c0 = "1ms", c1 = "1ms" }\nshapes = { x = [2] }',
    )
    assert "no times are known of detect" in err
    assert "a few runs now" in out
    assert status == 0


@pytest.mark.worlds
def test_batch_sizes_that_a_start_ends_are_not_counted_on(tmp_path, capsys):
    """Two at a time would hold 60 a second; the model mixes them, so that a start ends the size."""
    (tmp_path / "mixing.py").write_text(
        "import time\n"
        "import numpy as np\n"
        "from edgeserve.engine import Engine, Footprint, Result\n"
        "class Mixing(Engine):\n"
        "    def __init__(self, model, lanes, directory): pass\n"
        "    def load(self): return Footprint(1)\n"
        "    def unload(self): pass\n"
        "    def example(self): return {'x': np.zeros(2, np.float32)}\n"
        "    def run(self, batch):\n"
        "        time.sleep(0.03)\n"
        "        return [Result({'y': item['x'] + batch.items[0]['x']}) for item in batch.items]\n",
        encoding="utf-8",
    )
    own = 'engine = "mixing:Mixing"\nbatch = [1, 2, 4]'
    path = tmp_path / "edge.toml"
    text = CONFIG.format(slo="1s", detect="").replace('engine = "synthetic"', own, 1)
    path.write_text(text, encoding="utf-8")
    assert cli.main(["check", str(path), "--rate", "frames=60"]) == 1
    out = capsys.readouterr()
    assert "no times are known of detect" in out.err and "a few runs now" in out.out


def first_break_and_advice(tmp_path, capsys, *arguments, **how):
    _, out, _ = check(tmp_path, capsys, *arguments, "--json", **how)
    said = json.loads(out)
    return said["first_break"]["load"], " ".join(said["change"])


@pytest.mark.worlds
def test_what_it_says_to_change_moves_the_break(tmp_path, capsys):
    load, advice = first_break_and_advice(tmp_path, capsys, "--rate", "frames=20", slo="25ms")
    slo = re.search(r'a longer deadline, such as \[app.frames\] slo = "(\w+)"', advice)[1]
    later, _ = first_break_and_advice(tmp_path, capsys, "--rate", "frames=20", slo=slo)
    assert later > load
    load, advice = first_break_and_advice(tmp_path, capsys, "--rate", "frames=90", "--arrivals", "periodic")
    assert "the lane is full" in advice and "larger batch sizes" in advice
    rate = re.search(r"fewer requests: about ([\d.]+)/s hold", advice)[1]
    status, _, _ = check(tmp_path, capsys, "--rate", f"frames={rate}", "--arrivals", "periodic")
    assert status == 0
    later, _ = first_break_and_advice(
        tmp_path,
        capsys,
        "--rate",
        "frames=90",
        "--arrivals",
        "periodic",
        detect=('batch = [1, 2, 4]\nexpected = { 1 = "10ms", 2 = "12ms", 4 = "16ms" }'),
    )
    assert later > load


def test_sentences_are_wrapped_for_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = check(tmp_path, capsys, "--rate", "frames=20", slo="25ms")
    sentences = out[out.index("lanes in use") :].splitlines()
    assert max(map(len, sentences)) <= 60 and "   " in [line[:3] for line in sentences]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say how often each app is asked"),
        (["--rate", "20"], "say of which app it is, such as --rate frames=20"),
        (["--rate", "frams=20"], "there is no app 'frams'; did you mean 'frames'"),
        (["--rate", "frames=20", "--in-time", "0"], "--in-time 0"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, capsys, arguments, words):
    status, _, err = check(tmp_path, capsys, *arguments)
    assert status == 2
    assert words in err


def test_the_break_is_found_by_doubling_and_bisecting():
    def report(load):
        return Report({"a": AppReport(offered=1000, in_time=1000 if load <= 3.0 else 900)}, AppReport(), {}, 1, 1.0)

    found = first_break(report, report(1.0), {"a": 10.0}, 0.99)
    assert found.app == "a"
    assert 3.0 < found.load <= 3.25
    below = first_break(lambda load: report(8 * load), report(8.0), {"a": 10.0}, 0.99)
    assert 3 / 8 < below.load <= 0.5
    assert first_break(lambda load: report(1.0), report(1.0), {"a": 10.0}, 0.99).app == ""


def test_a_check_is_bounded_in_loads_and_in_requests(monkeypatch):
    monkeypatch.undo()  # the bounds of the tool itself
    draw = random.Random("bounds")
    for _ in range(200):
        breaks_at, asked = 10 ** draw.uniform(-3, 3), []

        def simulated(load, breaks_at=breaks_at, asked=asked):
            asked.append(load)
            return Report({"a": AppReport(offered=100, in_time=100 * (load < breaks_at))}, AppReport(), {}, 3, 1.0)

        first_break(simulated, simulated(1.0), {"a": 1.0}, 0.99)
        assert len(asked) <= 4 + tool.STEPS
        rate, slo = 10 ** draw.uniform(-2, 5), f"{10 ** draw.uniform(0, 5):.0f}ms"
        made = tool.scenario_of(
            {
                "model": {"m": {"engine": "synthetic", "expected": {"1": "1ms"}}},
                "app": {"a": {"model": "m", "slo": slo}},
            },
            {("a", ""): rate},
            "poisson",
            ".",
            "",
            False,
        )
        assert tool.duration_of(made, 1.0) * rate <= tool.REQUESTS_MAX + 1e-6


@pytest.mark.parametrize(("slo", "rate", "status"), [("15ms", 0.02, 0), ("5ms", 0.02, 1), ("5ms", 1e-9, 1)])
def test_rare_requests_are_judged_by_requests_that_were_simulated(tmp_path, capsys, slo, rate, status):
    found, out, _ = check(tmp_path, capsys, "--rate", f"frames={rate}", "--json", slo=slo)
    app = json.loads(out)["apps"]["frames"]
    assert found == status
    assert app["in_time"] is None if rate < 1e-6 else (app["in_time"] > 0.9) == (status == 0) and app["p99_ms"] > 5
    if rate < 1e-6:
        assert not re.search(r"holds|100\.0%", check(tmp_path, capsys, "--rate", f"frames={rate}", slo=slo)[1])


@pytest.mark.worlds
def test_work_that_never_fits_is_given_the_answers_of_the_robot_page(tmp_path, capsys):
    robot = """
[lane.gpu0]
[model.detect]
engine = "synthetic"
expected = {1 = "12ms"}
[model.describe]
engine = "synthetic"
expected = {1 = "80ms"}
[app.perceive]
model = "detect"
slo = "25ms"
class = "critical"
stream = "newest_wins"
[app.describe]
model = "describe"
slo = "8s"
class = "background"
"""
    path = tmp_path / "edge.toml"
    path.write_text(robot, encoding="utf-8")
    status = cli.main(["check", str(path), "--rate", "perceive=30", "--rate", "describe=1", "--arrivals", "periodic"])
    out = capsys.readouterr().out
    assert status == 1
    assert re.search(r"describe +1/s +0.0%", out)  # not even the last ones, whose frames stop with the load
    assert "no deadline helps" in out and "a longer deadline" not in out
    assert "a lane of its own" in out and "100.0% of describe are in time then" in out
    assert re.search(r"the model in 4 parts of at most 20ms", out)
    assert re.search(r'background_wait = "\S+": .* and only [\d.]+% of perceive', out)


LANGUAGE = """
[model.chat]
engine = "synthetic"
batch = [1, 2, 4]
expected = { 1 = "10ms", 2 = "11ms", 4 = "12ms" }
options = { sequence = { context_tokens = 1024 } }
[app.assistant]
model = "chat"
slo = "4s"
"""


def language(tmp_path, capsys, *arguments):
    path = tmp_path / "edge.toml"
    path.write_text(LANGUAGE, encoding="utf-8")
    status = cli.main(["check", str(path), "--rate", "assistant=2", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.worlds
def test_a_language_model_answers_step_by_step_in_the_time_of_its_answers(tmp_path, capsys):
    status, said = language(tmp_path, capsys, "--tokens", "assistant=60/40")
    assert status == 0
    assert said["apps"]["assistant"]["policy"] == "plan"
    assert said["apps"]["assistant"]["p99_ms"] > 400  # forty steps of ten milliseconds, not one
    assert 2 < 2 * said["first_break"]["load"] < 12  # answers a second: four of 40 steps at a time are some 8
    assert said["assumed"] == ["assistant is simulated with prompts of 60 tokens on average and answers of 40"]


@pytest.mark.worlds
def test_without_lengths_each_answer_is_as_long_as_the_model_allows(tmp_path, capsys):
    status, said = language(tmp_path, capsys)
    assert status == 1
    assert "each answer of 256, as many as chat may make" in said["assumed"][0]


@pytest.mark.parametrize("word", ["assistant", "assistant=60", "assistant=0/5", "other=1/1"])
def test_lengths_that_cannot_be_meant_are_refused(word):
    with pytest.raises(ConfigError, match="--tokens"):
        read_lengths([word], ["assistant"])


def test_a_profile_says_how_long_steps_and_prompts_take():
    timings = {size: Timing(9, ms * 10**6, ms * 10**6, ms * 10**6, 0) for size, ms in ((1, 10), (2, 11), (4, 12))}
    profile = Profile("chat", "here", {"cpu0": LaneProfile(timings, prompt_token_ns=50_000)})
    edge = {
        "model": {"chat": {"engine": "lm", "batch": [1, 2, 4], "options": {"max_tokens": 30}}},
        "app": {"assistant": {"model": "chat", "slo": "4s"}},
        "run": {"duration": "2s", "step_cost": "0us"},
    }
    hints = {"tokens": 200, "answer_tokens": 20}
    alone = {**edge, "workload": {"people": {"app": "assistant", "rate": 1.0, "kind": "periodic", "hints": hints}}}
    scenario, assumed = with_language_models(parse_scenario(alone), ["chat"], [profile], {})
    ended = simulate(scenario, 1, [profile]).world.ended
    assert assumed == []
    assert [round((item.end_ns - item.request.arrival_ns) / 1e6) for item in ended] == [210, 210]


@pytest.mark.worlds
def test_a_table_sets_the_quality_of_variants_against_the_rate_that_each_keeps_up_with(tmp_path, capsys):
    variants = """batch = [1, 2]
expected = { 1 = "20ms", 2 = "30ms" }
variants = { slow = 0.9, quick = 0.7 }
[model.quick]
engine = "synthetic"
expected = { 1 = "2ms" }"""
    _, out, _ = check(tmp_path, capsys, "--rate", "frames=60", "--json", detect=variants, slo="70ms")
    rows = json.loads(out)["variants"]["frames"]
    assert [(name, row["quality"], row["batch"]) for name, row in rows.items()] == [
        ("detect", 1.0, 2),
        ("slow", 0.9, 1),
        ("quick", 0.7, 1),
    ]
    assert [round(row["sustainable"]) for row in rows.values()] == [67, 50, 500]
    assert sum(row["answers"] for row in rows.values()) == pytest.approx(1.0)
    assert rows["quick"]["answers"] > 0.0
    _, out, _ = check(tmp_path, capsys, "--rate", "frames=60", detect=variants, slo="35ms")
    assert re.search(r"frames +detect +1 +1 +20ms +too slow", out)
