"""Results that a hung lane returns late, when the request has gone on without it."""

from __future__ import annotations

import threading

from serving import wait_until

from edgeserve import App, Model, Node, Runtime


def test_a_lost_member_that_comes_back_late_has_no_part_in_the_answer():
    """The answer's reason says that it was lost, and an ensemble's quality counts it as missing."""
    back, rest = threading.Event(), threading.Event()

    def hangs(item):
        back.wait(30)
        return {"a": 1}

    def waits(item):
        rest.wait(30)
        return {"b": 2}

    models = {
        "hangs": Model(hangs, lanes=["cpu0"]),
        "waits": Model(waits, lanes=["cpu1"]),
        "votes": Model(lambda item: {"votes": sorted(item)}, lanes=["cpu2"]),
    }
    lanes = {"cpu0": {"hang": "200ms"}, "cpu1": {"hang": "30s"}, "cpu2": {}}
    members = [Node(name, after=[]) for name in ("hangs", "waits")]
    join = Node("votes", after=["hangs", "waits"], join=1, inputs={"a": "hangs.a", "b": "waits.b"})
    app = App(*members, join, slo="60s", on_late="partial", policy="edf")
    with Runtime(models=models, apps={"a": app}, lanes=lanes, policies={"edf": {}}) as runtime:

        def state():
            return runtime.stats()["lanes"]["cpu0"]["state"]

        future = runtime.submit("a", {})
        wait_until(lambda: state() != "up")
        back.set()
        wait_until(lambda: state() == "up")
        rest.set()
        answer = future.result(30)
        assert answer["votes"] == ["b"] and answer.branches == ("waits",)
        assert answer.reason == "without hangs: lost"
