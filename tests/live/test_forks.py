"""A forked child, and the thread that gives the answers: every verb says at once that no answer would come.

The verbs are found by introspection, so that a new one is held too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any, Callable, Dict, Iterator, Tuple

import live_functions
import numpy as np
import pytest
from serving import LIB, function, served, wait_until

from edgeserve import AsyncClient, AsyncRuntime, Client, Runtime
from edgeserve.config.loading import parse_config
from edgeserve.errors import RequestError

X = {"x": np.full(4, 2, np.float32)}
HELD = {"x": np.array([1, 0, 0, 0], np.float32)}
CHILD_S_MAX = 10.0

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

ARGUMENTS: Dict[str, Any] = {
    "app": "request",
    "inputs": X,
    "pieces": None,
    "call": lambda core: None,
    "request_id": 1,
    "kind": "health",
    "shape": (1 << 20,),
    "error": None,
    "trace": None,
}
"""Values for parameters without a default, by name; ``kind`` is a question, or an exception's type."""

VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)

NOTHING_TO_DO = {"stop", "ask_to_stop", "close", "__exit__", "__aexit__"}
"""Ends what is the parent's: they do nothing in a child."""

HARMLESS = {
    "client",
    "freeze",
    "is_alive",
    "was_started",
    "configuration",
    "config",
    "taps",
    "tracer_provider",
} | {
    "endpoint",
    "runtime",
    "on_device_lost",
}
"""Need no thread of the runtime's."""


def verbs(kind: type) -> Dict[str, Any]:
    """Public methods and properties, and those of ``with``."""
    special = ("__enter__", "__exit__", "__aenter__", "__aexit__")
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_") or name in special}


def arguments_of(verb: Any) -> Dict[str, Any]:
    return {
        name: ARGUMENTS[name]
        for name, parameter in inspect.signature(verb).parameters.items()
        if name != "self" and parameter.default is parameter.empty and parameter.kind not in VARIABLE
    }


def use(thing: Any, name: str) -> Any:
    """Call a verb, or read a property, and wait for what it gives."""
    verb = getattr(type(thing), name)
    if not callable(verb):
        return getattr(thing, name)
    call = functools.partial(verb if name.startswith("_") else getattr(thing, name), **arguments_of(verb))
    if name.startswith("_"):
        call = functools.partial(call, thing)

    async def awaited() -> Any:
        given = call()
        return await given if inspect.isawaitable(given) else given

    return asyncio.run(awaited()) if type(thing) in (AsyncRuntime, AsyncClient) else call()


