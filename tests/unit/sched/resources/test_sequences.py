"""Who holds a slot and bytes for a sequence, and what of a batch may run: the book-keeping alone."""

from __future__ import annotations

import pytest
from hand_world import app_of, ids, job

from edgeserve.sched.resources.lanes import RUN, Lane, Works
from edgeserve.sched.resources.model_cache import Device
from edgeserve.sched.resources.sequences import UNBOUNDED, Fit, Room, SequenceModel, Sequences

APP, OTHER = app_of("m"), app_of("n", "b")
BYTES = 10


class World:
    """Lanes of one device, with two models of sequences of at most 100 tokens of 10 bytes each."""

    def __init__(self, slots=2, memory=0, budget=0, prefill=0, lanes=("l",), context=100):
        self.device = Device("d", budget)
        self.lanes = {name: Lane(name, "d") for name in lanes}
        self.lane = self.lanes[lanes[0]]
        models = {name: SequenceModel(context, BYTES, slots, memory, prefill) for name in "mn"}
        self.known = Sequences(models, {"d": self.device}, list(self.lanes.values()))
        self.works = Works()

    def start(self, *jobs, extra=0, lane=None):
        work = self.works.put(0, RUN, lane or self.lane, jobs[0].node.model, 1000, jobs, len(jobs))
        self.known.started(work, extra)
        for item in jobs:
            item.state = "running"
        return work

    def end(self, work):
        self.works.answered(work.id, 1000)
        self.known.ended(work)
        for item in work.jobs:
            item.state = "ready"

    @property
    def bytes(self):
        """(of the device, of model m)."""
        return self.device.state_bytes, self.known.reserved_bytes("m", "d")


def chat(seq, tokens=10, steps=20, app=APP, made=0):
    found = job(seq, app, hints={"tokens": tokens, "steps": steps})
    found.steps = made
    return found


# --- what a job needs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "hinted", "made", "left"),
    [
        (0, 0, 0, 64),
        (0, 0, 63, 1),
        (0, 0, 64, 16),
        (0, 20, 0, 20),
        (0, 20, 19, 1),
        (0, 20, 20, 16),
        (0, 20, 25, 16),
        (30, 20, 25, 5),
        (30, 0, 30, 16),
    ],
)
def test_steps_left_go_by_what_was_said_last_then_by_the_hint_then_by_what_is_usual(said, hinted, made, left):
    item = chat(1, steps=hinted, made=made)
    item.steps_total = said
    assert World().known.steps_left(item) == left


def test_the_usual_length_moves_by_a_sixteenth_and_is_at_least_one_step():
    known, unknown = World().known, chat(1, steps=0)
    known.learn(chat(2, made=32), 64)
    assert known._usual_milli["m"] == 66_000 and known.steps_left(unknown) == 66
    known.learn(chat(3), 34)
    assert known._usual_milli["m"] == 64_000
    for number in range(200):
        known.learn(chat(number), 0)
    assert known.steps_left(unknown) == 1
    assert World(context=50).known.steps_left(unknown) == 50, "no sequence is longer than the context"


@pytest.mark.parametrize(
    ("prefill", "tokens", "made", "turns"),
    [(0, 25, 0, 0), (10, 0, 0, 0), (10, 1, 0, 1), (10, 10, 0, 1), (10, 11, 0, 2), (10, 25, 0, 3), (10, 25, 1, 0)],
)
def test_a_prompt_is_read_in_turns_of_so_many_tokens_until_the_first_step(prefill, tokens, made, turns):
    assert World(prefill=prefill).known.prefill_turns(chat(1, tokens, made=made)) == turns


def test_prompts_are_read_whole_unless_a_bound_is_given():
    assert SequenceModel(100, 10, 2) == (100, 10, 2, 0, 0)


@pytest.mark.parametrize(
    ("tokens", "steps", "made", "needs"),
    [(10, 20, 0, 300), (10, 20, 5, 300), (10, 20, 20, 460), (80, 20, 0, 1000), (81, 20, 0, 1000), (79, 20, 0, 990)],
)
def test_a_sequence_needs_the_bytes_of_its_end_and_of_no_more_than_the_context(tokens, steps, made, needs):
    assert World().known.needs_bytes(chat(1, tokens, steps, made=made)) == needs


