"""``edgeserve bench`` against a server in this process."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from serving import function, served

from edgeserve.commands import bench
from edgeserve.errors import BadInput, UnknownApp


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    app = {"model": "echo", "slo": "5s", "inputs": {"x": {"dtype": "float32", "shape": [4]}}}
    with served({"model": {"echo": function("echo")}, "app": {"echo": app}}) as (runtime, _):
        yield runtime.endpoints[0]


def run(endpoint: str, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.main(parser.parse_args(["--endpoint", endpoint, *arguments]))


def test_a_closed_loop_counts_what_it_sent(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(endpoint, "--in-flight", "4", "--seconds", "0.3", "--json") == 0
    table: Dict[str, Any] = json.loads(capsys.readouterr().out)
    assert table["sent"] == table["in_time"] > 10
    assert (table["late"], table["unanswered"], table["ended_otherwise"]) == (0, 0, {})
    assert 0 < table["latency_ms"]["p50"] <= table["latency_ms"]["p99"]


def test_an_open_loop_sends_when_due_and_names_the_reasons(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(endpoint, "--rate", "200", "--seconds", "0.5", "--slo", "1us", "--finish-min", "0.5") == 1
    said = capsys.readouterr().out
    assert "in time        0 (0.0%" in said and "deadline_expired" in said
    assert run(endpoint, "--rate", "100", "--seconds", "0.5", "--slo", "2s", "--finish-min", "0.9", "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert table["sent"] == len(list(bench.poisson(100, 0.5, 1)))


def test_a_trace_is_replayed_at_its_own_times(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.csv").write_text("arrival_ms,size\n0,1\n20,2\n100,3\n")
    assert run(endpoint, "--arrivals", str(tmp_path / "trace.csv"), "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["sent"], table["in_time"]) == (3, 3)
    assert list(bench.from_trace(str(tmp_path / "trace.csv"), 60.0, 10.0, 1)) == [0, 10_000_000, 50_000_000]


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert list(bench.poisson(50, 2, 7)) == list(bench.poisson(50, 2, 7)) != list(bench.poisson(50, 2, 8))


def test_what_cannot_be_sent_is_said_before_anything_is(endpoint: str) -> None:
    tensor = {"dtype": "float32", "shape": [-1], "optional": False}
    with pytest.raises(BadInput, match="--in image=FILE"):
        bench.example_inputs("reader", {"image": tensor}, {}, 1)
    assert bench.example_inputs("reader", {"image": tensor}, {"image": 1}, 1) == {"image": 1}
    with pytest.raises(UnknownApp, match="did you mean 'echo'"):
        run(endpoint, "--app", "eco")
    with pytest.raises(UnknownApp, match="give --app"):
        bench.choose_app({"a": 1, "b": 2}, None)
    for share in ("nan", "99"):
        with pytest.raises(BadInput, match=f"--finish-min {share}: expected a share from 0 to 1"):
            run(endpoint, "--finish-min", share)
    with pytest.raises(BadInput, match="--rate 999999 for --seconds 60 are 59999940 requests: expected at most"):
        run(endpoint, "--rate", "999999", "--seconds", "60")
    with pytest.raises(BadInput, match="--rate fast"):
        run(endpoint, "--rate", "fast")