def in_child(call: Callable[[], Any]) -> Tuple[str, Any]:
    """The end of ``call`` in a forked child: ``returned`` or ``raised`` with its value; ``hung`` after a while."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            try:
                told = ("returned", repr(call()))
            except BaseException as error:  # noqa: BLE001 the parent judges it
                told = ("raised", error)
            os.write(write, pickle.dumps(told))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        if not select.select([file], [], [], CHILD_S_MAX)[0]:
            os.kill(child, signal.SIGKILL)
        raw = file.read()
    os.waitpid(child, 0)
    return pickle.loads(raw) if raw else ("hung", None)


@contextlib.contextmanager
def runtime_of(kind: Any) -> Iterator[Any]:
    config = parse_config({"model": {"request": function("request")}, "app": {"request": {"model": "request"}}}, LIB)
    with Runtime(config) as runtime:
        if kind is Runtime:
            yield runtime
        else:
            twin = AsyncRuntime(config)
            twin.runtime = runtime
            yield twin


@contextlib.contextmanager
def client_of(kind: Any) -> Iterator[Any]:
    with served({"model": {"request": function("request")}, "app": {"request": {"model": "request"}}}) as (
        runtime,
        client,
    ):
        if kind is Client:
            client.health()
            yield client
        else:
            twin = AsyncClient(client.endpoint)
            asyncio.run(twin.health())
            yield twin
            asyncio.run(twin.close())


MAKERS = {Runtime: runtime_of, AsyncRuntime: runtime_of, Client: client_of, AsyncClient: client_of}


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_every_verb_says_in_a_forked_child_that_it_is_one(kind: Any) -> None:
    with MAKERS[kind](kind) as thing:
        found = {}
        for name in verbs(kind):
            found[name] = in_child(lambda name=name: use(thing, name))  # type: ignore[misc]
        raised = {name for name, (how, what) in found.items() if how == "raised" and isinstance(what, RequestError)}
        assert {name: found[name] for name in set(found) - raised - NOTHING_TO_DO - HARMLESS} == {}
        assert {name: found[name][1] for name in raised if "after the fork" not in str(found[name][1])} == {}
        assert {name: found[name] for name in set(found) & NOTHING_TO_DO if found[name] != ("returned", "None")} == {}
        assert [name for name in set(found) & HARMLESS if found[name][0] != "returned"] == []
        inner = getattr(thing, "runtime", None) or getattr(thing, "_client", None) or thing
        assert inner.infer("request", X)["x"].tolist() == [2, 2, 2, 2]  # the parent has not noticed


# --- futures that were made before the fork ---------------------------------------------------------------------------


def wait_for(future: Any) -> Any:
    done, _ = concurrent.futures.wait([future])
    return done.pop().result()


def call_back(future: Any) -> Any:
    told: Any = []
    future.add_done_callback(told.append)
    return told[0].result()


def cancel(future: Any) -> Any:
    return future.cancel() or future.result()


WAITS = {
    "result": lambda future: future.result(),
    "exception": lambda future: _raise(future.exception()),
    "wait": wait_for,
    "as_completed": lambda future: next(concurrent.futures.as_completed([future])).result(),
    "callback": call_back,
    "cancel": cancel,
    "asyncio": lambda future: asyncio.run(_awaited(future)),
}


def _raise(error: Any) -> Any:
    raise error


async def _awaited(future: Any) -> Any:
    return await asyncio.wrap_future(future)


@contextlib.contextmanager
def held(kind: Any) -> Iterator[Any]:
    """A runtime or client with one request on its lane, which ends when the gate opens."""
    live_functions.close_gate()
    try:
        with MAKERS[kind](kind) as thing:
            yield thing
            live_functions.gate.set()
    finally:
        live_functions.gate.set()


@pytest.mark.parametrize("way", WAITS)
@pytest.mark.parametrize("kind", [Runtime, Client], ids=lambda kind: kind.__name__)
def test_a_future_of_before_the_fork_has_no_answer_in_the_child(kind: Any, way: str) -> None:
    with held(kind) as thing:
        future = thing.submit("request", HELD, slo_ms=60_000)
        called: Any = []
        future.add_done_callback(called.append)
        assert live_functions.entered.wait(CHILD_S_MAX)
        how, error = in_child(lambda: WAITS[way](future))
        assert (how, type(error)) == ("raised", RequestError) and "after the fork" in str(error)
        assert in_child(lambda: called) == ("returned", "[]")  # the parent's callback is not called there
        live_functions.gate.set()
        assert future.result(CHILD_S_MAX)["x"][0] == 1 and called == [future]


@pytest.mark.parametrize("kind", [Runtime, Client], ids=lambda kind: kind.__name__)
def test_a_stream_of_before_the_fork_ends_in_the_child(kind: Any) -> None:
    with held(kind) as thing:
        stream = thing.stream("request", HELD, slo_ms=60_000)
        assert live_functions.entered.wait(CHILD_S_MAX)
        for call in (lambda: list(stream), stream.answer):
            how, error = in_child(call)
            assert (how, type(error)) == ("raised", RequestError) and "after the fork" in str(error)
        live_functions.gate.set()
        assert list(stream) == [] and stream.answer()["x"][0] == 1


def test_a_future_that_has_its_answer_keeps_it_in_the_child() -> None:
    with runtime_of(Runtime) as runtime:
        future = runtime.submit("request", X)
        future.result(CHILD_S_MAX)
        wait_until(lambda: in_child(lambda: future.result()["x"].tolist()) == ("returned", "[2.0, 2.0, 2.0, 2.0]"))


# --- what the child does to the parent --------------------------------------------------------------------------------

PROGRAM = """
import gc, os, sys
sys.path.insert(0, {lib!r})
import numpy as np
import edgeserve
from edgeserve.config.loading import parse_config

options = {{"example": "live_functions:example", "process": {process}}}
config = parse_config(
    {{
        "server": {{"record": {record!r}, "endpoint": "ipc://{folder}/bus/socket", "drain": "1s"}},
        "model": {{"echo": {{"engine": "python", "function": "live_functions:echo", "options": options}}}},
        "app": {{"echo": {{"model": "echo", "slo": "20s"}}}},
    }},
    {lib!r},
)
X = {{"x": np.ones(4, np.float32)}}
runtime = edgeserve.Runtime(config, serve=True)
with runtime:
    client = edgeserve.Client(runtime.endpoints[0])
    client.infer("echo", {{"x": np.ones(4, np.float32)}})
    for index in range(20):
        runtime.infer("echo", X)
    child = os.fork()
    if child == 0:
        del client
        runtime = None
        gc.collect()
        sys.exit(0)  # through every handler and destructor, inside the parent's with block
    assert os.waitpid(child, 0)[1] == 0
    for index in range(20):
        runtime.infer("echo", X)
    assert os.path.exists({folder!r} + "/bus/socket")
    with edgeserve.Client(runtime.endpoints[0]) as other:
        other.infer("echo", X)
    client.infer("echo", X)
    client.close()
print("the parent has ended")
"""


@pytest.mark.parametrize("process", [False, True], ids=["threads", "processes"])
def test_a_child_that_ends_in_every_way_leaves_the_parent_as_it_is(process: bool, tmp_path: Any) -> None:
    record = str(tmp_path / "steps.jsonl")
    with tempfile.TemporaryDirectory(prefix="es") as folder:  # a socket's path is short
        program = PROGRAM.format(lib=LIB, process=process, record=record, folder=folder)
        command = [sys.executable, "-W", "ignore", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("the parent has ended", 0), done.stderr
    with open(record, encoding="utf-8") as file:
        lines = file.readlines()
    assert len(lines) == len(set(lines)) > 40  # the child has not written what the parent had yet to write


ORPHANS = """
import os, signal, sys
sys.path.insert(0, {lib!r})
import numpy as np
import edgeserve
from edgeserve.config.loading import parse_config

