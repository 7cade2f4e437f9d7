"""Hints of a request that are read off its inputs, as the app says, and hints that it brings."""

from __future__ import annotations

import logging
import time
from typing import Any, Mapping, Optional

import numpy as np
import pytest

from edgeserve.config.loading import parse_config
from edgeserve.errors import EngineError
from edgeserve.live.request import RequestValidator, request_of_call, request_validators
from edgeserve.live.responders import RequestFuture


def rules(directory: str = ".", **app: Any) -> RequestValidator:
    inputs = {"crop": {"shape": [3, 48, -1], "optional": True}, "n": {"dtype": "int64", "shape": []}}
    apps = {"a": {"model": "m", "inputs": inputs, **app}}
    config = parse_config({"model": {"m": {"engine": "synthetic"}}, "app": apps}, directory=directory)
    return request_validators(config)["a"]


def hints_of(validator: RequestValidator, options: Mapping[str, Any], **inputs: Any) -> Optional[Mapping[str, float]]:
    """The hints of a checked request, predicted ones included."""
    request = request_of_call("a", inputs, **options)
    validator.check(request, RequestFuture(lambda future: None), 0)
    if request.predictors is None or not request.predictors.missing(request.hints):
        return request.hints
    return request.predictors.on_arrival(request.hints, request.inputs, time.monotonic_ns)


NO_OPTIONS: Mapping[str, Any] = {}


CROP = np.zeros((3, 48, 320), np.float32)
NUMBER = np.array(1, np.int64)


@pytest.mark.parametrize("options", [NO_OPTIONS, {"priority_class": "critical"}, {"hints": {}}])
def test_the_length_of_a_request_is_the_size_of_the_axis_that_the_app_names(options: Mapping[str, Any]) -> None:
    assert hints_of(rules(predict={"length": "crop[2]"}), options, crop=CROP, n=NUMBER) == {"length": 320}
    assert hints_of(rules(predict={"length": "crop[1]"}), options, crop=CROP, n=NUMBER) == {"length": 48}


def test_a_request_that_states_its_length_keeps_it_and_its_other_hints_stay() -> None:
    app = rules(predict={"length": "crop[2]"})
    assert hints_of(app, {"hints": {"length": 7}}, crop=CROP, n=NUMBER) == {"length": 7}
    assert hints_of(app, {"hints": {"steps": 2}}, crop=CROP, n=NUMBER) == {"length": 320, "steps": 2}


def test_without_the_input_or_without_the_key_there_is_no_length() -> None:
    assert hints_of(rules(predict={"length": "crop[2]"}), NO_OPTIONS, n=NUMBER) is None
    assert hints_of(rules(), NO_OPTIONS, crop=CROP, n=NUMBER) is None
    assert hints_of(rules(), {"hints": {"steps": 2}}, crop=CROP, n=NUMBER) == {"steps": 2}


def test_the_usual_terms_are_not_changed_by_one_request() -> None:
    app = rules(predict={"length": "crop[2]"})
    assert hints_of(app, NO_OPTIONS, crop=CROP, n=NUMBER) == {"length": 320}
    assert hints_of(app, NO_OPTIONS, crop=CROP[:, :, :96], n=NUMBER) == {"length": 96}


def test_hints_that_a_request_brings_become_plain_numbers() -> None:
    """Numpy's could not be recorded."""
    hints = hints_of(rules(), {"hints": {"steps": np.int64(3), "work": np.float32(0.5)}}, crop=CROP, n=NUMBER)
    assert hints == {"steps": 3, "work": 0.5}
    assert hints is not None and {name: type(number) for name, number in hints.items()} == {"steps": int, "work": float}


# --- predictors -------------------------------------------------------------------------------------------------------

PREDICTORS = """
import numpy as np
asked = []

def width(inputs):
    asked.append(sorted(inputs))
    return inputs["crop"].shape[2]

def bright(inputs):
    return inputs["crop"].mean()          # a number of numpy's

def odd(inputs):
    return {0: None, 1: "3", 2: float("nan"), 3: True, 4: 1e300, 5: np.zeros(2), 6: 10**5000}[int(inputs["n"])]

def leave(inputs):
    raise SystemExit("a predictor wanted to leave")
"""


def failed(app: RequestValidator) -> Mapping[str, int]:
    assert app.predictors is not None
    return app.predictors.failed()


def predicting(tmp_path: Any, **hints: str) -> RequestValidator:
    (tmp_path / "guesses.py").write_text(PREDICTORS)
    return rules(str(tmp_path), predict={hint: f"guesses:{name}" for hint, name in hints.items()})


@pytest.mark.parametrize("options", [NO_OPTIONS, {"priority_class": "critical"}, {"hints": {}}])
def test_a_predictor_gets_the_inputs_and_its_number_becomes_the_hint(tmp_path: Any, options: Mapping[str, Any]) -> None:
    app = predicting(tmp_path, length="width", work="bright")
    hints = hints_of(app, options, crop=CROP + np.float32(0.5), n=NUMBER)
    assert hints == {"length": 320, "work": 0.5}
    assert hints is not None and type(hints["work"]) is float
    assert failed(app) == {}


def test_what_a_request_says_of_itself_is_not_predicted(tmp_path: Any) -> None:
    app = predicting(tmp_path, length="width", work="bright")
    assert hints_of(app, {"hints": {"length": 7}}, crop=CROP, n=NUMBER) == {"length": 7, "work": 0.0}
    import guesses  # type: ignore[import-not-found]

    assert guesses.asked == []


def test_a_predictor_that_raises_costs_its_hint_alone_and_is_told_once(tmp_path: Any, caplog: Any) -> None:
    app = predicting(tmp_path, length="width", work="odd")
    with caplog.at_level(logging.WARNING, "edgeserve"):
        for _ in range(3):  # no crop: width raises; n is 1: odd returns a string
            assert hints_of(app, {"hints": {"steps": 2}}, n=NUMBER) == {"steps": 2}
    assert failed(app) == {"length": 3, "work": 3}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "[app.a.predict] 'length' = 'guesses:width' failed" in told[0] and "it raised KeyError('crop')" in told[0]
    assert "'work' = 'guesses:odd'" in told[1] and "returned '3', expected a number from" in told[1]


@pytest.mark.parametrize("place", range(7))
def test_what_is_no_finite_number_is_no_hint(tmp_path: Any, place: int) -> None:
    app = predicting(tmp_path, work="odd")
    assert hints_of(app, NO_OPTIONS, crop=CROP, n=np.array(place)) is None
    assert failed(app) == {"work": 1}


def test_a_predictor_cannot_end_the_loop_that_asks_it(tmp_path: Any) -> None:
    app = predicting(tmp_path, work="leave")
    assert hints_of(app, NO_OPTIONS, crop=CROP, n=NUMBER) is None
    assert failed(app) == {"work": 1}


@pytest.mark.parametrize(
    ("spec", "says"),
    [("nowhere:f", "module 'nowhere' cannot be imported"), ("guesses:nothing", "has no function or class 'nothing'")],
)
def test_a_predictor_that_cannot_be_found_is_refused_with_its_key(tmp_path: Any, spec: str, says: str) -> None:
    (tmp_path / "guesses.py").write_text(PREDICTORS)
    with pytest.raises(EngineError, match=f"predict. 'm.work' = '{spec}'.*{says}"):
        rules(str(tmp_path), predict={"m.work": spec})
