"""Clients of the front: tokens with and without names, and what an address counts as."""

from __future__ import annotations

import pytest

from edgeserve.errors import ConfigError, Rejected
from edgeserve.front import Places
from edgeserve.front.origins import _of_address, origin_of, read_tokens

LONG, OTHER = "0123456789abcdef", "fedcba9876543210"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "short",
        "a token with spaces in it",
        "ümlauts-are-no-token-here",
        f"{LONG}\n{OTHER}",
        f"a {LONG}\n{OTHER}",
        f"a {LONG}\na {OTHER}",
        f"a {LONG}\nb {LONG}",
        f"na@me {LONG}",
        "a short",
        "\n".join(f"n{index} {LONG}{index}" for index in range(257)),
    ],
)
def test_a_file_of_tokens_is_one_token_or_lines_of_names(tmp_path, content):
    (tmp_path / "token").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^\[front.http\] token_file = "):
        read_tokens(str(tmp_path / "token"), "[front.http] token_file")


def test_a_token_lets_in_and_tells_the_name(tmp_path):
    (tmp_path / "token").write_text(f" {LONG}\n")
    one = read_tokens(str(tmp_path / "token"))
    assert (one.name_of(f"Bearer {LONG}"), one.name_of(f"Bearer {OTHER}"), one.name_of("")) == ("", None, None)
    (tmp_path / "token").write_text(f"kitchen {LONG}\n\nhall {OTHER}\n")
    two = read_tokens(str(tmp_path / "token"))
    assert [two.name_of(f"Bearer {token}") for token in (LONG, OTHER, LONG[:-1])] == ["kitchen", "hall", None]
    assert one and two and not read_tokens("")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "address", "origin"),
    [
        ("kitchen", "192.0.2.7", "token:kitchen"),
        ("", "192.0.2.7", "address:192.0.2.7"),
        ("", "::ffff:192.0.2.7", "address:192.0.2.7"),
        ("", "2001:db8:1:2:3:4:5:6", "address:2001:db8:1:2::"),
        ("", "[2001:db8:1:2::9]", "address:2001:db8:1:2::"),
        ("", "fe80::1%eth0", "address:fe80::"),
        ("", "", "address:unknown"),
        ("", "somewhere", "address:unknown"),
    ],
)
def test_a_client_is_its_token_or_its_address(name, address, origin):
    assert origin_of(name, address) == origin


def test_one_client_cannot_take_the_last_places_from_the_others():
    places = Places(8)
    for _ in range(7):
        places.enter("a")
    places.enter("b")  # beside it, so that the next place goes to the one that has less
    places.leave("a")
    with pytest.raises(Rejected, match="a has 6 requests") as caught:
        places.enter("a")
    assert caught.value.reason == "too many in flight"
    places.enter("b")
    with pytest.raises(Rejected, match="this front has 8 requests"):
        places.enter("c")
    for origin in "aaaaaabb":
        places.leave(origin)
    assert places.count == 0 and places._of == {}
    for _ in range(8):
        places.enter("alone")


def test_an_origin_is_kept_for_the_next_request_but_never_without_bound():
    _of_address.cache_clear()
    for number in range(3000):
        assert origin_of("", f"10.0.{number // 256}.{number % 256}") == f"address:10.0.{number // 256}.{number % 256}"
    assert _of_address.cache_info().currsize <= 1024
    assert origin_of("kitchen", "10.0.0.1") == "token:kitchen"


def test_one_client_alone_leaves_places_that_last_to_those_to_come():
    places = Places(1000, "bytes", "grpc_bytes_max", lasting=True)
    places.enter("a", 700)
    places.enter("a", 50)
    with pytest.raises(Rejected, match=r"a has 750 bytes .* no room for 1 more; .* raise grpc_bytes_max"):
        places.enter("a")
    places.enter("b", 250)
    with pytest.raises(Rejected, match="this front has 1000 bytes"):
        places.enter("b", 1)
    places.leave("a", 600)
    places.enter("b", 200)
    places.leave("a", 150)
    places.leave("b", 450)
    assert places.count == 0


def test_places_of_nothing_leave_no_origin_behind():
    """An empty body is no part of what others share."""
    places = Places(16)
    for number in range(16):
        places.enter(f"address:{number}", 0)
    places.enter("one", 12)
    places.enter("one", 4)
    places.leave("one", 16)
    places.leave("one", 0)
    assert places.count == 0
