"""Every invariant of the scheduler's state, in one place. Slow and complete: for tests.

The simulator has a reference model of its own (``sim/reference_model.py``), which notices a wrong rule here.
"""

from __future__ import annotations

from typing import Dict, Tuple

from edgeserve.priority_class import CLASSES
from edgeserve.sched.core.state import State
from edgeserve.sched.requests.states import HELD, OPEN, ORPHAN, READY, RUNNING, Job, RequestRecord
from edgeserve.sched.resources.lanes import RUN
from edgeserve.sched.resources.placement import LOADING, RESIDENT


def check_invariants(state: State) -> None:
    """Raise AssertionError, with the request's story where there is one, when the tables do not agree."""
    on_lanes = _check_lanes(state)
    _check_requests(state, on_lanes)
    _check_queues(state)
    _check_memory(state)
    _check_streams(state)
    _check_sequences(state)
    _check_probes(state)


WHOLE_STEPS, EVERY = 100, 10


def check_now_and_then(state: State, step: int) -> None:
    """:func:`check_invariants` after each of the first 100 steps of a world, and after every tenth from then on: it
    takes three times as long as the step, and tables that do not agree stay so."""
    if step < WHOLE_STEPS or step % EVERY == 0:
        check_invariants(state)


def _check_lanes(state: State) -> Dict[int, Job]:
    """Works stand on exactly the lane they name; a job is in one work. Returns the jobs on lanes by seq."""
    seen: Dict[int, Job] = {}
    count = 0
    for lane in state.lanes.values():
        for work in lane.works:
            count += 1
            assert state.works.by_id.get(work.id) is work, f"work {work.id} on {lane.name} is not in the table"
            assert work.lane is lane, f"work {work.id} names lane {work.lane.name}, stands on {lane.name}"
            if work.kind != RUN or work.lost:
                continue
            for job in work.left():
                assert job.seq not in seen, f"{job!r} is in two works"
                assert job.state in (RUNNING, ORPHAN), f"{job!r} is on a lane"
                seen[job.seq] = job
        assert len(lane.works) <= lane.depth or lane.ahead_ns > 0, f"lane {lane.name} has {len(lane.works)} works"
    assert count == len(state.works.by_id), "a work is in the table but on no lane"
    return seen


def _check_requests(state: State, on_lanes: Dict[int, Job]) -> None:
    running: Dict[int, int] = {}
    for job in on_lanes.values():
        running[job.request.id] = running.get(job.request.id, 0) + 1
    for request in state.requests.values():
        assert request.state in (OPEN, HELD), f"an ended request is in the table\n{_story(request)}"
        assert (request.state == HELD) == (not request.jobs), f"open without a job, or held with one\n{_story(request)}"
        assert request.running == running.get(request.id, 0), f"running count is wrong\n{_story(request)}"
        for job in request.jobs.values():
            assert job.state in (READY, RUNNING), f"{job!r} is in its request's table\n{_story(request)}"
            assert (job.state == RUNNING) == (job.seq in on_lanes), f"{job!r} against the lanes\n{_story(request)}"
            assert (job.state == READY) == job.queued, f"{job!r} queued: {job.queued}\n{_story(request)}"
            models = [model for model in job.node.models if job.may_run(model)]
            assert job.state == RUNNING or not all(state.board.is_lost(model, job.lane) for model in models), (
                f"{job!r} waits for a lane that never comes back\n{_story(request)}"
            )
    for admission in state.admission.values():
        ids = sorted(id for theirs in admission.clients.values() for id in theirs)
        expected = sorted(id for id, request in state.requests.items() if request.app is admission.app)
        assert ids == expected, f"admission of {admission.app.name} holds {ids}, open are {expected}"
        assert admission.pending == len(ids), f"admission of {admission.app.name} counts {admission.pending}"
    wanted = [(use, lane_ns) for request in state.requests.values() for use, lane_ns in request.uses]
    for shared in {
        id(shared): shared
        for by_class in state.lane_shares.values()
        for shares in by_class.values()
        for shared in shares
    }.values():
        expected_ns = sum([lane_ns for use, lane_ns in wanted if use.shared is shared])
        counted_ns = sum([use.pending_ns for use in shared.uses.values()])
        assert shared.total_ns == counted_ns == expected_ns, (
            f"lane time pending is {expected_ns}, and counts {shared.total_ns} in all and {counted_ns} by client"
        )


def _story(request: RequestRecord) -> str:
    """Formatted only when a check fails: it takes longer than all the checks."""
    return "\n".join(request.story())


def _check_queues(state: State) -> None:
    """Every queued job stands in exactly one policy's queue, that of its request."""
    held: Dict[int, str] = {}
    assert state.trials is not None
    for policy in (*state.policies, state.trials):
        for job in policy.queued():
            assert job.seq not in held, f"{job!r} stands in the queues of {held[job.seq]} and {policy.name}"
            assert job.request.policy is policy, f"{job!r} stands in the queue of {policy.name}"
            assert job.queued, f"{job!r} stands in a queue but is not marked so"
            assert job.state == READY, f"{job!r} stands in a queue"
            held[job.seq] = policy.name
    ready = {job.seq for request in state.requests.values() for job in request.jobs.values() if job.queued}
    assert ready == set(held), f"ready jobs {sorted(ready ^ set(held))} stand in no queue, or the other way round"
    rows = [row for by_model in state.ready.of.values() for of_model in by_model.values() for row in of_model]
    assert {row[1] for row in rows} == ready and len(rows) == len(ready), "the index of ready jobs has other ones"
    assert all(due_ns == job.deadline_ns for due_ns, _, job in rows), "the index of ready jobs has other deadlines"