def test_what_a_state_showed_of_the_input_counts_beside_the_hint():
    known, item = World().known, chat(1, tokens=10)
    for shown, counts in ((0, 10), (9, 10), (11, 11)):
        item.tokens_in = shown
        assert known.tokens_in(item) == counts


@pytest.mark.parametrize(
    ("tokens", "memory", "why"),
    [
        (99, 0, ""),
        (100, 0, "its 100 input tokens leave no room in the context of 100"),
        (49, 500, ""),
        (50, 500, "its 50 input tokens need 510 bytes of state, more than [model.m] state_memory = 500 bytes"),
    ],
)
def test_an_input_never_fits_that_leaves_no_room_for_one_step(tokens, memory, why):
    assert World(memory=memory).known.why_never(chat(1, tokens)) == why


# --- places -----------------------------------------------------------------------------------------------------------


def test_a_batch_takes_slots_and_bytes_and_gives_back_what_it_booked_beside_its_jobs():
    world = World(memory=1000)
    first, second = chat(1), chat(2, tokens=5)
    work = world.start(first, second, extra=40)
    assert (first.state_bytes, second.state_bytes, first.state_device, first.lane) == (300, 250, "d", "l")
    assert world.bytes == (590, 590) and world.known.booked_bytes("d") == 40
    assert world.known.room("m", world.lane) == Room(0, 410)
    assert world.known.room("n", world.lane) == Room(2, 1000), "each model has its own bound"
    world.end(work)
    assert world.bytes == (550, 550) and world.known.booked_bytes("d") == 0
    world.known.ended(work)
    assert world.bytes == (550, 550), "it ends once"
    assert world.known.free(first) and not world.known.free(first)
    assert world.bytes == (250, 250) and (first.state_bytes, first.state_device) == (0, "")
    assert world.known.room("m", world.lane) == Room(1, 750)


def test_jobs_reserve_no_more_than_is_free():
    world = World(memory=400)
    first, second = chat(1), chat(2)
    world.start(first, second)
    assert (first.state_bytes, second.state_bytes) == (300, 100)
    assert world.known.room("m", world.lane) == Room(0, 0)


def test_what_is_free_is_bounded_by_the_model_and_by_the_device_less_what_is_used_there():
    for memory, budget, free in (
        (0, 0, UNBOUNDED),
        (700, 0, 700),
        (0, 1000, 850),
        (700, 1000, 700),
        (900, 1000, 850),
        (0, 120, 0),
    ):
        world = World(memory=memory, budget=budget)
        world.device.used_bytes, world.device.state_bytes = 100, 50
        assert world.known.room("m", world.lane).bytes == free


def test_more_holders_than_slots_leave_none():
    world = World(slots=1)
    world.start(chat(1), chat(2))
    assert world.known.room("m", world.lane).slots == 0


def test_a_state_that_is_larger_than_its_reservation_is_counted_and_tells_the_input():
    world, item = World(), chat(1, tokens=0)
    world.start(item)
    assert item.state_bytes == 200
    item.steps = 5
    world.known.kept(item, 200)
    assert (item.state_bytes, item.tokens_in, world.bytes) == (200, 15, (200, 200))
    world.known.kept(item, 230)
    assert (item.state_bytes, item.tokens_in, world.bytes) == (230, 18, (230, 230))
    world.known.kept(item, 60)
    assert (item.state_bytes, item.tokens_in, world.bytes) == (230, 18, (230, 230))


def test_what_a_hanging_batch_holds_stays_occupied_until_it_ends():
    world = World()
    first, second = chat(1), chat(2, tokens=5)
    work = world.start(first, second, extra=40)
    world.known.hangs(work)
    assert world.bytes == (590 + 550, 590 + 550)
    for item in (first, second):
        world.known.free(item)
    assert world.bytes == (590, 590)
    world.end(work)
    assert world.bytes == (0, 0)
    world.known.hangs(work)
    assert world.bytes == (0, 0), "it is over"


# --- what of a batch may run ------------------------------------------------------------------------------------------


def test_without_bounds_a_batch_runs_until_its_longest_sequence_ends():
    world = World()
    jobs = [chat(1, steps=20), chat(2, steps=30)]
    assert world.known.fit(jobs, None, world.lane) == Fit(jobs, 30, 10 * BYTES, None)
    assert world.known.fit(jobs, 7, world.lane) == Fit(jobs, 7, 0, None)


