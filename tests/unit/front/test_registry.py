"""Fronts by name: this package's, installed ones, and classes beside the configuration; their tables."""

from __future__ import annotations

import pytest

from edgeserve.config.loading import load_config, parse_config
from edgeserve.errors import ConfigError
from edgeserve.front.processes import FrontProcesses
from edgeserve.front.registry import (
    BUILT_IN,
    SETTINGS,
    front_class,
    front_of,
    own_settings,
    server_key_of,
    settings_class,
)

LINE = """
from dataclasses import dataclass
from edgeserve.errors import ConfigError
from edgeserve.front import Front, FrontSettings, entry, integer, string

@dataclass(frozen=True)
class LineSettings(FrontSettings):
    FILES = (*FrontSettings.FILES, "words")
    place: int = entry(integer(1, 9), 7)  # where
    words: str = entry(string, "")  # a file

class LineFront(Front):
    Settings = LineSettings

    @classmethod
    def check(cls, settings):
        if settings.place == 9:
            raise ConfigError("place 9 is taken")

class NoFront:
    pass
"""

BROKEN = "class LineFront(:"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module, and a package that installs a front from it."""
    name = f"line_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(LINE)
    about = tmp_path / "line-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: line\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[edgeserve.fronts]\nline = {name}:LineFront\nwrong = {name}:NoFront\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path, name


def test_a_front_that_a_package_installs_is_found_by_its_name(folder):
    made, settings = front_of("line", {"place": 3})
    assert (made.__name__, settings.place) == ("LineFront", 3)
    with pytest.raises(ConfigError, match=r"\[front.line\] has no key 'plase'.*did you mean 'place'"):
        front_of("line", {"plase": 3})
    with pytest.raises(ConfigError, match=r"\[front.line\] place = 12: expected a whole number from 1 to 9"):
        front_of("line", {"place": 12})


def test_a_class_beside_the_configuration_is_named_with_its_module(folder):
    path, name = folder
    (path / "words").write_text("")
    made, settings = front_of("mine", {"kind": f"{name}:LineFront", "words": "words"}, str(path))
    assert (made.__name__, settings.words) == ("LineFront", str(path / "words"))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "front 'mine' is neither installed nor kind = 'module:Class'"),
        ({"kind": "wyomin"}, "did you mean 'wyoming'"),
        ({"kind": 7}, r"\[front.mine\] kind = 7: expected a string"),
        ({"kind": "no_such_module:Front"}, "needs no_such_module"),
        ({"kind": "wrong"}, "is no subclass of edgeserve.front.Front"),
        ({"kind": "json:dumps"}, "is no subclass of edgeserve.front.Front"),
        ({"kind": "json:nothing"}, "is no subclass of edgeserve.front.Front"),
    ],
)
def test_what_is_no_front_is_said(folder, table, says):
    with pytest.raises(ConfigError, match=says):
        front_of("mine", table)


def test_a_module_that_cannot_be_imported_is_said(folder):
    path, name = folder
    (path / f"broken_{name}.py").write_text(BROKEN)
    with pytest.raises(ConfigError, match=rf"\[front.mine\]: .*broken_{name} cannot be imported: .*invalid syntax"):
        front_of("mine", {"kind": f"broken_{name}:LineFront"}, str(path))


def test_a_server_checks_its_fronts_before_it_loads_models(folder):
    FrontProcesses(parse_config({"front": {"line": {"place": 8}}}))
    with pytest.raises(ConfigError, match="place 9 is taken"):
        FrontProcesses(parse_config({"front": {"line": {"place": 9}}}))


def test_a_front_needs_the_servers_key_where_its_endpoint_has_keys(tmp_path):
    (tmp_path / "edge.toml").write_text('[server]\ncurve_secret_key_file = "keys/server.key_secret"\n')
    config = load_config(str(tmp_path / "edge.toml"))
    assert server_key_of(config, "tcp://127.0.0.1:5555") == str(tmp_path / "keys" / "server.key_secret")
    assert server_key_of(config, "ipc:///run/bus") == server_key_of(parse_config({}), "tcp://127.0.0.1:5555") == ""


def test_every_front_of_the_package_says_what_its_keys_mean():
    from edgeserve.config.json_schema import config_schema

    assert set(SETTINGS) == set(BUILT_IN)
    for kind, section in config_schema(own_settings())["properties"]["front"]["properties"].items():
        assert all(about["description"] for about in section["properties"].values()), kind


@pytest.mark.parametrize("kind", BUILT_IN)
def test_the_settings_that_are_known_without_a_fronts_package_are_the_fronts(kind):
    try:
        made = front_class(kind)
    except ConfigError as error:
        pytest.skip(str(error))
    assert made.Settings is settings_class(kind)
