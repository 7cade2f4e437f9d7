"""What was asked: the length of a request, read from its inputs as the app says."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import numpy as np
import pytest

from edgeserve.config import parse_config
from edgeserve.live.asked import NO_WISHES, AppRules, Wishes, app_rules


def rules(**app: Any) -> AppRules:
    inputs = {"crop": {"shape": [3, 48, -1], "optional": True}, "n": {"dtype": "int64", "shape": []}}
    apps = {"a": {"model": "m", "inputs": inputs, **app}}
    return app_rules(parse_config({"model": {"m": {"engine": "synthetic"}}, "app": apps}))["a"]


def facts_of(rules: AppRules, wishes: Wishes, **inputs: Any) -> Optional[Mapping[str, float]]:
    rules.check_inputs(inputs)
    return rules.settle_terms(wishes, inputs).facts


CROP = np.zeros((3, 48, 320), np.float32)
NUMBER = np.array(1, np.int64)


@pytest.mark.parametrize("wishes", [NO_WISHES, Wishes(klass="critical"), Wishes(facts={})])
def test_the_length_of_a_request_is_the_size_of_the_axis_that_the_app_names(wishes: Wishes) -> None:
    assert facts_of(rules(length="crop[2]"), wishes, crop=CROP, n=NUMBER) == {"length": 320}
    assert facts_of(rules(length="crop[1]"), wishes, crop=CROP, n=NUMBER) == {"length": 48}


def test_a_request_that_states_its_length_keeps_it_and_its_other_facts_stay() -> None:
    app = rules(length="crop[2]")
    assert facts_of(app, Wishes(facts={"length": 7}), crop=CROP, n=NUMBER) == {"length": 7}
    assert facts_of(app, Wishes(facts={"steps": 2}), crop=CROP, n=NUMBER) == {"length": 320, "steps": 2}


def test_without_the_input_or_without_the_key_there_is_no_length() -> None:
    assert facts_of(rules(length="crop[2]"), NO_WISHES, n=NUMBER) is None
    assert facts_of(rules(), NO_WISHES, crop=CROP, n=NUMBER) is None
    assert facts_of(rules(), Wishes(facts={"steps": 2}), crop=CROP, n=NUMBER) == {"steps": 2}


def test_the_usual_terms_are_not_changed_by_one_request() -> None:
    app = rules(length="crop[2]")
    assert facts_of(app, NO_WISHES, crop=CROP, n=NUMBER) == {"length": 320}
    assert facts_of(app, NO_WISHES, crop=CROP[:, :, :96], n=NUMBER) == {"length": 96}