options = {{"example": "live_functions:example", "process": True}}
model = {{"engine": "python", "function": "live_functions:process_id", "options": options}}
config = parse_config({{"model": {{"m": model}}, "app": {{"m": {{"model": "m"}}}}}}, {lib!r})
runtime = edgeserve.Runtime(config).start()
engine = int(runtime.infer("m", {{"x": np.ones(4, np.float32)}})["pid"])
child = os.fork()
if child == 0:
    signal.pause()
print(engine, child, flush=True)
signal.pause()
"""


def test_an_engine_in_a_process_ends_with_its_parent_while_a_forked_child_lives() -> None:
    command = [sys.executable, "-W", "ignore", "-c", ORPHANS.format(lib=LIB)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        engine, child = map(int, parent.stdout.readline().split())
        try:
            parent.kill()
            parent.wait(CHILD_S_MAX)
            wait_until(lambda: not is_running(engine), CHILD_S_MAX)
            assert is_running(child)
        finally:
            os.kill(child, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_child_makes_a_runtime_of_its_own() -> None:
    def another() -> Any:
        with runtime_of(Runtime) as own:
            return own.infer("request", X)["x"].tolist()

    with runtime_of(Runtime) as runtime:
        assert in_child(another) == ("returned", "[2.0, 2.0, 2.0, 2.0]")
        assert runtime.infer("request", X)["x"][0] == 2


def test_a_runtime_that_was_not_started_before_the_fork_is_started_after_it() -> None:
    models = {"request": function("request")}
    runtime = Runtime(parse_config({"model": models, "app": {"request": {"model": "request"}}}, LIB))

    def started() -> Any:
        with runtime:
            return runtime.infer("request", X)["x"].tolist()

    assert in_child(started) == ("returned", "[2.0, 2.0, 2.0, 2.0]")


# --- the thread that gives the answers --------------------------------------------------------------------------------

WAITING = {
    Runtime: {
        "infer": lambda thing, other: thing.infer("request", X),
        "result": lambda thing, other: thing.submit("request", HELD).result(),
        "exception": lambda thing, other: thing.submit("request", HELD).exception(),
        "stream": lambda thing, other: next(thing.stream("request", HELD)),
        "answer": lambda thing, other: thing.stream("request", HELD).answer(),
        "reload": lambda thing, other: thing.reload(),
        "wait": lambda thing, other: thing.wait(),
        "start": lambda thing, other: other.start(),
    },
    Client: {
        "infer": lambda thing, other: thing.infer("request", X),
        "result": lambda thing, other: thing.submit("request", HELD).result(),
        "exception": lambda thing, other: thing.submit("request", HELD).exception(),
        "stream": lambda thing, other: next(thing.stream("request", HELD)),
        "answer": lambda thing, other: thing.stream("request", HELD).answer(),
        "stats": lambda thing, other: thing.stats(),
        "story": lambda thing, other: thing.story(1),
        "start": lambda thing, other: other.start(),
    },
}


@pytest.mark.parametrize(
    ("kind", "verb"),
    [(kind, verb) for kind in WAITING for verb in WAITING[kind]],
    ids=lambda item: getattr(item, "__name__", item),
)
def test_what_waits_raises_in_a_callback(kind: Any, verb: str) -> None:
    other = Runtime(parse_config({"model": {"echo": function("echo")}, "app": {"echo": {"model": "echo"}}}, LIB))
    with held(kind) as thing:
        told: Any = []
        over = threading.Event()

        def callback(future: Any) -> None:
            try:
                told.append(WAITING[kind][verb](thing, other))
            except BaseException as error:  # noqa: BLE001 judged below
                told.append(error)
            over.set()

        thing.submit("request", HELD).add_done_callback(callback)
        live_functions.gate.set()  # before, the answer could come first: the callback would run on this thread
        assert over.wait(CHILD_S_MAX), "it waits for an answer on the thread that would give it"
        assert type(told[0]) is RequestError and "gives the answers" in str(told[0])
        assert thing.infer("request", X)["x"][0] == 2


def test_questions_and_further_requests_are_free_in_a_callback() -> None:
    with held(Runtime) as runtime:
        told: Any = []
        over = threading.Event()

        def callback(future: Any) -> None:
            told.append(future.result()["x"][0])
            told.append(runtime.stats()["apps"]["request"]["outcomes"]["completed"])
            runtime.submit("request", X).add_done_callback(last)

        def last(future: Any) -> None:
            told.append(future.result()["x"][1])
            over.set()

        runtime.submit("request", HELD).add_done_callback(callback)
        live_functions.gate.set()
        assert over.wait(CHILD_S_MAX)
        assert told == [1, 1, 2]


def test_a_callback_stops_the_runtime() -> None:
    with held(Runtime) as runtime:
        runtime.submit("request", HELD).add_done_callback(lambda future: runtime.stop())
        live_functions.gate.set()
        assert runtime.wait(CHILD_S_MAX)
