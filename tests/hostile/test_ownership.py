"""No client reads or changes what is not its own: streams, stories, statistics, and the server's own life."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import msgpack
import numpy as np
import pytest
import zmq
import zmtp
from bus_server import dealer
from serving import function

from edgeserve.client import Client
from edgeserve.commands.keys import make_keys
from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError, Failed, NotAllowed, Rejected, ServerGone
from edgeserve.runtime import Runtime

FUNCTIONS = """
import numpy as np

def example():
    return {"text": "x"}

def shout(item):
    if item["text"].startswith("bad"):
        raise ValueError("cannot read " + item["text"])
    return {"length": np.float32(len(item["text"]))}

def tally_example():
    return {"x": np.zeros(1, np.float32)}

def tally(item, state):
    total = float(item["x"][0]) + (state or 0.0)
    return {"total": np.float32(total)}, total
"""

ONE = {"x": np.ones(1, np.float32)}
NOBODY_UID = 65534


def config_of(folder: Path, endpoint: str, streams_max: int = 1024, **server: Any) -> Any:
    (folder / "owned_functions.py").write_text(FUNCTIONS)
    home = "owned_functions"
    return parse_config(
        {
            "server": {"endpoint": endpoint, **server},
            "model": {
                "shout": function("shout", home=home),
                "tally": function("tally", "tally_example", home, options={"stateful": True}),
            },
            "app": {
                "shout": {"model": "shout", "slo": "20s"},
                "tally": {"model": "tally", "slo": "20s", "stream": "in_order", "streams_max": streams_max},
            },
        },
        directory=str(folder),
    )


@pytest.fixture
def served(folder: Path) -> Iterator[Runtime]:
    with Runtime(config_of(folder, f"ipc://{folder}/bus/socket"), serve=True) as runtime:
        yield runtime


@pytest.fixture
def on_tcp(folder: Path) -> Iterator[Runtime]:
    with Runtime(config_of(folder, "tcp://127.0.0.1:*"), serve=True) as runtime:
        yield runtime


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_hold_no_text_of_a_client_or_an_exception(served: Runtime) -> None:
    secret = "swordfish" * 6000  # 54 kB, in the text of every error
    with Client(served.endpoints[0]) as one, Client(served.endpoints[0]) as other:
        futures = [one.submit("shout", {"text": f"bad {number} {secret}"}) for number in range(200)]
        for future in futures:
            with pytest.raises(Failed, match="cannot read bad") as caught:
                future.result(20)
            assert len(str(caught.value)) < 5000, "its asker reads the details, cut"
        stats = other.stats()
    assert stats["apps"]["shout"]["reasons"] == {"failed": {"model_failed": 200}}
    told = json.dumps(stats)
    assert "swordfish" not in told and "ValueError" not in told
    assert len(told) < 64 * 1024


def asked(socket: Any, **fields: Any) -> Any:
    """The reply to a request that is written by hand."""
    socket.send(b"\1" + msgpack.packb({"kind": "infer", "id": 1, "app": "shout", "texts": {"text": "x"}, **fields}))
    assert socket.poll(20_000)
    return msgpack.unpackb(socket.recv_multipart()[0][1:])


def test_a_stamp_from_long_ago_poisons_no_statistics(served: Runtime, context: Any) -> None:
    socket = dealer(context, served.endpoints[0])
    for age_ns in (10**15, 90 * 10**9, 10**12):
        now_ns = time.monotonic_ns()
        sent_ns = max(0, now_ns - age_ns)
        reply = asked(socket, on_late="answer", sent_ns=sent_ns, slo_ms=1000.0)
        assert reply["kind"] == "answer" and reply["late"]
        assert reply["total_ns"] >= now_ns - sent_ns, "its client reads what it requested"
    table = served.stats()["apps"]["shout"]
    assert table["latency_ms"]["max"] < 60_000 and table["breakdown_ms"]["queue"] < 60_000


# --- streams and stories ----------------------------------------------------------------------------------------------


def test_a_stream_is_its_connections_own(served: Runtime) -> None:
    with Client(served.endpoints[0]) as mine, Client(served.endpoints[0]) as another:
        assert [float(mine.infer("tally", ONE, stream="s")["total"]) for _ in range(3)] == [1, 2, 3]
        assert float(another.infer("tally", ONE, stream="s")["total"]) == 1, "the state is another's"
        assert float(mine.infer("tally", ONE, stream="s")["total"]) == 4


def test_who_opens_many_streams_loses_only_streams_of_its_own(folder: Path) -> None:
    with Runtime(config_of(folder, f"ipc://{folder}/bus/socket", streams_max=8), serve=True) as runtime:
        with Client(runtime.endpoints[0]) as mine, Client(runtime.endpoints[0]) as greedy:
            for _ in range(2):
                mine.infer("tally", ONE, stream="s")
            for number in range(40):
                greedy.infer("tally", ONE, stream=f"s{number}")
            assert runtime.stats()["streams_with_state"] == 8
            assert float(mine.infer("tally", ONE, stream="s")["total"]) == 3


def test_a_story_is_for_its_asker_and_the_owner(on_tcp: Runtime, served: Runtime) -> None:
    with Client(on_tcp.endpoints[0]) as mine, Client(on_tcp.endpoints[0]) as another:
        number = mine.infer("shout", {"text": "x"}).id
        assert mine.story(number)
        for unseen in (number, number + 7):
            with pytest.raises(NotAllowed, match="server's owner"):
                another.story(unseen)
    with Client(served.endpoints[0]) as mine, Client(served.endpoints[0]) as owner:
        assert owner.story(mine.infer("shout", {"text": "x"}).id), "ipc, and the same user"


# --- control ----------------------------------------------------------------------------------------------------------


def test_a_tcp_client_without_a_key_cannot_drain_the_server(on_tcp: Runtime) -> None:
    with Client(on_tcp.endpoints[0]) as client:
        with pytest.raises(NotAllowed, match="drain is for the server's owner"):
            client.drain()
        assert client.health()["ready"]
        assert float(client.infer("shout", {"text": "four"})["length"]) == 4


def test_a_tcp_client_without_a_key_cannot_read_what_others_asked_nor_reload(on_tcp: Runtime, served: Runtime) -> None:
    with Client(on_tcp.endpoints[0]) as client:
        with pytest.raises(NotAllowed, match="trace is for the server's owner"):
            client.trace()
        with pytest.raises(NotAllowed, match="reload is for the server's owner"):
            client.reload()
    with Client(served.endpoints[0]) as owner:
        assert "lines" in owner.trace(), "ipc, and the same user"


@pytest.mark.parametrize("version", zmtp.OLD_GREETINGS)
@pytest.mark.parametrize("transport", ["served", "on_tcp"])
def test_who_greets_as_before_zmtp_3_is_not_heard(request: pytest.FixtureRequest, transport: str, version: str) -> None:
    runtime = request.getfixturevalue(transport)
    with Client(runtime.endpoints[0]) as healthy:
        number = healthy.infer("shout", {"text": "x"}).id
        for question in ({"kind": "trace"}, {"kind": "story", "request_id": number}, {"kind": "drain"}):
            asked = zmtp.old_message(version, zmtp.header(id=1, **question))
            assert b"info" not in told_until_closed(runtime.endpoints[0], zmtp.OLD_GREETINGS[version] + asked), question
        assert healthy.health()["ready"]


def told_until_closed(endpoint: str, said: bytes) -> bytes:
    """The server's reply to these bytes until it closes the connection; a time-out if it does not."""
    told = b""
    with zmtp.dial(endpoint) as one, contextlib.suppress(ConnectionError):
        one.settimeout(5)
        one.sendall(said)
        part = one.recv(65_536)
        while part:
            told += part
            part = one.recv(65_536)
    return told


