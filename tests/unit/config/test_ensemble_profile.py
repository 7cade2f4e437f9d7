"""The file of an ensemble: what goes in comes out, what a plan could not rely on is refused by its key."""

from __future__ import annotations

import json

import pytest

from edgeserve.config.ensemble_profile import (
    EnsembleProfile,
    ObservedTable,
    lead_of,
    monotone,
    parse_ensemble,
    read_ensemble,
    read_fit,
    write_ensemble,
)
from edgeserve.config.loading import load_config, parse_config
from edgeserve.errors import ConfigError

EASY, HARD = (0.0, 0.99, 0.99, 1.0), (0.0, 0.6, 0.8, 1.0)
OBSERVED = {1: ObservedTable((0.5,), (((0, 0.5, 0, 1.0), (0, 0.4, 0, 1.0)), ((0, 0.9, 0, 1.0), (0, 0.8, 0, 1.0))))}


def made(**changes):
    given = {
        "models": ("a", "b"),
        "edges": (0.3,),
        "agreement": (EASY, HARD),
        "shares": (0.75, 0.25),
        "weights": (1.0, 2.0),
        "observed": OBSERVED,
        "score_edges": (0.4,),
    }
    return EnsembleProfile(**{**given, **changes})


def test_a_profile_is_read_as_it_was_written_and_the_sections_of_others_stay(tmp_path):
    path = str(tmp_path / "two.json")
    write_ensemble(path, made(), fit={"temperatures": [0.3, 2.8]}, about={"date": "today"})
    assert read_ensemble(path) == made()
    assert read_fit(path)["fit"] == {"temperatures": [0.3, 2.8]}
    with open(path) as file:
        assert "      [0.0, 0.99, 0.99, 1.0],\n" in file.read()  # a row is a line


def test_no_file_is_no_profile(tmp_path):
    assert read_ensemble(str(tmp_path / "none.json")) is None


@pytest.mark.parametrize(("score", "row"), [(0.0, EASY), (0.29, EASY), (0.3, HARD), (1.0, HARD), (7.0, HARD)])
def test_a_score_chooses_its_bin(score, row):
    assert made().row(score) == row


def test_a_request_of_unknown_difficulty_counts_as_the_mean():
    for unknown in (None, float("nan")):
        assert made().row(unknown) == pytest.approx((0.0, 0.8925, 0.9425, 1.0))
    assert made(shares=()).row(None) == pytest.approx((0.0, 0.795, 0.895, 1.0))


@pytest.mark.parametrize(
    ("lead", "score", "row"),
    [
        (0.2, 0.0, (0, 0.5, 0, 1.0)),
        (0.2, 0.4, (0, 0.4, 0, 1.0)),
        (0.5, 0.39, (0, 0.9, 0, 1.0)),
        (0.9, 0.9, (0, 0.8, 0, 1.0)),
    ],
)
def test_what_a_model_said_chooses_a_row(lead, score, row):
    assert made().observed_row(1, lead, score) == row
    assert made().observed_row(2, lead, score) is None


@pytest.mark.parametrize(
    ("votes", "lead"),
    [
        ([], 0.0),
        ([(3, 0.8, 1.0)], 0.8),
        ([(3, 0.8, 1.0), (3, 0.4, 1.0)], 0.6),
        ([(3, 0.8, 1.0), (1, 0.4, 1.0)], 0.2),
        ([(3, 0.8, 0.0), (1, 0.4, 1.0)], 0.4),
        ([(1, 0.5, 2.0), (2, 0.5, 1.0), (2, 0.5, 1.0)], 0.0),
    ],
)
def test_the_lead_of_the_winning_label(votes, lead):
    assert lead_of(votes) == pytest.approx(lead)


def test_a_row_is_made_monotone():
    assert monotone((0.3, 0.9, 0.8, 0.85, 0.7, 0.95, 0.7, 0.99)) == (0.0, 0.9, 0.8, 0.9, 0.7, 0.95, 0.8, 1.0)