def _check_memory(state: State) -> None:
    demand: Dict[Tuple[str, str], int] = {}  # by device ("" for all) and model
    worth: Dict[Tuple[str, str, str], int] = {}  # the same and by class
    in_flight: Dict[Tuple[str, str], int] = {}
    for request in state.requests.values():
        for job in request.jobs.values():
            key = (state.lanes[job.lane].device if job.lane else "", job.model)
            if job.state == READY:
                demand[key] = demand.get(key, 0) + job.demand_ns
                by_class = (*key, request.priority_class)
                worth[by_class] = worth.get(by_class, 0) + (job.demand_worth if job.demand_ns else 0)
    for work in state.works.by_id.values():
        if work.kind == RUN:
            key = (work.lane.device, work.model)
            in_flight[key] = in_flight.get(key, 0) + 1
    holders = {job.seq: job for request in state.requests.values() for job in request.jobs.values()}
    holders.update({job.seq: job for work in state.works.by_id.values() for job in work.left()})
    for device in state.devices.values():
        used = sum(item.bytes for item in device.placements.values() if item.state in (RESIDENT, LOADING))
        assert used == device.used_bytes, f"device {device.name}: {device.used_bytes} bytes booked, {used} used"
        assert not device.budget_bytes or used <= device.budget_bytes, f"device {device.name} is over its budget"
        for placement in device.placements.values():
            flying = in_flight.get((device.name, placement.model), 0)
            assert placement.in_flight == flying, f"{placement!r}: {placement.in_flight} in flight, {flying} on lanes"
            assert placement.state == RESIDENT or not flying, f"{placement!r} works but is not resident"
            bound_ns = demand.get((device.name, placement.model), 0)
            assert placement.bound_ns == bound_ns, f"{placement!r}: demand of bound jobs is wrong"
            assert placement.demand_ns == bound_ns + demand.get(("", placement.model), 0), (
                f"{placement!r}: demand is wrong"
            )
            waiting = [
                worth.get((device.name, placement.model, priority_class), 0)
                + worth.get(("", placement.model, priority_class), 0)
                for priority_class in CLASSES
            ]
            assert placement.waiting == waiting, f"{placement!r}: waiting {placement.waiting}, jobs say {waiting}"
        states = sum(job.state_bytes for job in holders.values() if job.state_device == device.name)
        states += sum(
            bytes
            for _, stream in state.streams
            for node, bytes in stream.state_bytes.items()
            if stream.device[node] == device.name
        )
        states += state.sequences.booked_bytes(device.name)
        assert states == device.state_bytes, f"device {device.name}: state bytes {device.state_bytes}, in use {states}"


def _check_streams(state: State) -> None:
    for key, stream in state.streams:
        if stream.active is not None:
            request = stream.active
            assert not request.ended or request.running > 0, f"stream {key} is held by a request that is over"
        for request in stream.held:
            assert request.state == HELD, f"stream {key}: a waiting request is {request.state}"
            assert stream.active is not None, f"stream {key}: requests wait without an active one"


def _check_sequences(state: State) -> None:
    """Jobs of sequence models hold one place while they run or have a state, within the slots of lanes and the bytes
    of devices, and no other job holds any."""
    sequences = state.sequences
    held: Dict[int, str] = {}
    for name, jobs in sequences.holders.items():
        counts: Dict[str, int] = {}
        for job in jobs.values():
            assert job.seq not in held, f"{job!r} holds places on {held[job.seq]} and {name}"
            held[job.seq] = name
            assert job.lane == name and job.state_device == state.lanes[name].device, f"{job!r} holds a place on {name}"
            assert job.state in (READY, RUNNING, ORPHAN), f"{job!r} is over and holds a place on {name}"
            counts[job.node.model] = counts.get(job.node.model, 0) + 1
        for model, count in counts.items():
            assert count <= sequences.models[model].slots, f"{count} sequences of {model} on lane {name}"
    for request in state.requests.values():
        for job in request.jobs.values():
            if job.node.model in sequences.models:
                assert (job.seq in held) == (job.state == RUNNING or job.has_state), f"{job!r} against its place"
    running = {work.id for work in state.works.by_id.values() if work.kind == RUN and work.model in sequences.models}
    assert running == set(sequences.working), f"batches of sequences {sorted(running)}, booked {sequences.working}"
    for model in sequences.models:
        for device in state.devices:
            in_use = sum(
                job.state_bytes
                for jobs in sequences.holders.values()
                for job in jobs.values()
                if job.node.model == model and job.state_device == device
            )
            in_use += sum(
                extra
                for work, extra in sequences.working.values()
                if work.model == model and work.lane.device == device
            )
            booked = sequences.reserved_bytes(model, device)
            assert in_use == booked, f"sequences of {model} hold {in_use} bytes on {device}, {booked} are booked"


def _check_probes(state: State) -> None:
    """Inputs are kept once, for jobs that a probe can still run; nothing is kept while draining."""
    retained = state.retained
    assert not (state.draining and retained), f"{list(retained.values())} are retained while draining"
    for seq, job in retained.items():
        assert job.seq == seq, f"{job!r} is retained as {seq}"
    for work in state.works.by_id.values():
        if work.probe is not None:
            assert work.kind == RUN and not work.jobs, f"work {work.id} is a probe and has jobs"
            assert work.probe.seq not in retained, f"{work.probe!r} is being probed and still kept"