@pytest.mark.parametrize("minor", [0, 1])
def test_a_plain_socket_that_greets_as_zmtp_3_is_served(served: Runtime, minor: int) -> None:
    with zmtp.connect(served.endpoints[0], minor) as one:
        one.sendall(zmtp.message([zmtp.header(kind="health", id=1)]))
        assert b"info" in one.recv(65_536)


def test_the_owner_drains_it_over_ipc(served: Runtime) -> None:
    with Client(served.endpoints[0]) as client:
        assert client.drain()["draining"]
    assert served.wait(20)


ANOTHER_USER = """
import os, sys
import numpy
from edgeserve.client import Client
from edgeserve.errors import NotAllowed
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
with Client({endpoint!r}) as client:
    assert float(client.infer("shout", {{"text": "four"}})["length"]) == 4
    try:
        client.drain()
    except NotAllowed:
        sys.exit(7)
"""


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become another user")
def test_another_user_whom_the_socket_lets_in_cannot_drain_it(served: Runtime, folder: Path) -> None:
    for path, mode in ((folder, 0o755), (folder / "bus", 0o755), (folder / "bus" / "socket", 0o666)):
        path.chmod(mode)
    code = ANOTHER_USER.format(uid=NOBODY_UID, endpoint=served.endpoints[0])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    with Client(served.endpoints[0]) as client:
        assert client.health()["ready"]


