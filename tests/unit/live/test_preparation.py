"""Preparation of requests by engines before these are accepted: who goes first, who must wait, and how it ends."""

from __future__ import annotations

import queue

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.engines.base import Engine
from edgeserve.errors import BadInput, EngineError, Failed, Rejected, WrongInput
from edgeserve.live.preparation import WAITING_MAX, WAITING_OF_ONE_MAX, PreparationWorker, preparers


class Made:
    def __init__(self, took_ns):
        self.took_ns = took_ns


class Preparing(Engine):
    """``form`` is how long it takes, or what is raised."""

    prepares = ("form",)

    def __init__(self):
        self.asked = []

    def prepare(self, item, owner):
        self.asked.append((item, owner))
        if isinstance(item["form"], BaseException):
            raise item["form"]
        return Made(item["form"])


class Request:
    def __init__(self, form, name="", deadline_ns=10**18, on_late="drop"):
        self.app, self.inputs, self.name = "chat", {"form": form}, name
        self.deadline_ns, self.on_late = deadline_ns, on_late


class World:
    """A worker whose thread is waited for."""

    def __init__(self):
        self.mail, self.engine = queue.Queue(), Preparing()
        self.worker = PreparationWorker(self.mail.put, lambda: 0, lambda model: self.engine)
        config = parse_config(
            {
                "model": {"lm": {"engine": "synthetic", "expected": {"1": "1ms"}}},
                "app": {
                    "chat": {"model": "lm"},
                    "behind": {
                        "node": [
                            {"name": "first", "model": "lm", "inputs": {"x": "request.x"}},
                            {"name": "then", "model": "lm", "inputs": {"form": "request.shape", "y": "first.y"}},
                        ]
                    },
                    "made": {
                        "node": [
                            {"name": "first", "model": "lm", "inputs": {"x": "request.x"}},
                            {"name": "then", "model": "lm", "inputs": {"form": "first.form"}},
                        ]
                    },
                },
            }
        )
        self.preparers = preparers(config.apps, {("lm", "cpu"): self.engine})

    def take(self, request, owner="a"):
        return self.worker.take(request, self.preparers["chat"], owner)

    def finish(self, count=1):
        done = []
        for _ in range(count):
            mail = self.mail.get(timeout=30)
            if self.worker.finish(mail):
                done.append(mail)
        return done


@pytest.fixture
def world():
    world = World()
    yield world
    world.worker.close()


def test_a_request_is_prepared_for_its_node_and_its_owner(world):
    assert world.take(Request(7)) is None
    (mail,) = world.finish()
    assert (mail.error, mail.took_ns, mail.made["lm"].took_ns) == (None, 7, 7)
    assert world.engine.asked == [({"form": 7}, "a")] and not world.worker.waiting


def test_the_one_that_has_had_least_goes_first(world):
    for number in range(4):
        world.take(Request(1000, f"a{number}"), "uid:1/pid:1")
    world.take(Request(1000, "a4"), "uid:1/pid:2")  # another process of the same user
    for number in range(2):
        world.take(Request(10, f"b{number}"), "uid:2/pid:1")
    order = [mail.request.name for mail in world.finish(7)]
    assert order == ["a0", "b0", "b1", "a1", "a2", "a3", "a4"]


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (WrongInput("no form"), BadInput, "app 'chat': no form"),
        (EngineError("is gone"), Failed, "is gone"),
        (ValueError("odd"), Failed, "ValueError: odd"),
        (SystemExit(3), Failed, "SystemExit"),
        (Rejected("too many", "over_share"), Rejected, "too many"),
    ],
)
def test_what_is_raised_is_its_own_requests_end(world, raised, kind, says):
    world.take(Request(raised, "bad"))
    world.take(Request(5, "good"))
    bad, good = world.finish(2)
    assert isinstance(bad.error, kind) and says in str(bad.error)
    assert good.error is None and good.took_ns == 5


def test_what_led_to_no_request_is_owed_by_its_owner(world):
    gone = Request(7, "gone")
    for request, owner in ((gone, "a"), (Request(5, "good"), "a"), (Request(9, "late", 50), "b")):
        world.take(request, owner)
    world.worker.forget(gone)
    world.worker.expire(60)
    world.finish(2)
    assert world.worker.owing == {"a": 7}, "one that did not begin took nothing"


def test_what_waits_is_bounded_for_all_and_for_one(world):
    refused = [world.take(Request(1), "a") for _ in range(WAITING_OF_ONE_MAX + 1)]
    assert [each is None for each in refused] == [True] * WAITING_OF_ONE_MAX + [False]
    assert refused[-1].reason == "over_share"
    others = [world.take(Request(1), f"uid:{number}/pid:1") for number in range(WAITING_MAX)]
    assert others.count(None) == WAITING_MAX - WAITING_OF_ONE_MAX and others[-1].reason == "server_full"


def test_who_has_gone_or_is_late_waits_no_longer(world):
    gone, late, patient = Request(1, "gone"), Request(1, "late", 50), Request(1, "patient", 50, "answer")
    for request in (gone, late, patient):
        world.take(request)
    assert world.worker.forget(gone) and not world.worker.forget(gone)
    assert world.worker.due_ns() == 50
    assert world.worker.expire(49) == [] and world.worker.expire(50) == [late]
    assert [mail.request.name for mail in world.finish(2)] == ["patient"]
    assert not world.worker.waiting


def test_an_app_is_prepared_where_the_request_itself_brings_what_its_node_reads(world):
    behind = world.preparers["behind"]
    assert "made" not in world.preparers, "what another node makes is not there yet"
    assert behind.wants({"shape": 1}) and not behind.wants({"form": 1}) and not behind.wants({"shape": None})
    made, took_ns = behind.prepare({"shape": 9, "x": 1}, "a", lambda model: world.engine)
    assert list(made) == ["then"] and took_ns == 9
    assert behind.prepare({"shape": 9}, "a", lambda model: None) == ({}, 0), "its model is not loaded now"
