"""Fronts of a configuration as children of a server: what becomes of one that ends, or that finds no server yet."""

from __future__ import annotations

import logging
import time

import pytest
from bus_server import BusServer

from edgeserve.config.loading import load_config, parse_config
from edgeserve.errors import ConfigError
from edgeserve.front.processes import FrontProcesses

FRONT = """
from edgeserve.errors import ConfigError
from edgeserve.front import Front

class Noting(Front):
    def note(self, word):
        with open("{folder}/notes", "a") as file:
            file.write(word)

    async def look(self):
        self.note("look ")
        await self.client.apps()

    async def serve(self, stopped, ready):
        self.note("served ")

class Wrong(Noting):
    async def look(self):
        self.note("look ")
        raise ConfigError("this app takes no pictures")
"""


def fronts_of(folder, kind):
    """A front of a configuration whose bus has keys over TCP, and has none where the test's server listens."""
    name = f"noting_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(FRONT.format(folder=folder))
    (folder / "edge.toml").write_text(
        f'[server]\ncurve_secret_key_file = "server.key_secret"\n[front.mine]\nkind = "{name}:{kind}"\n'
    )
    return FrontProcesses(load_config(str(folder / "edge.toml")))


def wait_until(holds):
    until_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("kind", "notes", "says"), [("Noting", "look served ", "mine has ended"), ("Wrong", "look ", "mine cannot start")]
)
def test_a_front_that_is_done_or_wrong_is_not_started_again(tmp_path, caplog, kind, notes, says):
    caplog.set_level(logging.INFO)
    fronts = fronts_of(tmp_path, kind)
    with BusServer(f"ipc://{tmp_path}/bus") as server:
        fronts.start(server.endpoint)
        try:
            wait_until(lambda: says in caplog.text)
        finally:
            fronts.stop()
    assert (tmp_path / "notes").read_text() == notes
    assert "started again" not in caplog.text


def test_a_front_that_gets_no_answer_at_its_start_is_started_again(tmp_path, caplog):
    fronts = fronts_of(tmp_path, "Noting")
    fronts.start(f"ipc://{tmp_path}/bus")
    try:
        wait_until(lambda: "started again" in caplog.text)
        with BusServer(f"ipc://{tmp_path}/bus"):
            wait_until(lambda: (tmp_path / "notes").read_text().endswith("served "))
    finally:
        fronts.stop()


def test_two_fronts_of_one_name_on_a_broker_are_refused():
    pytest.importorskip("aiomqtt", reason="the front needs aiomqtt: pip install '.[mqtt]'")
    tables = {"one": {"kind": "mqtt"}, "two": {"kind": "mqtt"}}
    with pytest.raises(ConfigError, match=r"\[front.two\] has name = .*127.0.0.1:1883, as \[front.one\]; give"):
        FrontProcesses(parse_config({"front": tables}))
    for other in ({"name": "attic"}, {"port": 1884}):
        FrontProcesses(parse_config({"front": {**tables, "two": {"kind": "mqtt", **other}}}))
