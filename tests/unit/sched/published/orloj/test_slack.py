"""Orloj's score against the paper's form and against chance, and the best jobs against brute force."""

from __future__ import annotations

import math
import random

import pytest
from hand_world import app_of, job

from edgeserve.sched.policies.common.job_queue import JobQueue
from edgeserve.sched.published.orloj.slack import SlackScore, top

APP = app_of("m")
EDGES, MASSES, MEAN = (10, 20, 40), (0.25, 0.75), 26.25


@pytest.mark.parametrize(
    ("rate", "slack", "score"),
    [
        (0.01, 5, 0.0),
        (0.01, 15, 4.6448167142e-3),
        (0.01, 30, 2.1795289324e-2),
        (0.01, 40, 3.3315847884e-2),
        (0.01, 60, 2.7276709227e-2),
        (0.01, 200, 6.7263536818e-3),
        (1e-4, 15, 4.7607144841e-3),
        (1e-4, 30, 2.3788108724e-2),
        (1e-4, 60, 3.7966896536e-2),
    ],
)
def test_the_score_at_slacks_of_every_region(rate, slack, score):
    """The specification's test vectors (section 3)."""
    assert SlackScore(EDGES, MASSES, MEAN, rate).p(slack) == pytest.approx(score, rel=1e-9)


def test_the_score_is_the_alpha_beta_form_of_the_paper():
    """Eq. 2 with a density: t = 1000, D = 1060 and 1030 at b = 1e-4, pairs (alpha, beta) of the specification. The
    base time is 0, so that alpha carries e^(-bD)."""
    score = SlackScore(EDGES, MASSES, MEAN, 1e-4)
    assert score.p(60) == pytest.approx(3.4353868633e-2 * math.exp(1e-4 * 1000), rel=1e-9)
    assert score.p(30) == pytest.approx(-12.904724458 * math.exp(1e-4 * 1000) + 14.285714286, rel=1e-5)


def test_pieces_rise_and_fall_as_the_score_does():
    score = SlackScore((10, 20, 80, 100), (0.5, 0.0, 0.5), 50.0, 0.01)
    assert [piece[2] for piece in score.pieces] == [True, False, True, False]
    for low, high, rising in score.pieces:
        at = [score.p(low + (min(high, 400) - low) * part / 20) for part in range(21)]
        assert at == sorted(at, reverse=not rising)


@pytest.mark.parametrize("seed", range(40))
def test_the_best_of_some_drawn_jobs_are_those_of_brute_force(seed):
    draw = random.Random(f"best/{seed}")
    entries = [(draw.randrange(3), draw.randrange(261)) for _ in range(draw.randrange(20, 60))]
    check_the_best(entries, draw.randrange(1, 20), draw.randrange(40), draw)


def check_the_best(entries, count, at, draw):
    scores, first_edges = [], []
    for _ in range(3):
        edges = sorted(draw.sample(range(5, 200), 6))
        masses = [draw.random() * (draw.random() < 0.7) for _ in range(5)]
        total = sum(masses) or 1.0
        first_edges.append(edges[0])
        scores.append(
            SlackScore(edges, [mass / total for mass in masses], draw.uniform(20, 100), draw.choice([1e-4, 1e-2, 0.1]))
        )
    queues = [JobQueue() for _ in scores]
    for seq, (which, deadline) in enumerate(entries):
        queues[which].add(deadline, job(seq, APP))
    rows = [
        (queue, score, queue.position(at + first + 1))  # the jobs that may be in time at all
        for queue, score, first in zip(queues, scores, first_edges)
    ]
    known = [(score.p(key - at), key) for queue, score, start in rows for key, _, _ in queue.rows[start:]]
    found = top(rows, at, count)
    assert len(found) == min(count, len(known))
    assert len({job.seq for job in found}) == len(found)
    score_of = {job.seq: score.p(key - at) for queue, score, _ in rows for key, _, job in queue.rows}
    best = sorted((score for score, _ in known), reverse=True)[:count]
    found_scores = [score_of[job.seq] for job in found]
    assert sorted(found_scores, reverse=True) == pytest.approx(best, abs=1e-12)
    assert len(known) <= count or found_scores == pytest.approx(best, abs=1e-12)  # the best one first


def test_jobs_that_another_lane_holds_stay():
    queue = JobQueue()
    jobs = [job(seq, APP) for seq in range(3)]
    for index, item in enumerate(jobs):
        queue.add(100 + index, item)
    jobs[1].lane = "other"
    score = SlackScore(EDGES, MASSES, MEAN, 0.01)
    assert top([(queue, score, 0)], 0, 2, "mine") == [jobs[0], jobs[2]]
    assert top([(queue, score, 0)], 0, 3, "mine") == [jobs[0], jobs[2]]
