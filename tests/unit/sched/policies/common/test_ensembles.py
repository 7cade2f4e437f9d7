"""Ensembles, and the worth that a model adds to a request of which some have begun."""

from __future__ import annotations

from hand_world import app_of

from edgeserve.sched.policies.common.ensembles import ensemble_of

EASY = [0, 0.9, 0.8, 0.95, 0.7, 0.95, 0.9, 1]
HARD = [0, 0.5, 0.4, 0.7, 0.3, 0.6, 0.5, 1]
MODELS = [{"name": "b", "after": []}, {"name": "a", "after": []}, {"name": "c", "after": []}]
VOTE = {"name": "vote", "after": ["c", "a", "b"], "join": "policy"}
FITTED = {"models": ["a", "b", "c"], "edges": [0.5], "agreement": [EASY, HARD], "shares": [3.0, 1.0]}


def ensemble(nodes=(*MODELS, VOTE), **app):
    return ensemble_of(app_of([dict(node) for node in nodes], **app))


def names(nodes):
    return [node.name for node in nodes]


# --- which apps are ensembles -----------------------------------------------------------------------------------------


def test_the_models_stand_in_the_order_of_the_profile_or_else_of_the_app():
    assert names(ensemble(ensemble=FITTED).nodes) == ["a", "b", "c"]
    found = ensemble()
    assert names(found.nodes) == names(node for node in found.app.nodes if node.name != "vote")
    assert (found.bits, found.join.name) == (
        {node.name: bit for bit, node in enumerate(found.nodes)},
        "vote",
    )


def test_a_chosen_join_of_one_branch_or_of_none_makes_no_ensemble():
    assert ensemble([MODELS[0], {"name": "vote", "after": ["b"], "join": "policy"}]) is None
    assert ensemble([MODELS[0], MODELS[1], {"name": "vote", "after": ["b", "a"], "join": "policy"}]) is not None
    assert ensemble([*MODELS, {"name": "vote", "after": ["a", "b", "c"]}]) is None
    two = [
        *MODELS,
        {"name": "d", "after": []},
        {"name": "one", "after": ["a", "b"], "join": "policy"},
        {"name": "two", "after": ["c", "d"], "join": "policy"},
    ]
    assert ensemble(two) is None


def test_models_that_run_once_per_part_make_no_ensemble():
    parts = [{"name": "cut", "fan_out": True}, *[{**node, "after": ["cut"]} for node in MODELS]]
    gather = {"name": "vote", "after": ["c", "a", "b"], "gather": True}
    assert ensemble([*parts, gather], ensemble=FITTED) is None
    assert ensemble([{**parts[0], "fan_out": False}, *parts[1:], VOTE], ensemble=FITTED) is not None


def test_a_model_that_more_than_the_join_waits_for_makes_no_ensemble():
    more = {"name": "log", "after": ["a"]}
    assert ensemble([*MODELS, VOTE, more]) is None
    assert ensemble([*MODELS, VOTE, more], ensemble=FITTED) is None
    assert ensemble([*MODELS, VOTE, {"name": "log", "after": ["vote"]}]) is not None


def test_what_stands_before_the_models_leads_and_what_else_the_join_waits_for_helps():
    nodes = [
        {"name": "crop", "after": []},
        {"name": "scale", "after": ["crop"]},
        {"name": "a", "after": ["scale"]},
        {"name": "b", "after": ["crop"]},
        {"name": "score", "after": []},
        {"name": "tell", "after": []},
        {"name": "told", "after": ["tell"]},
        {"name": "vote", "after": ["a", "b", "score", "tell"], "join": "policy"},
    ]
    fitted = {"models": ["a", "b"], "agreement": [[0, 0.5, 0.6, 1]]}
    found = ensemble(nodes, ensemble=fitted)
    assert (found.leads, found.helpers) == ({"crop", "scale"}, {"score"})  # the join is not all that tell goes to
