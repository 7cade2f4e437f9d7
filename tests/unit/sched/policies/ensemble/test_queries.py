"""What is an ensemble, and what its models add to a request of which some have begun."""

from __future__ import annotations

import pytest
from hand_world import MS, app_of, job

from edgeserve.sched.policies.ensemble.queries import Query, ensemble_of

EASY = [0, 0.9, 0.8, 0.95, 0.7, 0.95, 0.9, 1]
HARD = [0, 0.5, 0.4, 0.7, 0.3, 0.6, 0.5, 1]
MODELS = [{"name": "b", "after": []}, {"name": "a", "after": []}, {"name": "c", "after": []}]
VOTE = {"name": "vote", "after": ["c", "a", "b"], "join": "policy"}
FITTED = {"models": ["a", "b", "c"], "edges": [0.5], "agreement": [EASY, HARD], "shares": [3.0, 1.0]}


def ensemble(nodes=(*MODELS, VOTE), score="", **app):
    return ensemble_of(app_of([dict(node) for node in nodes], **app), score)


def query(found, last=90, early=0, **request):
    return Query(job(1, found.app, node=found.nodes[0].name, **request).request, found, last * MS, early * MS)


def names(nodes):
    return [node.name for node in nodes]


# --- which apps are ensembles -----------------------------------------------------------------------------------------


def test_the_models_stand_in_the_order_of_the_profile_or_else_of_the_app():
    assert names(ensemble(ensemble=FITTED).nodes) == ["a", "b", "c"]
    found = ensemble()
    assert names(found.nodes) == names(node for node in found.app.nodes if node.name != "vote")
    assert (found.bits, found.full, found.join.name) == (
        {node.name: bit for bit, node in enumerate(found.nodes)},
        0b111,
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


def test_a_join_of_all_beside_one_of_the_policy_is_what_it_waits_for():
    nodes = [*MODELS, {"name": "all", "after": ["b", "c"]}, {"name": "vote", "after": ["a", "all"], "join": "policy"}]
    found = ensemble(nodes)
    assert (names(found.nodes), found.join.name) == (["a", "all"], "vote")
    assert found.leads == {"b", "c"}


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


def branches(**first):
    return [
        {"name": "cut", "after": [], **first},
        *[{"name": name, "after": ["cut"]} for name in "abc"],
        {"name": "vote", "after": ["a", "b", "c"], "join": "policy"},
    ]


@pytest.mark.parametrize("fitted", [{}, {"ensemble": FITTED}])
def test_models_whose_join_runs_once_per_part_are_no_ensemble(fitted):
    gather = {"name": "all", "after": ["vote"], "gather": True}
    assert ensemble([*branches(fan_out=True), gather], **fitted) is None
    assert ensemble([*branches(), {**gather, "gather": False}], **fitted) is not None


@pytest.mark.parametrize("kind", [{"fan_out": True}, {"route": "one"}])
def test_models_that_make_parts_or_choose_are_no_ensemble(kind):
    fitted = {"models": ["b"], "agreement": [[0, 1]]}
    alone = [MODELS[0], {"name": "vote", "after": ["b"]}]
    assert ensemble(alone, ensemble=fitted) is not None
    assert ensemble([{**MODELS[0], **kind}, {**alone[1], "gather": "fan_out" in kind}], ensemble=fitted) is None
    cut = [{"name": "cut", "fan_out": True}, {"name": "x", "after": ["cut"]}, {"name": "y", "after": ["cut"]}]
    assert ensemble([*cut, {"name": "all", "after": ["x", "y"], "gather": True, "join": "policy"}]) is None


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


def test_the_hint_of_the_difficulty_is_the_policys_or_else_the_profiles():
    assert ensemble().score == ""
    assert ensemble(ensemble=FITTED).score == "difficulty"
    assert ensemble(ensemble={**FITTED, "score": "blur"}).score == "blur"
    assert ensemble(score="noise", ensemble=FITTED).score == "noise"


# --- what an answer is worth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hints", "row"), [({"difficulty": 0.4}, EASY), ({"difficulty": 0.5}, HARD), ({"blur": 0.1}, None), ({}, None)]
)
def test_a_request_is_worth_what_its_difficulty_says(hints, row):
    found = ensemble(ensemble=FITTED)
    mean = [0.75 * easy + 0.25 * hard for easy, hard in zip(EASY, HARD)]
    assert query(found, hints=hints).row == pytest.approx(row or mean)


def test_without_a_profile_each_model_counts_alike():
    found = ensemble()
    third = 1 / 3
    assert found.mean == pytest.approx([0, third, third, 2 * third, third, 2 * third, 2 * third, 1])
    assert query(found, hints={"difficulty": 0.1, "": 0.1}).row == found.mean
    assert found.observed(query(found).request, 1) is None


SURE, TORN = [0, 0.99, 0, 0.99, 0, 0.99, 0, 1], [0, 0.3, 0, 0.4, 0, 0.5, 0, 1]
AGREED, SPLIT = [0, 0, 0, 0.97, 0, 0, 0, 1], [0, 0, 0, 0.2, 0, 0, 0, 1]
OBSERVED = {
    **FITTED,
    "observed": {
        "1": {"edges": [0.5], "agreement": [[TORN], [SURE]]},
        "3": {"edges": [0.3], "agreement": [[SPLIT], [AGREED]]},
    },
}


