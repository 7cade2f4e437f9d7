"""Which settings a front has: the arguments of its command go before its table, where they are given."""

from __future__ import annotations

import os
import sys
import types
from dataclasses import dataclass
from typing import Dict, Tuple

import pytest

from edgeserve import cli
from edgeserve.commands import fronts
from edgeserve.commands.front import front_parser
from edgeserve.config.installed import Installed
from edgeserve.config.json_schema import meanings_of
from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError
from edgeserve.front import Front, FrontSettings, boolean, entry, integer, registry, string, table_of, tuple_of
from edgeserve.front.processes import FrontProcesses
from edgeserve.front.registry import SETTINGS, entries_of, settings_class

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = """
[model.m]
engine = "synthetic"
[app.a]
model = "m"
[front.camera]
source = "test"
app = "a"
score = 0.3
rate = 7
lines = "boxes.json"
[front.frigate]
app = "a"
score = 0.3
[front.http]
listen = "127.0.0.1:1"
grpc = "127.0.0.1:2"
token_file = "token"
"""


@dataclass(frozen=True)
class LineSettings(FrontSettings):
    place: int = entry(integer(1, 8), 1)  # of the line
    words: Tuple[str, ...] = entry(tuple_of(string), ())  # that are said
    ports: Dict[str, str] = entry(table_of(string), factory=dict)  # by name
    twice: bool = entry(boolean, False)  # said again


class LineFront(Front):
    Settings = LineSettings


@dataclass(frozen=True)
class BareSettings(FrontSettings):
    place: int = entry(integer(1, 8), 1)


class BareFront(Front):
    Settings = BareSettings


@pytest.fixture
def settings_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge.toml").write_text(TABLE)

    class Stop(Exception):
        pass

    def settings_of(*words):
        found = []

        def run_front(made, settings, *rest, **options):
            found.append(settings)
            raise Stop

        monkeypatch.setattr(fronts, "run_front", run_front)
        with pytest.raises(Stop):
            cli.main(["front", *words])
        return found[0]

    return settings_of


def test_what_no_argument_says_is_the_tables(settings_of):
    settings = settings_of("camera", "edge.toml", "--source", "test", "--app", "a")
    assert (settings.score, settings.rate) == (0.3, 7)
    assert settings_of("frigate", "edge.toml").score == 0.3


def test_an_argument_goes_first_and_zero_and_nothing_are_values(settings_of):
    settings = settings_of(
        "camera", "edge.toml", "--source", "test", "--app", "a", "--score", "0", "--rate", "0", "--lines", ""
    )
    assert (settings.score, settings.rate, settings.lines) == (0.0, 0.0, "")
    assert settings_of("frigate", "edge.toml", "--score", "0").score == 0.0


