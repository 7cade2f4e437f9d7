"""The runs of a study, in this process and in others, and kept in a file."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from common import runs


class Job(NamedTuple):
    name: str
    seeds: tuple


class Result(NamedTuple):
    total: int
    name: str


def run(job):
    return Result(sum(job.seeds), job.name)


JOBS = [Job(name, (index, 1)) for index, name in enumerate("abc")]


@pytest.mark.parametrize("processes", [1, 2])
def test_each_job_has_its_result_in_order(processes):
    assert list(runs.done(run, JOBS, processes)) == [(job, run(job)) for job in JOBS]


def test_what_was_kept_is_not_run_again_and_what_else_is_kept_is_left_out(tmp_path):
    path, ran = str(tmp_path / "runs"), []

    def noted(job):
        ran.append(job.name)
        return run(job)

    assert len(list(runs.done(noted, JOBS[:2], keep=path, kind=Result))) == 2
    found = list(runs.done(noted, JOBS[1:], keep=path, kind=Result))
    assert found == [(job, run(job)) for job in JOBS[1:]]
    assert ran == ["a", "b", "c"]


def test_what_an_interrupted_call_ran_is_kept(tmp_path):
    path = str(tmp_path / "runs")
    assert next(runs.done(run, JOBS, keep=path)) == (JOBS[0], run(JOBS[0]))
    assert dict(runs.done(lambda job: None, JOBS[:1], keep=path, kind=Result)) == {JOBS[0]: run(JOBS[0])}
