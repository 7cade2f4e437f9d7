"""Language models: answers that are written step by step, in batches that others join and leave between two steps.

A lane asks again after each step while anything else waits, so a candidate is one step: its gain is the step's share of
each answer's worth, times the chance that the answer is whole in time (``combined``, sections 4 and 6). The answers of
most worth for the steps that they still need go first (SRPT), one of each client at a time, and as many join as bring
most in time per time.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Final, List, Mapping, Sequence, Tuple

from edgeserve.compiled import mypyc_attr
from edgeserve.priority_class import RANKS
from edgeserve.sched.latency.saturation import saturating
from edgeserve.sched.plan.answers import (
    LEAST,
    AnswerProgress,
    Answers,
    AnswerTable,
    Each,
    StepTimes,
    chances_of,
    kept_of,
)
from edgeserve.sched.plan.candidate import Candidate
from edgeserve.sched.plan.side_lanes import SideLanes, begins_ns, is_side, main_lanes, main_of
from edgeserve.sched.plan.source import Source, alone_ns
from edgeserve.sched.policies.common.bidding import best_class
from edgeserve.sched.policies.common.lengths import HOPELESS, LearnedLengths
from edgeserve.sched.policy_api.board import Board
from edgeserve.sched.policy_api.expected_end import ExpectedEnd, expected_end
from edgeserve.sched.policy_api.policy import CANNOT_MAKE_DEADLINE, Bid, Policy
from edgeserve.sched.requests.states import DONE, Job, RequestRecord, keeps_written
from edgeserve.sched.requests.worth import WORK
from edgeserve.sched.resources.lanes import Lane, Work
from edgeserve.sched.resources.sequences import Room

STEPS: Final = 64.0
"""Assumed length while nothing is known, in steps."""

STEPS_MIN: Final = 8
"""A batch that nothing waits for is given at least so many steps: fewer are not worth another launch."""

SLIGHT: Final = 0.25
"""The part of an expected number of steps that is no step: known lengths have a mean a little above them."""

K_SHARE: Final = 0.1
"""K, as a share of the SLO (``combined``: .2 and .4 cost robot up to 5 points)."""

LATER: Final = 0.98
"""A batch can wait until 2 % of what it brings is lost: what is lost at each decision is lost again and again."""

FREE_SHARE: Final = 0.5
"""The share of the places that are free before others join, on a lane of language models alone that read prompts whole:
each group interrupts all answers for its prompts, and many cost little more than one (``research/replicate/rtlm``)."""

ALMOST: Final = 0.98
"""The share of the best worth from which the larger of two sizes is the better one: more are served at once."""

COUNTS_MAX: Final = 8
"""So many sizes of a batch are compared."""

PROMISED: Final = 0.9
"""A deadline that would do is one by which an answer has ended with this chance."""

URGENCY_MIN: Final = 1e-20
"""Less urgent is none: its logarithm is taken."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Steps(Source):
    """The answers of language models."""

    kind = "steps"

    def __init__(self, owner: Policy) -> None:
        super().__init__(owner)
        self._tables: Dict[str, AnswerTable] = {}
        self._lengths: Dict[Tuple[str, str], LearnedLengths] = {}  # by app and node
        self._each: Dict[Tuple[str, str, bool], Each] = {}
        self._looked_ns = -1
        self._until_ns: Dict[str, int] = {}  # by model: how long its batch could wait when it was last asked
        self._times = StepTimes()
        self._sides = SideLanes(self._times)

    # --- hooks --------------------------------------------------------------------------------------------------------

    def on_ready(self, job: Job, board: Board) -> None:
        table = self._tables.get(job.node.model)
        if table is None:
            table = self._table(job.node.model, board)
            self._tables[job.node.model] = table
        answer = table.running.pop(job.seq, None)
        if answer is None:
            told = job.hints.get(job.node.steps_key) if job.hints else None
            lengths = self._lengths_of(job.request.app.name, job.node.name)
            answer = AnswerProgress(
                job, lengths.predict(told, _deviation(job)), told, self._each_of(job, told, board), board
            )
            if not job.steps:
                table.predicted.add(round(answer.steps))
        least = answer.length.quantile(HOPELESS)  # steps that most of such answers have
        table.add(answer, answer.due_ns - round((least - 1.0) * alone_ns(table.model, board)))

    def on_gone(self, job: Job, board: Board) -> None:
        self._tables[job.node.model].remove(job)

    def lacks_ns(self, job: Job) -> float:
        """All steps of the answer count, as they do in its worth."""
        answer = self._tables[job.node.model].find(job)
        return super().lacks_ns(job) if answer is None else answer.lane_ns

    def on_started(self, work: Work, board: Board) -> None:
        table = self._tables[work.model]
        side = table.has_sides and is_side(work.model, work.lane, board)
        for job in work.jobs:
            answer = table.remove(job)
            assert answer is not None
            table.running[job.seq] = answer
            self._sides.sent += side and not job.steps
        self._times.started(work, board)
        self.is_idle = not [table for table in self._tables.values() if table.fresh or table.begun]

    def on_finished(self, work: Work, started_ns: int, finished_ns: int, board: Board) -> None:
        table = self._tables[work.model]
        table.changed()
        for job in work.jobs:
            answer = table.running.pop(job.seq, None)
            if answer is not None and job.state == DONE and job.steps:
                self._lengths_of(job.request.app.name, job.node.name).finished(answer.told, job.steps)
        self._times.ended(work, 0 if work.failed else finished_ns - started_ns, board)
        if not work.failed and table.has_sides and is_side(work.model, work.lane, board):
            self._sides.ended(work, board)

    def on_refused(self, work: Work, board: Board) -> None:
        self._forget(work, board)

    def on_lost(self, work: Work, board: Board) -> None:
        self._forget(work, board)

    def _forget(self, work: Work, board: Board) -> None:
        table = self._tables[work.model]
        table.changed()
        for job in work.jobs:
            table.running.pop(job.seq, None)
        self._times.ended(work, 0, board)

    def forget(self) -> None:
        super().forget()
        self._until_ns.clear()
        for table in self._tables.values():
            table.changed()

    def queued(self) -> List[Job]:
        return [
            answer.job
            for table in self._tables.values()
            for answers in (table.fresh, table.begun)
            for answer in answers.values()
        ]

    def figures(self) -> Mapping[str, Any]:
        return {
            "lengths": {f"{app}/{node}": lengths.figures() for (app, node), lengths in self._lengths.items()},
            "prefill_steps": {f"{model} on {lane}": more for (model, lane), more in self._times.prefills.items()},
            "sent to side lanes": self._sides.sent,
            "processor left to side lanes": dict(self._sides.left),
        }

    def _lengths_of(self, app: str, node: str) -> LearnedLengths:
        found = self._lengths.get((app, node))
        if found is None:
            found = self._lengths[app, node] = LearnedLengths(True, STEPS)
        return found

    def _each_of(self, job: Job, told: float | None, board: Board) -> Each:
        request = job.request
        if request.app.worth == WORK:
            return Each(job, job.node.steps_key in request.hints, board)
        is_told = told is not None and request.app.simple  # else what it counts is one step
        key = (request.app.name, job.node.name, is_told)
        found = self._each.get(key)
        if found is None:
            found = self._each[key] = Each(job, is_told, board)
        return found

    # --- giving up ----------------------------------------------------------------------------------------------------

    def plan(self, board: Board) -> None:
        """Give up answers for which not even the next step could be in time, and answers that will hardly be in time by
        how long they are believed to be, as long as finished answers confirm that. One that has begun goes on to its
        deadline where what is written by then counts."""
        self._look(board)
        for table in self._tables.values():
            if not table.due.rows and not table.begun:
                continue
            ends_ns = board.earliest_end_ns(table.model)
            if ends_ns is None:
                continue
            late: List[Tuple[AnswerProgress, bool]] = []
            for at_ns, _, job in table.due.rows:
                if at_ns >= ends_ns:
                    break
                answer = table.fresh[job.seq]
                late.append((answer, answer.due_ns < ends_ns))
            step_ns = alone_ns(table.model, board) if table.begun else 1
            for answer in table.begun.values():
                if not answer.soft_ns and not keeps_written(answer.job):
                    steps = 1.0 + (answer.due_ns - ends_ns) / step_ns
                    if answer.chance(steps) < HOPELESS:
                        late.append((answer, steps < 1.0))
            for answer, is_certain in late:
                job = answer.job
                if job.seq not in table.fresh and job.seq not in table.begun:
                    continue  # it left with another part of its request
                if not is_certain:
                    lengths = self._lengths_of(job.request.app.name, job.node.name)
                    if not lengths.may_give_up():
                        continue
                    lengths.given_up += 1
                board.abandon_branch(job, CANNOT_MAKE_DEADLINE)
        self.is_idle = not [table for table in self._tables.values() if table.fresh or table.begun]

    def _look(self, board: Board) -> None:
        """See what the requests of each app count now."""
        self._looked_ns = board.now_ns
        for each in self._each.values():
            if each.look(board):
                for table in self._tables.values():
                    table.changed()

    def _table(self, model: str, board: Board) -> AnswerTable:
        return AnswerTable(model, len(board.lanes_of(model)) > 1)

    # --- candidates ---------------------------------------------------------------------------------------------------

    def offers(self, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        found: List[Candidate] = []
        if self._looked_ns != board.now_ns:  # it was idle when it was to plan
            self._look(board)
        for table in self._tables.values():
            if (table.fresh or table.begun) and table.model in lane.models and board.is_resident(table.model, lane):
                bound: List[AnswerProgress] = []
                if table.begun:
                    bound = _in_order(table.bound_to(lane.name))[: lane.models[table.model].size_max]
                joining = self._joining(table, bound, lane, at_ns, board)
                together = [*bound, *joining]
                if together:
                    found.append(self._turn(table, together, lane, at_ns, board))
                if bound and joining:
                    found.append(self._turn(table, bound, lane, at_ns, board))
        return found

    def _joining(
        self, table: AnswerTable, bound: Sequence[AnswerProgress], lane: Lane, at_ns: int, board: Board
    ) -> Sequence[AnswerProgress]:
        """The answers that join the ones bound to a lane, in order."""
        room = board.sequence_room(table.model, lane)
        assert room is not None
        places = saturating(lane.models[table.model].typical_ns)  # answers that run at once
        places = max(1, min(places, room.slots + len(bound)))
        free = places - len(bound)
        following = self._following(table, lane, free, room, board) if free > 0 else []
        if not following:
            return ()
        if (
            bound
            and free < self._needed(table, places, board)
            and all(board.makes_sequences(model) for model in lane.models)
        ):
            return ()
        return following[: self._in_time(table, bound, following, lane, at_ns, board)]

    def _needed(self, table: AnswerTable, places: int, board: Board) -> int:
        """So many of the places must be free before others join. Rounded down: of 11 places two groups of 5 and 6 are
        served in turns. One where prompts are read in turns: a group saves nothing then."""
        return 1 if board.reads_in_turns(table.model) else max(1, math.floor(FREE_SHARE * places))

    def _following(self, table: AnswerTable, lane: Lane, free: int, room: Room, board: Board) -> List[AnswerProgress]:
        """The next answers for ``free`` places of a lane that find ``room`` in its memory: first the begun ones whose
        state is gone."""
        loose = _in_order(table.bound_to("")) if table.begun else []
        if not table.ordered:
            table.ordered = _in_order(list(table.fresh.values()))
        fresh = table.ordered
        mains: Sequence[Lane] = ()
        if table.has_sides and is_side(table.model, lane, board):
            mains = main_lanes(table.model, board)
        if mains:
            loose = []
            fresh = self._sides.takes(table, fresh, lane, mains, board)
            if len(fresh) > free:
                fresh = _in_turns(table, fresh)
        elif len(loose) + len(fresh) > free:
            if not table.turns:
                table.turns = _in_turns(table, fresh)
            fresh = table.turns
        slots, bytes = room.slots, room.bytes
        alone = not table.running and not [answer for answer in table.begun.values() if answer.job.state_bytes]
        chosen: List[AnswerProgress] = []
        for answer in [*loose, *fresh]:
            if len(chosen) >= min(free, slots):
                break
            needs = board.sequence_bytes(answer.job)
            if needs <= bytes or (alone and not chosen):
                chosen.append(answer)
                bytes -= needs
        return chosen

    def _in_time(
        self,
        table: AnswerTable,
        bound: Sequence[AnswerProgress],
        following: Sequence[AnswerProgress],
        lane: Lane,
        at_ns: int,
        board: Board,
    ) -> int:
        """The number of following sequences that are to join: every further sequence makes the steps of all others
        longer, so as many as bring most in time per time."""
        latency = lane.models[table.model]
        together = [*bound, *following]
        most = len(together)
        least = max(1, len(bound) + sum([answer.rank == 0 for answer in following]))
        counts = [most] + [size for size in reversed(latency.sizes) if least <= size < most]
        if len(counts) > COUNTS_MAX:
            counts = counts[:: math.ceil(len(counts) / COUNTS_MAX)]
        if len(counts) == 1:
            return len(following)
        worths = [answer.worth for answer in together]
        rates: List[float] = []
        for count in counts:
            step_ns = self._times.step_ns(latency, count)
            joining = count - len(bound)
            from_ns = at_ns + self._times.prefill_ns(latency, joining)
            total = 0.0
            chances = chances_of(together[:count], from_ns, step_ns)
            for answer, worth, chance in zip(together, worths, chances):
                total += worth * (1.0 if answer.soft_ns else chance)
            rates.append(total / step_ns)
        best = max(rates)
        for count, rate in zip(counts, rates):
            if rate >= ALMOST * best:
                return count - len(bound)
        return len(following)

    def _turn(
        self, table: AnswerTable, chosen: Sequence[AnswerProgress], lane: Lane, at_ns: int, board: Board
    ) -> Candidate:
        latency = lane.models[table.model]
        size = latency.size_for[len(chosen)]
        step_ns, share_ns = self._times.step_ns(latency, size), latency.share_ns
        reading = sum([not answer.job.has_state for answer in chosen])
        in_turns, turns = board.reads_in_turns(table.model), 0
        if in_turns:
            turns = sum([board.prefill_turns(answer.job) for answer in chosen if not answer.job.has_state])
        before_ns = turns * step_ns or self._times.prefill_ns(latency, reading)
        prompt_ns = before_ns / max(1, reading)
        pace = self._times.paces.get((table.model, lane.name), 1.0)
        worths: List[float] = []
        gain, urgency, slack_ns, k_ns = 0.0, 0.0, 0, 1
        for answer, kept in zip(chosen, kept_of(chosen, at_ns + before_ns, step_ns)):
            job = answer.job
            request = job.request
            worth = answer.worth
            room_ns = answer.due_ns - at_ns - before_ns
            remaining = answer.remaining()
            own_slack_ns = room_ns - round(pace * remaining * step_ns)
            if request.successor_ns is not None:
                begin_by_ns = request.begin_by_ns(board.now_ns)
                if begin_by_ns is not None:
                    own_slack_ns = min(own_slack_ns, begin_by_ns - at_ns)
                    kept = kept if at_ns <= begin_by_ns else LEAST
            more_ns = 0.0 if job.has_state else prompt_ns
            rest_ns = board.rest_lane_ns(request.app, job.node) if job.node.succs else 0
            gain += worth * kept * (more_ns + share_ns) / (more_ns + remaining * share_ns + rest_ns)
            worths.append(worth)
            own_k_ns = max(1, round(K_SHARE * (request.deadline_ns - request.arrival_ns)))
            own = kept * math.exp(-max(0, own_slack_ns) / own_k_ns)
            if own > urgency or not urgency:
                urgency, slack_ns, k_ns = own, own_slack_ns, own_k_ns
        takes_ns = latency.likely_ns[size] + (0 if in_turns else before_ns)
        turn = Candidate(
            self,
            table.model,
            [answer.job for answer in chosen],
            size,
            takes_ns,
            latency.slowest_ns[size] + (0 if in_turns else before_ns),
            gain,
            max(0, slack_ns),
            k_ns,
            best_class([answer.job for answer in chosen]),
            Answers(chosen, worths, at_ns, before_ns, step_ns, round(pace * step_ns)),
        )
        turn.press = -math.log(max(URGENCY_MIN, urgency))
        return turn

    def smaller(self, candidate: Candidate, lane: Lane, at_ns: int, board: Board) -> Sequence[Candidate]:
        """Fewer answers: fewer prompts are read, and each step is shorter."""
        answers = candidate.detail
        assert isinstance(answers, Answers)
        table, latency = self._tables[candidate.model], lane.models[candidate.model]
        bound = sum([answer.job.lane == lane.name for answer in answers.answers])
        least = bound if bound < len(candidate.jobs) else 0  # the bound ones alone are an offer already
        found: List[Candidate] = []
        for size in latency.sizes:
            if least < size < len(candidate.jobs):
                item = self._turn(table, answers.answers[:size], lane, at_ns, board)
                item.press = min(item.press, candidate.press)
                found.append(item)
        return found

    def wait_ns(self, candidate: Candidate) -> int:
        """The time until 2 % of the answers' worth per step is lost, at the pace at which they got the lane lately.
        (Their worth is that of the lane's next steps: at that pace, too, a model that loses would count less, and get
        nothing.)"""
        answers = candidate.detail
        if candidate.is_critical or not isinstance(answers, Answers):
            return super().wait_ns(candidate)
        at_ns = answers.starts_ns
        rates = [worth / answer.remaining() for answer, worth in zip(answers.answers, answers.weights)]
        per_step = Answers(answers.answers, rates, at_ns, answers.before_ns, answers.step_ns, answers.paced_ns)
        low_ns, high_ns = 0, round(candidate.k_ns / K_SHARE)
        whole = LATER * per_step.value(at_ns)
        kept_ns, lost_ns = 0, high_ns  # known bounds: it can wait for the first, and not for the second
        near_ns, step_ns = self._until_ns.get(candidate.model, 0) - at_ns, high_ns >> 8
        for about_ns in (near_ns - step_ns, near_ns + step_ns):  # mostly the answer is that of the last time
            if kept_ns < about_ns < lost_ns:
                if per_step.value(at_ns + about_ns) >= whole:
                    kept_ns = about_ns
                else:
                    lost_ns = about_ns
        for _ in range(8):
            middle_ns = (low_ns + high_ns) // 2
            if middle_ns <= kept_ns or (middle_ns < lost_ns and per_step.value(at_ns + middle_ns) >= whole):
                low_ns = middle_ns
            else:
                high_ns = middle_ns
        self._until_ns[candidate.model] = at_ns + low_ns
        return low_ns

    def bid(self, candidate: Candidate, others: Sequence[Candidate], lane: Lane, board: Board) -> Bid:
        """One step while anything of its class waits for the lane; else as many as the longest is expected to have,
        which others can cut short."""
        answers = candidate.detail
        assert isinstance(answers, Answers)
        whole = max(1, math.ceil(max([answer.remaining() for answer in answers.answers]) - SLIGHT))
        if [answer for answer in answers.answers if answer.job.steps]:
            whole = max(STEPS_MIN, whole)
        steps = whole
        rank = RANKS[candidate.priority_class]
        if [item for item in others if item.model != candidate.model and RANKS[item.priority_class] <= rank]:
            steps = 1
        elif board.reads_in_turns(candidate.model):
            steps = STEPS_MIN  # what a turn takes is learnt when a batch ends
        rest_ns = max([board.rest_lane_ns(job.request.app, job.node) for job in candidate.jobs])
        whole_ns = answers.before_ns + whole * answers.step_ns
        return Bid(
            candidate.model,
            candidate.jobs,
            candidate.size,
            answers.before_ns + steps * answers.step_ns,
            answers,
            whole_ns + rest_ns,
            steps_max=steps,
            priority_class=candidate.priority_class,
            whole_ns=whole_ns,
        )

    def cut(self, work: Work, board: Board) -> bool:
        """True if others of the model would join now."""
        table = self._tables[work.model]
        if not (table.fresh or table.begun):
            return False
        lane = work.lane
        running = [table.running[job.seq] for job in work.left() if job.seq in table.running]
        return len(self._joining(table, running, lane, lane.available_ns(board.now_ns), board)) > 0

    # --- refusals -----------------------------------------------------------------------------------------------------

    def expected_end(self, request: RequestRecord, job: Job | None, board: Board) -> ExpectedEnd | None:
        """The end of an app of one node, by how long the answer is at most with the chance :data:`PROMISED`, in steps
        that it shares with as many others as run at once."""
        found = expected_end(request, job, board)
        if found is None or not request.app.simple:
            return found
        node = request.app.entries[0]
        table = self._tables.get(node.model)
        if table is None:
            table = self._table(node.model, board)
        latency = board.latency(node.model, found.lane)
        if job is None:
            job = next(iter(request.jobs.values()), None)
        answer = table.find(job) if job is not None else None
        if answer is not None:
            steps = answer.likely(PROMISED)
        else:
            lengths = self._lengths_of(request.app.name, node.name)
            told = request.hints.get(node.steps_key)
            steps = lengths.predict(told, request.hints.get("steps_sd")).rest(0, PROMISED)
        places = saturating(latency.typical_ns)
        alone_ns = self._times.prefill_ns(latency, places) + math.ceil(steps * self._times.step_ns(latency, places))
        starts_ns = board.now_ns + found.wait_ns
        mains = main_lanes(node.model, board)
        if mains:
            main = main_of(table, mains, self._times, board)
            waiting = [other for other in table.fresh.values() if other.job.request is not request]
            starts_ns = max(starts_ns, begins_ns(waiting, main, self._needed(table, main.places, board), board))
        return found._replace(wait_ns=starts_ns - board.now_ns, alone_ns=alone_ns, deadline_ns_min=starts_ns + alone_ns)


def _deviation(job: Job) -> float | None:
    """The deviation of the logarithm of the declared length, where it is declared."""
    found = job.hints.get(job.node.name + ".steps_sd") if job.hints else None
    return job.hints.get("steps_sd") if found is None and job.hints and job.request.app.simple else found


def _in_order(answers: List[AnswerProgress]) -> List[AnswerProgress]:
    """The answers in order of class, then of worth for the steps that are still expected."""
    if len(answers) < 2:
        return answers
    rows = [(answer.rank, -answer.per_step(), answer.job.seq, answer) for answer in answers]
    rows.sort()
    return [answer for _, _, _, answer in rows]


def _in_turns(table: AnswerTable, fresh: List[AnswerProgress]) -> List[AnswerProgress]:
    """The answers in rounds of one of each client, running ones counted: a flood of one client delays itself."""
    if len({answer.job.request.client for answer in fresh}) < 2:
        return fresh
    rounds: Dict[str, int] = {}
    for answer in [*table.running.values(), *table.begun.values()]:
        client = answer.job.request.client
        rounds[client] = rounds.get(client, 0) + 1
    rows: List[Tuple[int, int, int, AnswerProgress]] = []
    for place, answer in enumerate(fresh):
        client = answer.job.request.client
        turn = rounds.get(client, 0)
        rounds[client] = turn + 1
        rows.append((answer.rank, turn, place, answer))
    rows.sort()
    return [answer for _, _, _, answer in rows]
