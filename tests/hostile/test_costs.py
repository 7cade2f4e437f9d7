"""Small messages that cost the loop much: questions, and names that are nearly right."""

from __future__ import annotations

import time
from typing import Any, Iterator

import msgpack
import numpy as np
import pytest
import zmq
from bus_server import dealer

from edgeserve import errors
from edgeserve.config.loading import parse_config
from edgeserve.errors import RequestError, sent_instead, with_nearest
from edgeserve.ipc import wire
from edgeserve.ipc.costs import COST_NS_MAX, COST_SHARE, Account
from edgeserve.live.runtime_core import RuntimeCore
from edgeserve.runtime import Runtime

COUNT = 300
COST_S = 0.002


@pytest.fixture
def endpoint(tmp_path: Any) -> Iterator[str]:
    config = {
        "server": {"endpoint": f"ipc://{tmp_path}/bus"},
        "model": {"m": {"engine": "synthetic", "batch": [1], "expected": {"1": "1ms"}}},
        "app": {"mine": {"model": "m", "slo": "1s"}},
    }
    with Runtime(parse_config(config), serve=True) as runtime:
        yield runtime.endpoints[0]


def replies(endpoint: str, **fields: Any) -> Any:
    """The replies to ``COUNT`` messages that are sent at once."""
    with zmq.Context() as context, dealer(context, endpoint, rcvtimeo=20_000, sndhwm=0, rcvhwm=0) as one:
        for key in range(COUNT):
            one.send(b"\x01" + msgpack.packb({"id": key, **fields}))
        found = [wire.decode_reply(one.recv_multipart(), 10**6) for _ in range(COUNT)]
    assert sorted(reply.key for reply in found) == list(range(COUNT))
    return found


def counted(what: Any) -> Any:
    """A function that is slow, and how often it was called."""

    def call(*arguments: Any) -> Any:
        call.count += 1  # type: ignore[attr-defined]
        time.sleep(COST_S)
        return what(*arguments)

    call.count = 0  # type: ignore[attr-defined]
    return call


def test_a_question_that_is_asked_all_the_time_is_answered_seldom(endpoint: str, monkeypatch: Any) -> None:
    stats = counted(RuntimeCore.stats)
    monkeypatch.setattr(RuntimeCore, "stats", lambda core: stats(core))
    assert all(reply.info["open"] == 0 for reply in replies(endpoint, kind="stats"))
    assert 0 < stats.count < COUNT // 4


def test_names_that_are_nearly_right_are_seldom_compared(endpoint: str, monkeypatch: Any) -> None:
    nearest = counted(errors.nearest)
    monkeypatch.setattr(errors, "nearest", nearest)
    found = [str(reply.error) for reply in replies(endpoint, kind="infer", app="mime")]
    assert found[0] == "no app 'mime' is served here; did you mean 'mine'?"
    assert found[-1] == "no app 'mime' is served here"
    assert 0 < nearest.count < COUNT // 2


def test_an_account_is_over_after_a_burst_and_not_for_long() -> None:
    account = Account()
    account.charge(COST_NS_MAX, 10**9)
    assert not account.is_over(10**9)
    account.charge(10**6, 10**9)
    assert account.is_over(10**9)
    assert not account.is_over(10**9 + COST_SHARE * 10**6)


def test_a_users_processes_share_its_account() -> None:
    user = Account()
    user.processes = 12
    crowd, at_ns = [Account(user) for _ in range(11)], 10**9
    quiet = Account(user)
    for account in crowd:
        account.charge(COST_NS_MAX // 10, at_ns)
    assert all(account.is_over(at_ns) for account in crowd), "together they had more than one may have"
    assert not quiet.is_over(at_ns)
    assert Account(user, at_ns).is_over(at_ns), "a new process is no way out"
    later_ns = at_ns + COST_SHARE * COST_NS_MAX
    assert not any(account.is_over(later_ns) for account in crowd)


def test_an_error_finds_its_ending_once(monkeypatch: Any) -> None:
    calls = []
    monkeypatch.setattr(errors, "nearest", lambda name, known: calls.append(name) or "; did you mean 'a'?")
    error = with_nearest(RequestError("b is unknown"), "b", {"a": np.zeros(1)})
    assert calls == []
    assert [str(error), str(error)] == ["b is unknown; did you mean 'a'?"] * 2
    assert calls == ["b"]


def test_what_was_sent_instead_is_sought_among_few(monkeypatch: Any) -> None:
    compared = []
    monkeypatch.setattr(errors.difflib, "get_close_matches", lambda name, known, n: compared.extend(known) or [])
    assert len(sent_instead("image", [f"imagf{number}" for number in range(60)], ["image"])) < 200
    assert len(compared) < 10