def may_be_critical(client: Client) -> bool:
    """True if a client's request of class critical is answered, false if it is refused for its class."""
    error = client.submit("shout", {"text": "four"}, priority_class="critical").exception(20)
    assert error is None or (type(error) is Rejected and error.reason == "class_not_allowed"), error
    return error is None


@pytest.mark.parametrize(("listed", "may"), [("uid:4294967294", False), (f"uid:{os.getuid()}", True)])
def test_class_critical_can_be_for_some_users_only(folder: Path, listed: str, may: bool) -> None:
    with Runtime(config_of(folder, f"ipc://{folder}/bus/socket", critical_for=[listed]), serve=True) as runtime, Client(
        runtime.endpoints[0]
    ) as client:
        assert may_be_critical(client) is may
        assert float(client.infer("shout", {"text": "four"})["length"]) == 4


def test_a_front_does_not_lend_its_clients_the_class_critical(folder: Path, context: Any) -> None:
    config = config_of(folder, f"ipc://{folder}/bus/socket", critical_for=[f"uid:{os.getuid()}", "token:kitchen"])
    told = {}
    with Runtime(config, serve=True) as runtime:
        socket = dealer(context, runtime.endpoints[0])
        for origin in ("token:kitchen", "token:robot", ""):
            named = {"origin": origin} if origin else {}
            told[origin] = asked(socket, **{"class": "critical"}, **named).get("reason", "")
    assert told == {"token:kitchen": "", "token:robot": "class_not_allowed", "": ""}


# --- shares -----------------------------------------------------------------------------------------------------------

