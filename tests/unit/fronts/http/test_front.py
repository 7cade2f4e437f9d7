"""Checks before the front starts, and its settings from file and arguments."""

from __future__ import annotations

import socket

import pytest

from edgeserve.commands.doctor.configuration import check_front
from edgeserve.commands.doctor.finding import GOOD, WRONG
from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError
from edgeserve.front.registry import front_of
from edgeserve.fronts.http import front
from edgeserve.fronts.http.front import HttpFront
from edgeserve.fronts.http.settings import HttpConfig


@pytest.mark.parametrize("place", ["8000", ":8000", "localhost", "localhost:http", "localhost:70000", ""])
def test_a_place_is_host_and_port(place):
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        front.bind("listen", place)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(front.importlib.util, "find_spec", lambda name: name)


def test_beyond_loopback_a_token_is_needed(installed, tmp_path):
    for place in ("127.0.0.1:8000", "[::1]:0", "localhost:0"):
        front.check_http(HttpConfig(listen=place, grpc=place))
    for key, config in (
        ("listen", HttpConfig(listen="0.0.0.0:8000")),
        ("listen", HttpConfig(listen="127.0.0.1.example.com:8000")),
        ("grpc", HttpConfig(grpc="host:1")),
    ):
        with pytest.raises(ConfigError, match=rf"{key} = .*token_file"):
            front.check_http(config)
    (tmp_path / "token").write_text("a-long-enough-token-for-all\n")
    front.check_http(HttpConfig(listen="0.0.0.0:8000", token_file=str(tmp_path / "token")))


def test_missing_packages_are_named_with_their_extra(monkeypatch):
    monkeypatch.setattr(front.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"starlette, uvicorn: pip install 'edgeserve-runtime\[http\]'"):
        front.check_http(HttpConfig())
    monkeypatch.setattr(front.importlib.util, "find_spec", lambda name: None if name == "grpc" else name)
    front.check_http(HttpConfig())
    with pytest.raises(ConfigError, match=r"runtime\[grpc\]"):
        front.check_http(HttpConfig(grpc="127.0.0.1:8001"))


def test_a_port_in_use_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match=r"listen = .*cannot listen there"):
            front.bind("listen", f"127.0.0.1:{other.getsockname()[1]}")


def test_the_doctor_says_what_would_keep_the_front_from_starting(installed):
    good = check_front(parse_config({"front": {"http": {"listen": "127.0.0.1:0"}}}), "http")
    assert (good.status, good.text) == (GOOD, "127.0.0.1:0")
    wrong = check_front(parse_config({"front": {"http": {"listen": "0.0.0.0:8000"}}}), "http")
    assert wrong.status == WRONG and "token_file" in wrong.text


def test_the_table_is_optional_and_checked():
    assert parse_config({}).fronts == {}
    assert front_of("http", {}) == (HttpFront, HttpConfig())
    assert front_of("http", {"body_max": "1MiB", "timeout": "5s"})[1].body_bytes_max == 1024**2
    with pytest.raises(ConfigError, match=r"\[front.http\] has no key 'liste'.*did you mean 'listen'"):
        front_of("http", {"liste": "x"})
