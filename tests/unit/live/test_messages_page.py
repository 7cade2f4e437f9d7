"""The page of what mistakes say: each text is what is said."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest

from edgeserve.answers import Answer
from edgeserve.config.loading import load_config, parse_config
from edgeserve.engines.base import Batch
from edgeserve.engines.python import make
from edgeserve.errors import ConfigError
from edgeserve.ipc.endpoints import check_endpoint
from edgeserve.live.preflight import check_before_loading, raise_or_tell
from edgeserve.live.request import request_of_call, request_validators
from edgeserve.sched.policies import POLICIES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "messages.md"
X = np.zeros((3, 4), np.float32)
MODEL = {"engine": "synthetic", "expected": {"1": "10ms"}}
APP: Dict[str, Any] = {"model": "m", "inputs": {"image": {"shape": [3, 4]}}}


def check(inputs: Any, hints: Any = None) -> Any:
    config = parse_config({"model": {"m": MODEL}, "app": {"a": APP}})
    return lambda folder: request_validators(config)["a"].check(request_of_call("a", inputs, hints=hints), None, 0)


def configure(**tables: Any) -> Any:
    return lambda folder: request_validators(parse_config({"model": {"m": MODEL}, "app": {"a": APP}, **tables}))


def output(folder: Path) -> Any:
    return Answer({"label": 1, "score": 2})["scroe"]


def empty(folder: Path) -> Any:
    (folder / "edge.toml").write_text("", encoding="utf-8")
    return load_config(str(folder / "edge.toml"))


def before_loading(**tables: Any) -> Any:
    def said(folder: Path) -> Any:
        config = parse_config({"model": {"m": MODEL}, "app": {"a": APP}, **tables})
        return raise_or_tell(check_before_loading(config, [], {}), print)

    return said


def in_use(folder: Path) -> Any:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        try:
            check_endpoint(f"tcp://127.0.0.1:{port}")
        except ConfigError as error:
            raise ConfigError(str(error).replace(f":{port}'", ":PORT'")) from None


SAID = {
    "an input missing, a similar one sent": check({"images": X}),
    "wrong number of axes": check({"image": X[0]}),
    "with a batch axis": check({"image": X[None]}),
    "wrong type": check({"image": X.astype("f8")}),
    "a misspelt hint": check({"image": X}, {"lenght": 3}),
    "an output that is not there": output,
    "a key missing": configure(model={"m": {"expected": {"1": "10ms"}}}),
    "an empty file": empty,
    "an undefined device": configure(device={"gpu": {}}, lane={"gpu0": {}}),
    "an undefined model": configure(app={"a": {"node": [{"name": "cut"}]}}),
    "a policy named by its section": before_loading(policy={"edff": {}}),
    "a hint that no policy reads": configure(app={"a": {**APP, "predict": {"lenght": "f:g"}}}),
    "an unknown engine": before_loading(model={"m": {"engine": "onx"}}),
    "a bad endpoint": lambda folder: check_endpoint("http://localhost:80"),
    "a port that is none": lambda folder: check_endpoint("tcp://127.0.0.1:70000"),
    "an endpoint in use": in_use,
    "one axis counted": configure(
        app={"a": {"model": "m", "inputs": {"x": {"shape": [4]}}, "predict": {"length": "x[1]"}}}
    ),
}


def rows() -> Dict[str, str]:
    """Mistake -> what the page says is said now."""
    cells = [
        line.strip("| \n").split(" | ")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    return {row[0]: row[1].rstrip() for row in cells[2:]}


@pytest.mark.parametrize("mistake", sorted(SAID))
def test_the_page_says_what_is_said_now(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in [kind for kind, made in POLICIES.items() if not made.__module__.startswith("edgeserve.")]:
        monkeypatch.delitem(POLICIES, kind)  # a replication's, where its tests ran in this process before
    with pytest.raises(Exception) as caught:
        SAID[mistake](tmp_path)
    said = str(caught.value.args[0] if isinstance(caught.value, KeyError) else caught.value)
    assert f"{type(caught.value).__name__}: {said.replace(str(tmp_path), 'DIR')}" == rows()[mistake]


def test_a_function_that_looks_for_another_input(tmp_path: Path) -> None:
    (tmp_path / "steps_of_page.py").write_text("def f(item): return {'y': item['image']}\n", encoding="utf-8")
    config = parse_config({"model": {"m": {"engine": "python", "function": "steps_of_page:f"}}, "app": {"a": APP}})
    engine = make(config.models["m"], [], str(tmp_path))
    engine.load()
    (result,) = engine.run(Batch([{"x": X}], 1))
    said = str(result.error).replace("steps_of_page", "steps").replace(str(tmp_path), "DIR")
    assert rows()["a function that looks for another input"] == f"Failed: app 'a': failed: {said}"


def test_every_text_of_the_page_is_held() -> None:
    texts = {
        mistake
        for mistake, now in rows().items()
        if "Error: " in now or now.startswith(("BadInput: ", "Failed: ", "UnknownOutput: "))
    }
    assert texts == {*SAID, "a function that looks for another input"}