def test_files_of_the_table_lie_beside_it_and_those_of_arguments_where_one_is(settings_of, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("")
    monkeypatch.chdir(elsewhere)
    settings = settings_of("http", "../edge.toml", "--listen", "127.0.0.1:3")
    assert (settings.listen, settings.grpc) == ("127.0.0.1:3", "127.0.0.1:2")
    assert os.path.samefile(settings.token_file, tmp_path / "token")
    settings = settings_of("http", "../edge.toml", "--token-file", "mine")
    assert os.path.samefile(settings.token_file, elsewhere / "mine")
    assert settings_of("http").listen == "127.0.0.1:8000"


@pytest.mark.parametrize(
    "words",
    [("camera", "--app", "a", "--score", "7"), ("frigate", "--app", "a", "--timeout-ms", "-1")],
)
def test_an_argument_is_checked_as_the_table_is(capsys, words):
    assert cli.main(["front", *words]) == 2
    assert f"{words[-2]} = {float(words[-1])}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "keys", "words", "key", "option"),
    [
        (
            "camera",
            'source = "test"\npage = "here"',
            ("--source", "test", "--app", "a", "--page", "here"),
            "page",
            "--page",
        ),
        (
            "camera",
            'source = "test"\nlabels_file = "no"',
            ("--source", "test", "--app", "a", "--labels-file", "no"),
            "labels_file",
            "--labels-file",
        ),
        ("frigate", 'form = "x"', ("--app", "a", "--form", "x"), "form", "--form"),
        ("mqtt", 'name = "a b"', ("--name", "a b"), "name", "--name"),
        ("mqtt", 'cameras = { door = "x" }', ("--cameras", "door=x"), "detect", "--detect"),
        ("mqtt", 'discovery = "home/#"', ("--discovery", "home/#"), "discovery", "--discovery"),
        ("mqtt", 'publish = ["a/#/b"]', ("--publish", "a/#/b"), "publish", "--publish"),
        ("mqtt", 'detect = "a"\ncameras = { door = "" }', None, "cameras", ""),
        ("mqtt", 'password_file = "no"', ("--password-file", "no"), "password_file", "--password-file"),
        ("mqtt", 'labels_file = "no"', ("--labels-file", "no"), "labels_file", "--labels-file"),
        ("wyoming", 'listen = "x"\napps = { tts = "a" }', ("--apps", "tts=a", "--listen", "x"), "listen", "--listen"),
        ("wyoming", "tts_rate = 7", (), "apps", "--apps"),
        ("http", 'listen = "0.0.0.0:0"', ("--listen", "0.0.0.0:0"), "listen", "--listen"),
    ],
)
def test_an_error_names_the_key_where_it_was_set(capsys, monkeypatch, tmp_path, kind, keys, words, key, option):
    for library in {"mqtt": ["aiomqtt"], "wyoming": ["wyoming"]}.get(kind, []):
        pytest.importorskip(library, reason=f"the front needs {library}")
    monkeypatch.chdir(tmp_path)
    app = 'app = "a"\n' if kind in ("camera", "frigate") else ""
    with pytest.raises(ConfigError) as caught:
        FrontProcesses(parse_config(tomllib.loads(f'[front.mine]\nkind = "{kind}"\n{app}{keys}\n')))
    assert f"[front.mine] {key}" in str(caught.value) and "--" not in str(caught.value)
    if words is not None:
        assert cli.main(["front", kind, *words]) == 2
        said = capsys.readouterr().err
        assert option in said and "[front." not in said


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_key_of_a_table_is_an_option_with_its_default_and_meaning(kind):
    parser, _ = front_parser(kind)
    options = {action.option_strings[0]: action for action in parser._actions if action.option_strings}
    for key, item in entries_of(settings_class(kind)).items():
        action = options["--" + key.replace("_", "-")]
        assert action.default is None, "what no option says is the table's"
        assert meanings_of(settings_class(kind))[item.name] in action.help.replace("%%", "%")


def test_a_front_that_another_package_installs_has_its_keys_as_options(monkeypatch):
    monkeypatch.setattr(registry, "installed", lambda group: {"line": Installed("line_package:LineFront", "line")})
    monkeypatch.setitem(sys.modules, "line_package", types.SimpleNamespace(LineFront=LineFront))
    parser, _ = front_parser("line")
    args = parser.parse_args(["--place", "8", "--words", "a", "--words", "b", "--ports", "x=1", "--twice"])
    settings = fronts.settings_with(args, LineSettings())
    assert (settings.place, settings.words, settings.ports, settings.twice) == (8, ("a", "b"), {"x": "1"}, True)
    assert settings.where("place") == "--place"


def test_a_key_without_a_comment_is_an_option_all_the_same(monkeypatch, capsys):
    monkeypatch.setattr(registry, "installed", lambda group: {"bare": Installed("bare_package:BareFront", "bare")})
    monkeypatch.setitem(sys.modules, "bare_package", types.SimpleNamespace(BareFront=BareFront))
    with pytest.raises(SystemExit) as ended:
        cli.main(["front", "bare", "--help"])
    assert ended.value.code == 0 and "the key place of [front.NAME]" in capsys.readouterr().out
