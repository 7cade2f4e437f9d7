"""Candidates and the search among them, in worlds whose scores are made up."""

from __future__ import annotations

import os
import re

import pytest

from edgeserve.config.loading import parse_config
from edgeserve.errors import ConfigError, PolicyError
from edgeserve.sched.core.build import build_scheduler
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.options import defaults_of
from edgeserve.tools.tuning.candidates import (
    OPTIONS,
    SMALLER_BATCHES,
    choice_of,
    everywhere,
    for_app,
    make,
    title,
    todays,
    variants,
)
from edgeserve.tools.tuning.search import Search
from edgeserve.tools.tuning.verdict import Sums

EDGE = {
    "model": {
        "m": {
            "engine": "synthetic",
            "batch": [1, 2, 4, 8],
            "expected": {"1": "1ms", "2": "2ms", "4": "3ms", "8": "4ms"},
        }
    },
    "policy": {"fifo": {}, "mine": {"kind": "edf", "batch_max": 4}},
    "app": {"a": {"model": "m", "policy": "fifo"}, "b": {"model": "m", "policy": "mine"}},
}
CONFIG = parse_config(EDGE)
ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..", "..")


class MadeUp:
    """A subject whose shares are a function of the candidate's configuration, the app and the load."""

    hints = ["length"]
    blocks_name = "blocks"

    def __init__(self, share):
        self.share = share
        self.seen = []

    def choosing(self, made, load):
        self.seen.append((made.config, load))
        found = {}
        for app in made.config.apps.values():
            policy = made.config.policies[app.policy]
            sums = found[0, app.name, ""] = Sums()
            for number in range(1000):
                sums.add(1.0, 1.0, number < 1000 * self.share(app.name, policy.kind, policy.options, load))
        return found


def searched(share, kinds=("fifo", "edf", "clockwork"), loads=(1.0,)):
    subject = MadeUp(share)
    return subject, Search(subject, CONFIG, EDGE, loads, "finish").run(kinds)


# --- candidates -------------------------------------------------------------------------------------------------------


def test_options_that_are_tried_exist_and_can_be_set():
    for kind, options in OPTIONS.items():
        for name, values in options:
            assert name in defaults_of(POLICIES[kind].options_type), (kind, name)
            for value in () if values in (SMALLER_BATCHES,) else values:
                assert value != defaults_of(POLICIES[kind].options_type)[name], (kind, name)
                made = make(everywhere(todays(CONFIG), choice_of(kind, {name: value})), EDGE, CONFIG)
                build_scheduler(made.config)
    assert set(OPTIONS) <= set(POLICIES)


def test_the_page_has_the_table_of_options():
    with open(os.path.join(ROOT, "docs", "guide", "tune.md"), encoding="utf-8") as file:
        rows = dict(re.findall(r"(?m)^\| `([a-z_+]+)` \| (.*) \|$", file.read()))
    own = {kind for kind, known in POLICIES.items() if ":" not in kind and known.__module__.startswith("edgeserve.")}
    assert set(rows) == own
    for kind, row in rows.items():
        assert re.findall(r"`(\w+)`:", row) == [name for name, _ in OPTIONS.get(kind, ())], kind


def test_today_is_what_is_configured():
    assert todays(CONFIG) == (("a", choice_of("fifo", {})), ("b", choice_of("edf", {"batch_max": 4})))
    made = make(todays(CONFIG), EDGE, CONFIG)
    assert made.policies == {}
    assert made.apps == {"a": "fifo", "b": "mine"}
    assert made.config.policies == CONFIG.policies


def test_sections_that_are_there_are_used_and_new_ones_get_free_names():
    candidate = for_app(for_app(todays(CONFIG), "a", choice_of("fifo", {"batch_max": 2})), "b", choice_of("pard+", {}))
    made = make(candidate, EDGE, CONFIG)
    assert made.policies == {"fifo_2": {"kind": "fifo", "batch_max": 2}, "pard_plus": {"kind": "pard+"}}
    assert made.apps == {"a": "fifo_2", "b": "pard_plus"}
    assert title(candidate) == "a: fifo (batch_max = 2); b: pard+"
    assert title(everywhere(candidate, choice_of("edf", {"batch_max": 0}))) == "edf"


def test_values_that_depend_on_the_configuration():
    assert variants(choice_of("fifo", {"batch_max": 4}), CONFIG) == [("batch_max", [0, 1, 2])]
    assert variants(choice_of("clipper", {}), CONFIG) == []


# --- search -----------------------------------------------------------------------------------------------------------


def test_the_best_policy_for_all_is_found():
    _, found = searched(lambda app, kind, options, load: {"clockwork": 0.9, "edf": 0.8}.get(kind, 0.5))
    assert title(found.best) == "clockwork"
    assert found.tried[0].candidate == found.best
    assert found.tried[0].scores == (pytest.approx(0.9),)


def test_options_are_tried_one_after_the_other():
    def share(app, kind, options, load):
        return 0.5 + (kind == "clockwork") * (
            0.1 + 0.1 * (options.get("margin_ms") == 5.0) + 0.1 * (options.get("refuse_early") is False)
        )

    _, found = searched(share)
    assert title(found.best) == "clockwork (margin_ms = 5.0, refuse_early = False)"


def test_apps_get_policies_of_their_own_where_that_helps():
    def share(app, kind, options, load):
        return 0.9 if (app, kind) in (("a", "edf"), ("b", "fifo")) else 0.3

    _, found = searched(share)
    assert dict(found.best)["a"].kind == "edf" and dict(found.best)["b"].kind == "fifo"


def test_today_stays_where_nothing_is_better():
    _, found = searched(lambda app, kind, options, load: 0.7)
    assert found.best == found.today == todays(CONFIG)
    assert found.best_at == {1.0: found.today}


def test_each_load_has_its_best():
    def share(app, kind, options, load):
        return {"fifo": 0.95 if load == 1.0 else 0.2, "edf": 0.9 if load == 1.0 else 0.6}.get(kind, 0.1)

    _, found = searched(share, loads=(1.0, 1.5))
    assert title(found.best) == "edf (batch_max = 4)"  # the options of today are where a kind begins
    assert title(found.best_at[1.0]) == "fifo"
    assert title(found.best_at[1.5]) == title(found.best)


def test_all_candidates_meet_the_same_loads_once():
    subject, found = searched(lambda app, kind, options, load: 0.7, loads=(1.0, 1.5))
    assert len(subject.seen) == 2 * len(found.tried)


def test_a_candidate_that_cannot_run_is_told_of_and_left_out():
    def share(app, kind, options, load):
        if kind == "clockwork":
            raise PolicyError("it moved what it must not")
        return 0.7

    _, found = searched(share)
    failed = [item for item in found.tried if item.failed]
    assert [title(item.candidate) for item in failed] == ["clockwork"]
    assert failed[0].failed == "it moved what it must not"
    assert found.best == found.today


def test_a_configuration_that_cannot_run_is_an_error():
    def share(app, kind, options, load):
        raise PolicyError("broken")

    with pytest.raises(ConfigError, match="as it is: broken"):
        searched(share)
