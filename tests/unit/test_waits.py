"""Waits: for files in a process with many of them, and for awaitables that are cancelled at the last moment."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

from edgeserve.answer_streams import AsyncAnswerStream
from edgeserve.answers import PendingAnswer
from edgeserve.units import NS_PER_MS
from edgeserve.waits import FILE_SELECT_MAX, await_within, readable_files

FILES = 1100

MANY_FILES = f"""
import resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2 * {FILES}, hard))
files = [open("/dev/null") for _ in range({FILES})]
assert files[-1].fileno() > {FILES}
import numpy as np
import edgeserve
def double(x):
    return {{"y": 2 * x["x"]}}
sections = dict(models={{"double": double}}, apps={{"app": "double"}})
with edgeserve.Runtime(**sections, server={{"endpoint": sys.argv[1]}}, serve=True) as runtime:
    print(runtime.infer("app", {{"x": np.float32(2)}}, slo_ms=20_000)["y"])
    with edgeserve.Client(runtime.endpoints[0]) as client:
        print(client.infer("app", {{"x": np.float32(3)}}, slo_ms=20_000)["y"])
"""

needs_many_files = pytest.mark.skipif(
    0 < resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * FILES, reason="so many files may not be open here"
)


@needs_many_files
@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_runtime_a_server_and_a_client_start_in_a_process_with_many_files(tmp_path: Path, transport: str) -> None:
    endpoint = f"ipc://{tmp_path}/bus" if transport == "ipc" else "tcp://127.0.0.1:*"
    done = subprocess.run([sys.executable, "-c", MANY_FILES, endpoint], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["4.0", "6.0"], done.stdout + done.stderr


@pytest.fixture(params=["low", "high"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Tuple[int, int]]:
    """A pipe, also one whose number ``select`` does not take."""
    import fcntl

    read, write = os.pipe()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if request.param == "high":
        if 0 < limits[1] < 2 * FILES:
            pytest.skip("so many files may not be open here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * FILES), limits[1]))
        low, read = read, fcntl.fcntl(read, fcntl.F_DUPFD, FILE_SELECT_MAX)
        os.close(low)
    yield read, write
    os.close(read)
    os.close(write)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_files_are_waited_for_until_one_can_be_read(pipe: Tuple[int, int]) -> None:
    read, write = pipe
    assert list(readable_files((read,), 0)) == []
    os.write(write, b"x")
    assert list(readable_files((read,), 20_000 * NS_PER_MS)) == [read]


def test_a_wait_is_kept_to_less_than_a_millisecond(pipe: Tuple[int, int]) -> None:
    took = []
    for _ in range(20):
        began = time.monotonic_ns()
        readable_files((pipe[0],), NS_PER_MS // 5)
        took.append(time.monotonic_ns() - began)
    assert NS_PER_MS // 5 <= min(took) < NS_PER_MS


def cancelled_as_it_comes(wait) -> bool:
    """True if a wait is cancelled by a cancellation in the turn of the loop in which its result comes."""

    async def run() -> bool:
        result = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(wait(result))
        await asyncio.sleep(0)
        result.set_result(1)
        await asyncio.sleep(0)  # what waits for the result is about to go on
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        return waiting.cancelled()

    return asyncio.run(run())


def test_no_cancellation_is_lost() -> None:
    assert cancelled_as_it_comes(lambda result: await_within(result, 20))


def test_what_does_not_come_is_cancelled_and_told() -> None:
    async def run() -> List[bool]:
        never = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await await_within(never, 0.01)
        waiting = asyncio.ensure_future(await_within(asyncio.Event().wait(), 20))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        return [never.cancelled(), waiting.cancelled()]

    assert asyncio.run(run()) == [True, True]


@pytest.mark.parametrize("timeout_s", [0.01, 20])
def test_what_is_cancelled_may_clean_up(timeout_s: float) -> None:
    async def run() -> bool:
        begun, cleaned = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                begun.set()
                for _ in range(20):
                    await asyncio.sleep(0)
                cleaned.set()

        waiting = asyncio.ensure_future(await_within(work(), timeout_s))
        await asyncio.sleep(0)
        if timeout_s > 1:
            await asyncio.sleep(0)
            waiting.cancel()
        with suppress(asyncio.CancelledError, asyncio.TimeoutError):
            await waiting
        return begun.is_set() and cleaned.is_set()

    assert asyncio.run(run())


def test_a_piece_is_kept_for_the_next_read_where_its_reader_is_cancelled_as_it_comes() -> None:
    async def run() -> int:
        stream = AsyncAnswerStream(20_000.0).follow(PendingAnswer())
        reader = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        stream.put({"n": 1})
        for _ in range(3):
            await asyncio.sleep(0)
        reader.cancel()
        with suppress(asyncio.CancelledError):
            return int((await reader)["n"])
        return int((await stream.__anext__())["n"])

    assert asyncio.run(run()) == 1