PLACES = 4
CROWD = """
import sys
from edgeserve.client import Client
with Client({endpoint!r}, name={name!r}) as client:
    futures = [client.submit("slow", {{"text": "x"}}) for _ in range({count})]
    client.health()
    refused = {{type(future.exception(0)).__name__ for future in futures if future.done()}}
    print(*sorted(refused), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("name", "refused"), [("", ""), ("pid:{0}", ""), ("pid:{0} #", "Malformed"), ("x@pid:{0} #1", "Malformed")]
)
def test_a_name_takes_no_places_of_the_process_that_it_names(folder: Path, name: str, refused: str) -> None:
    config = parse_config(
        {
            "server": {"endpoint": f"ipc://{folder}/bus/socket"},
            "model": {"slow": {"engine": "synthetic", "batch": [1], "expected": {"1": "300ms"}}},
            "app": {"slow": {"model": "slow", "slo": "20s", "pending_max": PLACES}},
        }
    )
    with Runtime(config, serve=True) as runtime, Client(runtime.endpoints[0]) as victim:
        code = CROWD.format(endpoint=runtime.endpoints[0], name=name.format(os.getpid()), count=PLACES)
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        ) as crowd:
            assert crowd.stdout is not None
            told = crowd.stdout.readline().split()
            futures = [victim.submit("slow", {"text": "x"}) for _ in range(PLACES // 2)]
            assert [future.exception(20) for future in futures] == [None] * len(futures)
            assert told == refused.split()


# --- keys -------------------------------------------------------------------------------------------------------------

needs_curve = pytest.mark.skipif(not zmq.has("curve"), reason="this libzmq was built without CURVE")


Keys = Callable[..., Dict[str, str]]


def reach(endpoint: str, **keys: str) -> Client:
    return Client(endpoint, connect_ms=1500, timeout_ms=10_000, **keys)


def keyed(folder: Path, allowed: List[str], *others: str, **server: Any) -> Tuple[Any, Keys]:
    """A server on TCP with a list of keys, and what a client with a key says of it: ``keys(name)``."""
    (folder / "allowed").mkdir()
    public, secret = make_keys(str(folder / "keys"), "server")
    clients = {name: make_keys(str(folder / "keys"), name)[1] for name in (*allowed, *others)}
    for name in allowed:
        allow(folder, name)
    config = config_of(folder, "tcp://127.0.0.1:*", curve_secret_key_file=secret, curve_client_keys="allowed", **server)
    return config, lambda name="": {"server_key": public, **({"client_key": clients[name]} if name else {})}


def allow(folder: Path, name: str) -> None:
    (folder / "allowed" / f"{name}.key").write_bytes((folder / "keys" / f"{name}.key").read_bytes())


@needs_curve
def test_only_listed_keys_are_let_in_and_only_control_keys_control(folder: Path) -> None:
    config, keys = keyed(folder, ["robot", "boss"], "later", control_keys=["boss"])
    with Runtime(config, serve=True) as runtime:
        endpoint = runtime.endpoints[0]
        with reach(endpoint, **keys("robot")) as robot:
            assert float(robot.infer("shout", {"text": "four"})["length"]) == 4
            assert float(robot.infer("tally", ONE, stream="s")["total"]) == 1
            with pytest.raises(NotAllowed):
                robot.drain()
        with reach(endpoint, **keys("robot")) as again:
            assert float(again.infer("tally", ONE, stream="s")["total"]) == 2, "a key's streams survive a connection"
        for name in ("", "later"):  # no key of its own, a key that is not listed
            with reach(endpoint, **keys(name)) as stranger, pytest.raises(ServerGone):
                stranger.infer("shout", {"text": "x"})
        allow(folder, "later")
        time.sleep(1.2)  # the folder is looked at once a second
        with reach(endpoint, **keys("later")) as later:
            assert later.health()["ready"], "the folder is read again"
        with reach(endpoint, **keys("boss")) as boss:
            assert boss.drain()["draining"]
        assert runtime.wait(20)


@needs_curve
def test_the_class_of_a_control_key_counts_beside_others(folder: Path) -> None:
    config, keys = keyed(folder, ["robot", "boss"], control_keys=["boss"])
    with Runtime(config, serve=True) as runtime:
        for name, priority_class in (("robot", "normal"), ("boss", "critical")):
            with reach(runtime.endpoints[0], **keys(name)) as client:
                number = client.infer("shout", {"text": "four"}, priority_class="critical").id
                assert f"class {priority_class}" in runtime.story(number)[0]


@needs_curve
def test_class_critical_can_be_for_some_keys_only(folder: Path) -> None:
    config, keys = keyed(folder, ["robot", "boss"], critical_for=["key:boss"])
    with Runtime(config, serve=True) as runtime:
        for name, may in (("robot", False), ("boss", True)):
            with reach(runtime.endpoints[0], **keys(name)) as client:
                assert may_be_critical(client) is may
                assert float(client.infer("shout", {"text": "four"})["length"]) == 4


@needs_curve
def test_a_key_that_is_removed_ends_its_open_connections(folder: Path) -> None:
    config, keys = keyed(folder, ["robot", "camera"])
    with Runtime(config, serve=True) as runtime:
        endpoint = runtime.endpoints[0]
        with reach(endpoint, **keys("robot")) as robot, reach(endpoint, **keys("camera")) as camera:
            assert robot.health()["ready"]
            assert camera.health()["ready"]
            (folder / "allowed" / "robot.key").unlink()
            due_s = time.monotonic() + 30
            with pytest.raises(ServerGone):
                while time.monotonic() < due_s:
                    robot.infer("shout", {"text": "four"})
                    time.sleep(0.05)
            assert float(camera.infer("shout", {"text": "four"})["length"]) == 4


def test_keys_are_this_users_alone_and_never_overwritten(folder: Path) -> None:
    before = os.umask(0)
    try:
        paths = make_keys(str(folder / "keys"), "robot")
    finally:
        os.umask(before)
    assert [os.stat(path).st_mode & 0o777 for path in (*paths, folder / "keys")] == [0o600, 0o600, 0o700]
    content = Path(paths[1]).read_bytes()
    with pytest.raises(ConfigError, match="not overwritten"):
        make_keys(str(folder / "keys"), "robot")
    assert Path(paths[1]).read_bytes() == content
    assert b"secret" not in Path(paths[0]).read_bytes()
    for name in ("", "../robot", ".hidden", "a/b", "x" * 65, "new\nline"):
        with pytest.raises(ConfigError, match="expected 1 to 64"):
            make_keys(str(folder / "keys"), name)


@needs_curve
def test_a_list_of_keys_over_tcp_needs_the_servers_own(folder: Path) -> None:
    make_keys(str(folder / "allowed"), "robot")
    with pytest.raises(ConfigError, match="no client has to prove its key"), Runtime(
        config_of(folder, "tcp://127.0.0.1:*", curve_client_keys="allowed"), serve=True
    ):
        pass


def test_a_list_of_controllers_needs_a_list_of_keys(folder: Path) -> None:
    with pytest.raises(ConfigError, match="control_keys"), Runtime(
        config_of(folder, f"ipc://{folder}/bus/socket", control_keys=["boss"]), serve=True
    ):
        pass


def test_the_bus_can_be_bound_to_ipv6(folder: Path) -> None:
    try:
        runtime = Runtime(config_of(folder, "tcp://[::1]:*"), serve=True).start()
    except ConfigError as error:
        if "cannot be bound" in str(error) and "ssign" in str(error):
            pytest.skip("this machine has no IPv6 loopback")
        raise
    try:
        assert runtime.endpoints[0].startswith("tcp://[::1]:")
        with Client(runtime.endpoints[0]) as client:
            assert float(client.infer("shout", {"text": "four"})["length"]) == 4
    finally:
        runtime.stop()