WRONG = [
    ({"models": ()}, "expected 1 to 10 different nodes"),
    ({"models": ("a", "a")}, "expected 1 to 10 different nodes"),
    ({"edges": (0.3, 0.3)}, r"edges = \[0.3, 0.3\]: expected rising numbers"),
    ({"edges": ()}, "agreement has 2 rows, and 0 edges make 1 bins"),
    ({"agreement": (EASY, HARD[:3])}, r"agreement\[1\] has 3 numbers: expected 4"),
    ({"agreement": (EASY, (0.0, 0.6, 0.8, 0.9))}, r"agreement\[1\]\[3\] = 0.9: expected 1"),
    ({"agreement": (EASY, (0.1, 0.6, 0.8, 1.0))}, r"agreement\[1\]\[0\] = 0.1: expected 0"),
    ({"agreement": (EASY, (0.0, 1.2, 0.8, 1.0))}, r"agreement\[1\]\[1\] = 1.2: expected a number from 0 to 1"),
    ({"shares": (1.0,)}, "expected 2 numbers from 0"),
    ({"weights": (0.0, 0.0)}, "not all of them 0"),
    ({"observed": {3: OBSERVED[1]}}, "observed.3: expected the number of some models, from 1 to 2"),
    ({"score_edges": ()}, "observed.1.agreement has 2 rows: expected 1"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_what_a_plan_could_not_rely_on_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        made(**changes)


def test_a_larger_subset_that_is_worth_less_is_refused():
    with pytest.raises(ConfigError, match=r"agreement\[0\]\[3\] = 0.7 is below \[1\] = 0.9"):
        EnsembleProfile(("a", "b", "c"), (), ((0, 0.9, 0.5, 0.7, 0.5, 0.9, 0.5, 1.0),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1", "is no ensemble file"),
        ("{}", "edgeserve_ensemble = None, expected 1"),
        (json.dumps({"edgeserve_ensemble": 2}), "= 2, expected 1; make the file again with 'edgeserve profile --fit'"),
        (json.dumps({"edgeserve_ensemble": 1}), "profile = None: expected a table"),
        (json.dumps({"edgeserve_ensemble": 1, "profile": {"modles": []}}), "no key 'modles'"),
        (json.dumps({"edgeserve_ensemble": 1, "profile": {"models": "ab"}}), "models = 'ab': expected a list"),
        (
            json.dumps({"edgeserve_ensemble": 1, "profile": {"models": ["a"], "agreement": [[0, "x"]]}}),
            r"profile agreement\[0\]\[1\] = 'x': expected a number",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_ensemble(str(path))
    assert str(caught.value).startswith(str(path))


def config(ensemble, join=None):
    return {
        "model": {name: {"engine": "synthetic", "expected": {"1": "1ms"}} for name in ("a", "b", "vote")},
        "app": {
            "two": {
                "ensemble": ensemble,
                "node": [
                    {"name": "a", "after": []},
                    {"name": "b", "after": []},
                    {"name": "vote", "after": join or ["a", "b"], "join": "policy"},
                ],
            }
        },
    }


def test_an_app_names_its_file_or_holds_the_table(tmp_path):
    write_ensemble(str(tmp_path / "two.json"), made())
    assert parse_config(config("two.json"), str(tmp_path)).apps["two"].ensemble_profile == made()
    assert parse_config(config("later.json"), str(tmp_path)).apps["two"].ensemble_profile is None
    row = {"models": ["a", "b"], "agreement": [[0, 0.5, 0.6, 1]]}
    assert parse_config(config(row)).apps["two"].ensemble_profile.agreement == ((0.0, 0.5, 0.6, 1.0),)


def test_a_profile_of_other_nodes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\[app.two\] ensemble: it was fitted for the models a, c, .* no node c"):
        parse_config(config({"models": ["a", "c"], "agreement": [[0, 0.5, 0.6, 1]]}))
    with pytest.raises(ConfigError, match="exactly one node must stand behind all of a, b"):
        parse_config(config({"models": ["a", "b"], "agreement": [[0, 0.5, 0.6, 1]]}, join=["a"]))
    (tmp_path / "edge.toml").write_text("[app.two]\nensemble = 3\nmodel = 'a'\n[model.a]\nengine = 'synthetic'\n")
    with pytest.raises(ConfigError, match="ensemble = 3: expected a string"):
        load_config(str(tmp_path / "edge.toml"))


def test_parse_says_where():
    with pytest.raises(ConfigError, match=r"\[app.two.ensemble\]: profile lacks the key 'agreement'"):
        parse_ensemble({"models": ["a"]}, "[app.two.ensemble]")
