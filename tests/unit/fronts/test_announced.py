"""The name under which Home Assistant finds the front: taken, or none."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("wyoming", reason="the front needs wyoming: pip install '.[wyoming]'")
pytest.importorskip("zeroconf", reason="announcing needs zeroconf: pip install '.[wyoming]'")

from edgeserve.errors import ConfigError
from edgeserve.fronts.mdns import announced


def test_a_name_that_another_front_has_is_changed_and_said(caplog):
    async def run():
        async with announced("zeroconf", "cellar", "127.0.0.1", 10300):
            async with announced("zeroconf", "cellar", "127.0.0.1", 10301):
                pass

    asyncio.run(run())
    assert "'cellar' is taken" in caplog.text


@pytest.mark.parametrize("name", ["x" * 70, "a\0b"])
def test_what_is_no_name_is_said(name):
    async def run():
        async with announced("[front.wyoming] zeroconf", name, "127.0.0.1", 10300):
            pass

    with pytest.raises(ConfigError, match=r"\[front.wyoming\] zeroconf = .*mDNS"):
        asyncio.run(run())


@pytest.mark.parametrize("host", ["::1", "no-such-host.invalid"])
def test_a_host_without_an_address_to_announce_is_said(host):
    async def run():
        async with announced("--zeroconf", "cellar", host, 10300):
            pass

    with pytest.raises(ConfigError, match=f"--zeroconf = .*{host}"):
        asyncio.run(run())
