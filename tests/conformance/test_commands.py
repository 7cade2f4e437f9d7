"""Every verb of the command line, and every front's command, against the contract of commands."""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence

import pytest
from serving import function, served
from short_check import shorten

from edgeserve import cli
from edgeserve.commands import front
from edgeserve.testing.command_conformance import CommandConformance, Ran

INPUTS = {"x": {"dtype": "float32", "shape": [2]}}
CONFIG = {
    "app": {"echo": {"model": "echo", "slo": "10s", "inputs": INPUTS}},
    "model": {"echo": function("double", batch=[1])},
}
EDGE = """
[model.m]
engine = "synthetic"
expected = { 1 = "1ms" }

[app.a]
model = "m"
slo = "20ms"
"""


SCENARIO = """
config = "edge.toml"
run = { duration = "1s", seeds = 1 }
workload.w = { app = "a", kind = "poisson", rate = 20 }
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with served(CONFIG) as (runtime, _):
        yield runtime.endpoints[0]


class VerbConformance(CommandConformance):
    """A verb of ``edgeserve``, in a folder with ``edge.toml`` and, for ``ENDPOINT``, a running server."""

    @pytest.fixture(autouse=True)
    def _with_files(self, tmp_path: Any, request: pytest.FixtureRequest, _in_an_empty_folder: None) -> None:
        (tmp_path / "edge.toml").write_text(EDGE)
        (tmp_path / "scenario.toml").write_text(SCENARIO)
        self.endpoint = request.getfixturevalue("endpoint") if "ENDPOINT" in self.words else ""

    def run(self, words: Sequence[str]) -> Ran:
        return super().run([self.endpoint if word == "ENDPOINT" else word for word in words])


SERVER = ("--endpoint", "ENDPOINT")
ABSENT = ("--endpoint", "ipc:///absent/bus")


class TestInit(VerbConformance):
    verb, missing = "init", ("--here", "absent.onnx")  # in this process, whose output is read


class TestServe(VerbConformance):
    verb, missing = "serve", ("absent.toml",)


class TestFront(VerbConformance):
    verb, missing = "front", ("absent",)

    def options(self) -> List[str]:
        return []

    def test_an_unknown_option_is_refused_with_the_nearest_and_does_nothing(self) -> None:
        assert self.run(["--absent"]).status == 2


class TestChat(VerbConformance):
    verb, missing = "chat", ("absent.gguf",)


class TestInfer(VerbConformance):
    verb, figures = "infer", True
    words, missing = ("echo", "--example", *SERVER), ("echo", "--in", "x=absent.npy")


class TestStory(VerbConformance):
    verb = "story"
    words, missing = ("1", *SERVER), ("1", *ABSENT)


class TestTop(VerbConformance):
    verb, figures = "top", True
    words, missing = ("--count", "1", *SERVER), ABSENT


class TestTopOfADevice(VerbConformance):
    verb, figures = "top", True
    words, missing = ("--device", "--count", "1"), ("--replay", "absent.txt")


class TestRecord(VerbConformance):
    verb = "record"
    words, missing = ("--seconds", "0.1", *SERVER), ("--from", "absent.jsonl")


class TestReload(VerbConformance):
    verb = "reload"
    words, missing = ("echo", *SERVER), ABSENT


class TestProfile(VerbConformance):
    verb, figures = "profile", True
    words = ("edge.toml", "--no-machine", "--seconds", "0.01", "--out", "profiles")
    missing = ("absent.toml",)


class TestCheck(VerbConformance):
    verb, figures = "check", True
    words, missing = ("edge.toml", "--rate", "a=5"), ("absent.toml", "--rate", "a=5")

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shorten(monkeypatch)


class TestSimulate(VerbConformance):
    verb, figures = "simulate", True
    words, missing = ("scenario.toml",), ("absent.toml",)


class TestBench(VerbConformance):
    verb, figures = "bench", True
    words, missing = ("--in-flight", "1", "--seconds", "0.1", *SERVER), ABSENT


class TestDoctor(VerbConformance):
    verb, figures = "doctor", True
    words, missing = ("--quick",), ("--root", "absent")


class FrontConformance(VerbConformance):
    """A front's command; ``words`` stay empty, since it serves until a signal."""

    verb = "front"
    front = ""

    def parser(self) -> Any:
        return front.front_parser(self.front)[0]

    def command(self) -> List[str]:
        return ["front", self.front]


class TestHttp(FrontConformance):
    front, missing = "http", ("absent.toml",)


class TestWyoming(FrontConformance):
    front, missing = "wyoming", ("absent.toml", "--apps", "asr=hear")


class TestMqtt(FrontConformance):
    front, missing = "mqtt", ("absent.toml",)


class TestFrigate(FrontConformance):
    front, missing = "frigate", ("absent.toml", "--app", "detect")


class TestCamera(FrontConformance):
    front, missing = "camera", ("absent.toml", "--source", "test", "--app", "detect")


class TestBag(FrontConformance):
    front, missing = "bag", ("absent.mcap", "--app", "detect")


def test_every_verb_and_every_front_has_its_class() -> None:
    made = [each for each in globals().values() if isinstance(each, type) and issubclass(each, VerbConformance)]
    assert {each.verb for each in made} >= set(cli.VERBS)
    assert {each.front for each in made if issubclass(each, FrontConformance)} >= set(front.FRONTS)