@pytest.mark.parametrize(("memory", "runs"), [(599, [1]), (600, [1, 2]), (300, [1]), (299, [1])])
def test_a_batch_takes_whole_sequences_only_but_for_the_first_where_nothing_is_held(memory, runs):
    world = World(memory=memory)
    assert ids([item.id for item in world.known.fit([chat(1), chat(2)], None, world.lane).jobs]) == runs


def test_a_batch_takes_no_more_new_jobs_than_there_are_slots_and_all_that_hold_one():
    world = World(slots=2)
    held = chat(1)
    world.end(world.start(held))
    assert world.known.fit([chat(2), chat(3), held], 5, world.lane).jobs[0].seq == 2
    assert [item.seq for item in world.known.fit([chat(2), chat(3), held], 5, world.lane).jobs] == [2, 1]


def test_steps_are_as_many_as_the_bytes_that_are_left_allow():
    world = World(memory=700)
    jobs = [chat(1), chat(2)]
    assert world.known.fit(jobs, 20, world.lane)[1:] == (20, 0, None)
    assert world.known.fit(jobs, 60, world.lane)[1:] == (25, 10 * BYTES, None), "100 bytes are five more steps of two"
    alone = World(memory=250)
    assert alone.known.fit([chat(1)], None, alone.lane)[1:] == (15, 0, None)
    near = World()
    assert near.known.fit([chat(1, tokens=95)], 50, near.lane)[1:] == (50, 0, None), "the context ends what a state is"


@pytest.mark.parametrize(
    ("memory", "wanted", "fits"),
    [(640, 20, (8, 40)), (639, 20, None), (620, 7, (7, 20)), (619, 7, None), (600, 6, (6, 0))],
)
def test_a_batch_that_would_make_fewer_than_eight_steps_for_lack_of_memory_has_its_youngest_released(
    memory, wanted, fits
):
    world = World(memory=memory)
    first, second = chat(1), chat(2)
    world.end(world.start(first, second))
    first.steps = second.steps = 14  # 24 tokens of the 30 that each reserved
    steps, extra = fits or (0, 0)
    jobs, release = ([first, second], None) if fits else ([], second)
    assert world.known.fit([first, second], wanted, world.lane) == Fit(jobs, steps, extra, release)


def test_a_sequence_that_is_the_youngest_itself_runs_as_far_as_it_can_alone():
    world = World(memory=340)
    item = chat(1)
    world.end(world.start(item))
    item.steps = 24
    assert world.known.fit([item], 20, world.lane) == Fit([], 0, 0, None), "it fills all there is"
    item.steps = 20
    assert world.known.fit([item], 20, world.lane) == Fit([item], 4, 0, None)


def test_where_nothing_may_run_the_youngest_ready_job_of_the_model_gives_way_first_on_the_lane_itself():
    world = World(slots=1, lanes=("l", "k"))
    here, there = chat(1), chat(2)
    work = world.start(here)
    world.end(world.start(there, lane=world.lanes["k"]))
    assert world.known.fit([chat(3)], None, world.lane) == Fit([], 0, 0, there), "the one here runs"
    world.end(work)
    assert world.known.fit([chat(3)], None, world.lane) == Fit([], 0, 0, here)
    assert world.known.fit([chat(3)], None, world.lanes["k"]) == Fit([], 0, 0, there)
    assert world.known.fit([chat(3, app=OTHER)], 5, world.lane).jobs, "another model has slots of its own"


def test_a_sequence_is_alone_when_nobody_will_make_room_for_it():
    def is_alone(*others, memory=0, state="ready"):
        world = World(memory=memory)
        item = chat(1, tokens=48)
        item.steps = 1
        for other in others:
            world.start(other)
            other.state = state
        return world.known.is_alone(item, world.lane)

    assert is_alone()
    assert not is_alone(chat(2)), "one of its model may give way"
    assert is_alone(chat(2, app=OTHER)) and not is_alone(chat(2, app=OTHER), state="running")
    assert not is_alone(chat(2, app=OTHER), state="running", memory=500)
    assert is_alone(chat(2, app=OTHER), state="running", memory=499), "its own bound is what is too low"
    world = World()
    mine = chat(1)
    world.start(mine)
    assert world.known.is_alone(mine, world.lane), "it does not count itself"
