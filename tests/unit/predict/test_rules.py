"""The rule scores: the paper's examples, sentences from templates of each kind, and every rule alone."""

from __future__ import annotations

import random
from typing import Callable, Dict

import pytest

from edgeserve.predict.rules import TEXT_MAX, RuleScorer, lemma

KINDS = ("structural", "syntactic", "semantic", "vague", "open_ended", "multi_part")
SCORER = RuleScorer()

# RT-LM, Table I: one sentence of each kind.
EXAMPLES = {
    "structural": "John saw a boy in the park with a telescope.",
    "syntactic": "Rice flies like sand.",
    "semantic": "What's the best way to deal with bats?",
    "vague": "Tell me about the history of art.",
    "open_ended": "What are the causes and consequences of poverty in developing countries?",
    "multi_part": "How do cats and dogs differ in behavior, diet, and social interaction?",
}


def structural(draw: random.Random) -> str:
    who, verb = draw.choice(["Mary", "The guard", "My uncle"]), draw.choice(["saw", "met", "found", "painted", "heard"])
    whom, where = draw.choice(["a girl", "the farmer", "an actor"]), draw.choice(["on the hill", "in the garden"])
    return f"{who} {verb} {whom} {where} {draw.choice(['with a camera', 'from the village', 'under a tree'])}."


def syntactic(draw: random.Random) -> str:
    first = draw.choice(["Time", "Fruit", "Ship", "Wind", "Water", "Paper"])
    return f"{first} {draw.choice(['flies', 'waves', 'ships', 'rolls', 'turns'])} like {draw.choice(['sand', 'rain'])}."


def semantic(draw: random.Random) -> str:
    return (
        f"Where is {draw.choice(['the bank', 'the bat', 'the spring', 'the crane', 'the mouse'])} "
        f"near {draw.choice(['the trunk', 'the key', 'the cell', 'the bridge'])}?"
    )


def vague(draw: random.Random) -> str:
    return (
        f"{draw.choice(['Tell me', 'Say'])} {draw.choice(['something', 'everything', 'anything'])} about "
        f"{draw.choice(['life', 'culture', 'religion', 'technology'])} and {draw.choice(['things', 'stuff'])}."
    )


def open_ended(draw: random.Random) -> str:
    topic = draw.choice(["inflation", "deforestation", "migration", "erosion"])
    return draw.choice(
        [
            f"Why do experts explain {topic} differently?",
            f"Why would you describe {topic} as bad?",
            f"What are the main causes and effects of {topic}?",
            f"Explain why {topic} matters, and what if it ends?",
        ]
    )


def multi_part(draw: random.Random) -> str:
    one, other = draw.sample(["coffee", "tea", "milk", "juice"], 2)
    return draw.choice(
        [
            f"Who sells {one}, where is {other} made, and when does it arrive?",
            f"How does {one} differ in taste, price, and colour from {other}?",
            f"What is {one}? And what is {other}?",
        ]
    )


TEMPLATES: Dict[str, Callable[[random.Random], str]] = {
    "structural": structural,
    "syntactic": syntactic,
    "semantic": semantic,
    "vague": vague,
    "open_ended": open_ended,
    "multi_part": multi_part,
}


def largest(text: str) -> str:
    scores = SCORER.scores(text)
    return max(KINDS, key=lambda kind: getattr(scores, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_papers_example_scores_most_on_its_own_rule(kind: str) -> None:
    assert largest(EXAMPLES[kind]) == kind


def test_plain_sentences_score_nothing() -> None:
    draw = random.Random(6)
    for _ in range(300):
        who, what = draw.choice(["The girl", "My brother", "A doctor"]), draw.choice(["an egg", "the jacket", "a lamp"])
        scores = SCORER.scores(f"{who} {draw.choice(['has', 'will have', 'needs'])} {what}.")
        assert scores[:6] == (0, 0, 0, 0, 0, 0)
        assert scores.words >= 4


@pytest.mark.parametrize(
    ("text", "kind", "score"),
    [
        ("She met the nurse at the station after the meal.", "structural", 2.0),
        ("She met the nurse at noon.", "structural", 1.0),
        ("She met nurses at noon.", "structural", 0.0),  # one phrase, and no object with a determiner
        ("We have old cats and dogs.", "structural", 1.0),
        ("The brother of the actor who sings.", "structural", 1.0),
        ("Does the bank charge?", "semantic", 2 * 2.321928094887362),
        ("Banks and a bank.", "semantic", 2.321928094887362),  # one word, twice
        ("I like a lot of things.", "vague", 3.5),  # lot, things, the phrase, and few other words
        ("When should we eat?", "open_ended", 0.0),  # a question of fact, though it has "should we"
        ("What if it rains?", "open_ended", 1.0),
        ("One? Two? Three?", "multi_part", 3.0),
        ("First we eat, then we also rest.", "multi_part", 1.4),
        ("Who sings and when?", "multi_part", 2.0),
    ],
)
def test_a_rule_alone(text: str, kind: str, score: float) -> None:
    assert getattr(SCORER.scores(text), kind) == pytest.approx(score)


@pytest.mark.parametrize(
    ("word", "root"),
    [
        ("countries", "country"),
        ("glasses", "glass"),
        ("boxes", "box"),
        ("bats", "bat"),
        ("bus", "bus"),
        ("gas", "gas"),
        ("pies", "pie"),
    ],
)
def test_lemma(word: str, root: str) -> None:
    assert lemma(word) == root


@pytest.mark.parametrize("text", ["", "?!", "\x00\ud800", "日本語の文", "a" * 200_000, "? " * 100_000, "(" * 50_000])
def test_any_text_has_scores(text: str) -> None:
    scores = SCORER.scores(text)
    assert all(score >= 0 for score in scores)
    assert scores.words <= TEXT_MAX
