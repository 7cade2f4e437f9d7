"""Pages in browsers: which origins may ask, preflights, headers on errors; tokens, slashes at the end of paths."""

from __future__ import annotations

import pytest
from http_front import FrontThread
from serving import function, served

from edgeserve.errors import ConfigError
from edgeserve.front.registry import front_of
from edgeserve.fronts.http.front import check_http
from edgeserve.fronts.http.settings import HttpConfig

TOKEN = "a-token-of-these-tests"
PAGE, OTHER = "https://app.example", "https://other.example"
PATHS = ["/v1/models", "/v1/chat/completions", "/v2/models/shout/infer", "/api/chat", "/page/apps", "/v2", "/nothing"]


@pytest.fixture(scope="module")
def server():
    app = {"model": "shout", "slo": "20s", "inputs": {"text": {"dtype": "text"}}}
    tables = {"model": {"shout": function("shout", "example_text", "http_functions")}, "app": {"shout": app}}
    with served(tables) as (runtime, _):
        yield runtime.endpoints[0]


@pytest.fixture(scope="module")
def open_front(server):
    with FrontThread(server, HttpConfig(listen="127.0.0.1:0", origins=(PAGE,))) as thread:
        yield thread


@pytest.fixture(scope="module")
def locked(server, tmp_path_factory):
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN)
    settings = HttpConfig(listen="127.0.0.1:0", origins=(PAGE, "http://localhost:5173"), token_file=str(token))
    with FrontThread(server, settings) as thread:
        yield thread


def preflight(front, path, origin, **more):
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        "Sec-Fetch-Site": "cross-site",
        **more,
    }
    return front.ask_raw("OPTIONS", path, None, asked)


@pytest.mark.parametrize("path", PATHS)
def test_a_preflight_is_answered_before_the_token_is_looked_at(locked, open_front, path):
    for front in (locked, open_front):
        status, _, told = preflight(front, path, PAGE)
        assert status == 204 and told["access-control-allow-origin"] == PAGE
        assert "POST" in told["access-control-allow-methods"]
        assert "x-stainless-os" in told["access-control-allow-headers"] and "Origin" in told["vary"]
        status, _, told = preflight(front, path, OTHER)
        assert status >= 400 and "access-control-allow-origin" not in told


def test_a_page_of_the_internet_may_ask_a_machine_at_home(locked):
    told = preflight(locked, "/v1/models", PAGE, **{"Access-Control-Request-Private-Network": "true"})[2]
    assert told["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("authorization", ["", f"Bearer {TOKEN}"])
def test_every_answer_tells_an_allowed_page_that_it_may_read_it(locked, path, method, authorization):
    headers = {"Authorization": authorization} if authorization else {}
    told = locked.ask_raw(method, path, b"{", {**headers, "Origin": PAGE})[2]
    assert told["access-control-allow-origin"] == PAGE and told["vary"] == "Origin"
    told = locked.ask_raw(method, path, b"{", {**headers, "Origin": OTHER})[2]
    assert "access-control-allow-origin" not in told


def test_without_a_token_only_named_pages_may_ask(open_front):
    for site in ("cross-site", "same-site"):
        headers = {"Origin": PAGE, "Sec-Fetch-Site": site}
        assert open_front.ask("GET", "/v1/models", None, headers)[0] == 200
        assert open_front.ask("GET", "/v1/models", None, {**headers, "Origin": OTHER})[0] == 403
        assert open_front.ask("GET", "/v1/models", None, {"Sec-Fetch-Site": site})[0] == 403
        assert open_front.ask("GET", "/v1/models", None, {**headers, "Host": "evil.example"})[0] == 403


def test_no_page_may_ask_by_default(server):
    with FrontThread(server, HttpConfig(listen="127.0.0.1:0")) as front:
        status, _, told = front.ask_raw("GET", "/v1/models", None, {"Origin": PAGE})
        assert status == 403 and "access-control-allow-origin" not in told and "vary" not in told


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR", "Bearer ", "bearer  "])
def test_the_case_of_bearer_means_nothing(locked, scheme):
    assert locked.ask("GET", "/v1/models", None, {"Authorization": f"{scheme} {TOKEN}"})[0] == 200


@pytest.mark.parametrize("shown", [TOKEN, f"Basic {TOKEN}", f"Bearer{TOKEN}", f"Bearer {TOKEN}x", "Bearer", "Bearer "])
def test_anything_else_is_no_token(locked, shown):
    assert locked.ask("GET", "/v1/models", None, {"Authorization": shown})[0] == 401


@pytest.mark.parametrize(
    "path", ["/v1/models", "/api/tags", "/api/version", "/v2", "/v2/health/ready", "/v2/models/shout"]
)
@pytest.mark.parametrize(("begin", "end"), [("", "/"), ("/", ""), ("", "//"), ("//", "/")])
def test_slashes_too_many_change_nothing_and_redirect_nowhere(open_front, path, begin, end):
    told = [open_front.ask_raw("GET", each)[:2] for each in (path, begin + path + end)]
    assert told[0] == told[1] and told[0][0] == 200


@pytest.mark.parametrize(
    "origin", ["", "app.example", "https://", "https://app.example/", "https://a.example/x", "null", "https://u@a.b", 7]
)
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ConfigError, match=r"\[front.http\] origins"):
        front_of("http", {"origins": [origin]})


def test_any_page_needs_a_token(tmp_path):
    with pytest.raises(ConfigError, match="token_file"):
        check_http(HttpConfig(origins=("*",)))
    (tmp_path / "token").write_text("a-long-enough-token-for-all\n")
    check_http(HttpConfig(origins=("*",), token_file=str(tmp_path / "token")))
    assert front_of("http", {"origins": ["HTTPS://App.Example:8443"]})[1].origins == ("https://app.example:8443",)