@pytest.mark.parametrize(
    ("answered", "hints", "weights", "row"),
    [
        (0b001, {"a.label": 3, "a.margin": 0.49}, (), TORN),
        (0b001, {"a.label": 3, "a.margin": 0.5}, (), SURE),
        (0b001, {"a.label": 3}, (), None),
        (0b001, {"a.margin": 0.9}, (), None),
        (0b001, {}, (), None),
        (0b001, {"b.label": 3, "b.margin": 0.9}, (), None),
        (0b010, {"b.label": 3, "b.margin": 0.9}, (), None),
        (0b011, {"a.label": 3, "a.margin": 0.9, "b.label": 3, "b.margin": 0.1}, (), AGREED),
        (0b011, {"a.label": 3, "a.margin": 0.9, "b.label": 4, "b.margin": 0.7}, (), SPLIT),
        (0b011, {"a.label": 3, "a.margin": 0.9, "b.label": 4, "b.margin": 0.7}, (9.0, 1.0, 1.0), AGREED),
        (0b011, {"a.label": 3, "a.margin": 0.9, "b.label": 4, "b.margin": 0.7}, (1.0, 2.0, 1.0), SPLIT),
        (0b011, {"a.label": 3, "a.margin": 0.9, "b.label": 4}, (), None),
    ],
)
def test_what_the_models_that_answered_say_of_the_others(answered, hints, weights, row):
    found = ensemble(ensemble={**OBSERVED, "weights": list(weights)})
    assert found.observed(query(found, hints=hints).request, answered) == (None if row is None else tuple(row))


def test_models_that_answer_no_longer_run_and_what_they_said_counts_for_all_that_hold_them():
    mine = query(ensemble(ensemble=OBSERVED), hints={"difficulty": 0.1, "a.label": 1, "a.margin": 0.1})
    mine.running = 0b101
    mine.answers(0)
    assert (mine.answered, mine.running, mine.begun()) == (0b001, 0b100, 0b101)
    assert [mine.worth(subset) for subset in range(8)] == [0, 0.3, 0.8, 0.4, 0.7, 0.5, 0.9, 1]
    mine.answers(2)  # of both together the history tells nothing
    assert (mine.answered, mine.running) == (0b101, 0)
    assert [mine.worth(subset) for subset in range(8)] == EASY


@pytest.mark.parametrize(
    ("begun", "least", "gains"),
    [
        (0, 0.0, [0, 0.5, 0.4, 0.7, 0.3, 0.6, 0.5, 1]),
        (0, 0.5, [0, 0.5, 0, 0.7, 0, 0.6, 0.5, 1]),
        (0b001, 0.0, [0, 0, 0.2, 0.2, 0.1, 0.1, 0.5, 0.5]),
        (0b001, 0.5, [0, 0, 0.2, 0.2, 0.1, 0.1, 0.5, 0.5]),
        (0b001, 0.51, [0, 0, 0.7, 0.7, 0.6, 0.6, 1, 1]),
        (0b110, 0.5, [0, 0.5, 0, 0.5, 0, 0.5, 0, 0.5]),
        (0b110, 0.6, [0, 1, 0, 1, 0, 1, 0, 1]),
    ],
)
@pytest.mark.parametrize("runs", [True, False])
def test_more_models_add_what_is_of_use_to_those_that_have_begun(begun, least, gains, runs):
    mine = query(ensemble(ensemble=FITTED), hints={"difficulty": 0.9}, quality_min=least)
    mine.running, mine.answered = (begun, 0) if runs else (0, begun)
    assert [mine.gain(subset) for subset in range(8)] == pytest.approx(gains)


# --- a request --------------------------------------------------------------------------------------------------------


def test_a_new_request_has_nothing_begun_planned_or_said():
    found = ensemble(ensemble=FITTED)
    mine = query(found, last=90, early=7)
    assert (mine.answered, mine.running, mine.gone, mine.planned, mine.committed, mine.wanted) == (0,) * 6
    assert (mine.jobs, mine.observed, mine.is_judged, mine.is_noted, mine.is_scored) == ({}, None) + (False,) * 3
    assert (mine.last_ns, mine.due_ns, mine.waiting()) == (90 * MS, 83 * MS, 0)


def test_the_models_that_wait_are_those_whose_jobs_are_ready():
    mine = query(ensemble(ensemble=FITTED))
    for bit in (2, 0):
        mine.jobs[bit] = job(bit, mine.ensemble.app, node=mine.ensemble.nodes[bit].name)
    assert mine.waiting() == 0b101


def test_requests_stand_in_order_of_due_time_then_arrival_then_number():
    found = ensemble(ensemble=FITTED)
    due, arrived, numbered, last = [
        query(found, last, early, arrival=arrival, id=number)
        for last, early, arrival, number in ((100, 20, 5, 9), (90, 0, 1, 8), (95, 5, 2, 1), (90, 0, 2, 2))
    ]
    assert sorted([last, numbered, arrived, due], key=Query.key) == [due, arrived, numbered, last]


def test_a_difficulty_that_comes_later_is_told_once():
    late = query(ensemble(ensemble=FITTED))
    assert not late.score_came()
    late.request.hints = {"blur": 0.9}
    assert not late.score_came()
    late.request.hints = {"blur": 0.9, "difficulty": 0.9}
    assert late.score_came()
    assert late.row == tuple(HARD)
    late.request.hints = {"difficulty": 0.1}
    assert not late.score_came()
    assert late.row == tuple(HARD)
    assert not query(ensemble(ensemble=FITTED), hints={"difficulty": 0.9}).score_came()
