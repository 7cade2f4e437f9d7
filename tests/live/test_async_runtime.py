"""The embedded runtime for asyncio: answers, errors, cancellation, start and stop."""

from __future__ import annotations

import asyncio
import pathlib

import numpy as np
import pytest

import edgeserve
from edgeserve.config.loading import parse_config
from edgeserve.errors import BadInput, ConfigError, TimedOut

HELD = {
    "model": {"nap": {"engine": "synthetic", "batch": [1], "expected": {"1": "40ms"}}},
    "app": {"nap": {"model": "nap", "slo": "10s", "inputs": {"x": {"shape": [2]}}}},
}
X = np.zeros(2, np.float32)


def run(scenario):
    async def main():
        async with edgeserve.AsyncRuntime(parse_config(HELD)) as runtime:
            return await scenario(runtime)

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_answers_are_awaited_several_at_a_time():
    async def scenario(runtime):
        answers = await asyncio.gather(*[runtime.infer("nap", {"x": X}) for _ in range(3)])
        stats = await runtime.stats()
        assert await runtime.story(answers[0].id)
        return answers, stats["apps"]["nap"]

    answers, counts = run(scenario)
    assert all(isinstance(answer, edgeserve.Answer) for answer in answers)
    assert (counts["received"], counts["accepted"], counts["refused"]) == (3, 3, 0)


def test_errors_and_the_callers_own_patience_are_typed():
    async def scenario(runtime):
        with pytest.raises(BadInput):
            await runtime.infer("nap", {})
        with pytest.raises(TimedOut) as caught:
            await runtime.infer("nap", {"x": X}, timeout_ms=1)
        return caught.value.id

    assert run(scenario) > 0


def test_a_task_that_is_cancelled_cancels_its_request():
    async def scenario(runtime):
        first = asyncio.ensure_future(runtime.infer("nap", {"x": X}))
        second = asyncio.ensure_future(runtime.infer("nap", {"x": X}))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await first
        return (await runtime.stats())["apps"]["nap"]["outcomes"]

    outcomes = run(scenario)
    assert (outcomes["completed"], outcomes["cancelled"]) == (1, 1)


EDGE = """
[model.nap]
engine = "synthetic"
expected = {1 = "1ms"}

[app.nap]
model = "nap"
slo = "10s"
"""

PLACES = {
    "text": str,
    "path": pathlib.Path,
    "bytes": lambda path: str(path).encode(),
    "config": lambda path: edgeserve.load_config(path),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_runtime_is_made_of_a_file_or_of_a_config(tmp_path, place):
    path = tmp_path / "edge.toml"
    path.write_text(EDGE)

    async def asked():
        async with edgeserve.AsyncRuntime(place(path)) as runtime:
            return (await runtime.infer("nap", {})).outcome

    with edgeserve.Runtime(place(path)) as runtime:
        assert runtime.infer("nap", {}).outcome == "completed"
        path.write_text(EDGE.replace("app.nap", "app.other"))
        runtime.reload()
        assert runtime.infer("other", {}).outcome == "completed"
        path.write_text(EDGE)
        runtime.reload(place(path))
        assert runtime.infer("nap", {}).outcome == "completed"
    assert asyncio.run(asked()) == "completed"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"app": {}}, "is dict, expected the path of its file or an edgeserve.Config; .*parse_config makes one"),
        (None, "needs a configuration: the path of its file, or models="),
        (7, "is int, expected the path"),
        ("no/such.toml", "no/such.toml: cannot be read"),
        ("", "cannot be read"),
    ],
)
@pytest.mark.parametrize("kind", [edgeserve.Runtime, edgeserve.AsyncRuntime], ids=["threads", "asyncio"])
def test_what_is_no_configuration_is_said(kind, source, text):
    with pytest.raises(ConfigError, match=text):
        kind(source)
