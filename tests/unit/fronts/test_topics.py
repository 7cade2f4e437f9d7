"""Names as topics and as Home Assistant's keys."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeserve.front.topics import key_of, label_of, topic_part
from edgeserve.fronts.home_assistant import entities
from edgeserve.fronts.mqtt_settings import Mqtt

names = st.text(st.sampled_from("ab2e.-_+#/%é "), min_size=1, max_size=8)


@given(st.sets(names, min_size=2))
def test_two_names_never_become_one(some):
    for escape in (topic_part, key_of, label_of):
        assert len({escape(name) for name in some}) == len(some)


@given(st.sets(st.tuples(names.map(key_of), names), min_size=2))
def test_a_label_behind_a_name_is_told_from_any_other(some):
    assert len({f"{camera}_{label_of(label)}" for camera, label in some}) == len(some)


words = st.lists(
    st.sampled_from(["answer", "ask", "camera", "lane", "app", "x", "count", "event", "ready"]), min_size=1
)
some_names = st.sets(words.map("_".join), min_size=1, max_size=6)


@given(some_names, some_names, some_names, some_names)
def test_no_two_entities_have_one_topic(apps, cameras, labels, lanes):
    text = {"inputs": {"prompt": {"dtype": "text"}}, "outputs": ["text"]}
    options = Mqtt(name="a", ask=tuple(apps), cameras=dict.fromkeys(cameras, "a"), detect="b", watch=tuple(labels))
    served, none = dict.fromkeys(apps, text), {"apps": {}}
    told = entities(options, served, {"apps": served}, {"lanes": dict.fromkeys(lanes)})
    alone = len(entities(Mqtt(name="a"), {}, none, {}))
    assert len(told) == alone + len(apps) * 5 + len(cameras) * (2 + len(labels)) + len(lanes)


@given(st.text(min_size=1))
def test_keys_hold_letters_digits_and_dashes(name):
    assert re.fullmatch(r"[A-Za-z0-9_-]+", key_of(name)) and re.fullmatch(r"[A-Za-z0-9-]+", label_of(name))
    assert not set(topic_part(name)) & set("+#/")


@pytest.mark.parametrize("name", ["plain", "a_b", "qwen-3", "a b", "Straße"])
def test_usual_names_are_topics_as_they_are(name):
    assert topic_part(name) == name
