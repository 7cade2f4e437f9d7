"""The movement of a request through its graph: tokens, joins, fan-outs. Pure bookkeeping on one ``RequestRecord``.

The rule is on top of ``sched/requests/graph.py``. These functions say which nodes may run next; making jobs of them,
and ending the request when none is left, is the scheduler's. A join row is ``[tokens, done, fired]``."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

from edgeserve.sched.protocol.events import JobResult, Part
from edgeserve.sched.requests.graph import Node
from edgeserve.sched.requests.states import (
    ANSWERED,
    JOB_FAILED,
    LEFT_OUT,
    LOST,
    RUNNING,
    WAITING,
    Job,
    RequestRecord,
)

NodePart = Tuple[Node, Part]


class Branch(NamedTuple):
    """The outcome of one predecessor of a join. ``state`` is ``answered``, ``running``, ``waiting`` (it has not begun),
    ``left out``, ``failed`` or ``lost`` (with its lane). ``job`` is there while it is running or ready."""

    node: str
    part: Part
    state: str
    job: Optional[Job]


def after(request: RequestRecord, job: Job, result: JobResult) -> List[NodePart]:
    """A job is done: the nodes that may run now."""
    ready: List[NodePart] = []
    if job.node.feeds_join:
        request.fate(job.node, job.part, ANSWERED)
    _pass_on(request, job.node, job.part, result, ready)
    return ready


def skip(request: RequestRecord, job: Job, fate: str = LEFT_OUT) -> List[NodePart]:
    """Pass *skipped* on from a job without a result (``fate`` says why) that the nodes behind can do without."""
    ready: List[NodePart] = []
    request.fate(job.node, job.part, fate)
    _pass_on(request, job.node, job.part, None, ready)
    return ready


def settle(request: RequestRecord, only: NodePart | None = None) -> List[NodePart]:
    """Fire every join that has at least one done token, or ``only`` this one, without waiting for the rest."""
    ready: List[NodePart] = []
    for (index, part), row in list((request.joins or {}).items()):
        if row[1] > 0 and not row[2] and (only is None or (only[0].index, only[1]) == (index, part)):
            row[2] = 1
            ready.append((request.app.nodes[index], part))
    return ready


def can_settle(request: RequestRecord, node: Node, part: Part) -> bool:
    """True if a join has something, and has not fired."""
    row = (request.joins or {}).get((node.index, part))
    return row is not None and row[1] > 0 and not row[2]


def can_settle_any(request: RequestRecord) -> bool:
    """True if some join has something, and has not fired."""
    return any(row[1] > 0 and not row[2] for row in (request.joins or {}).values())


def leads_only_to(node: Node, join: Node) -> bool:
    """True if everything that comes of a node ends in this join."""
    return bool(node.succs) and all(
        succ is join or (not succ.is_join and leads_only_to(succ, join)) for succ in node.succs
    )


def leads_to(node: Node, join: Node) -> bool:
    """True if something that comes of a node ends in this join, with no other join between."""
    return any(succ is join or (not succ.is_join and leads_to(succ, join)) for succ in node.succs)


def branches(request: RequestRecord, join: Node, part: Part = ()) -> List[Branch]:
    """The outcome of each predecessor of a join, in the order of the graph; of a gather node, of each part that is
    known."""
    jobs = {(job.node.index, job.part): job for job in request.jobs.values()}
    found = []
    for pred in sorted(join.preds, key=lambda node: node.index):
        for at in _parts_before(request, join, pred, part):
            state, job = _fate_of(request, pred, at, jobs)
            found.append(Branch(pred.name, at, state, job))
    return found


def _parts_before(request: RequestRecord, join: Node, pred: Node, part: Part) -> List[Part]:
    scope = pred.scope_after()
    if not join.gather or scope is None:
        return [part]
    count = (request.scopes or {}).get((scope.index, part), 0)
    return [part] if pred.fan_out else [(*part, index) for index in range(count)]


def _fate_of(
    request: RequestRecord, node: Node, part: Part, jobs: Dict[Tuple[int, Part], Job]
) -> Tuple[str, Optional[Job]]:
    """The outcome of a node. A branch of several nodes runs while one of the nodes before it does."""
    job = jobs.get((node.index, part))
    if job is not None:
        return (RUNNING if job.state == RUNNING else WAITING), job
    fate = (request.fates or {}).get((node.index, part))
    if fate is not None:
        return (WAITING if fate == ANSWERED and not node.feeds_join else fate), None
    if len(node.preds) == 1 and len(node.preds[0].succs) == 1 and not node.preds[0].fan_out:
        return _fate_of(request, node.preds[0], part, jobs)
    return WAITING, None


def wrong_result(job: Job, result: JobResult) -> str:
    """The reason why a done result cannot be used, or ``""``: a fan-out needs a bounded number of parts, a route a
    successor."""
    node = job.node
    if node.fan_out:
        if result.parts is None or result.parts < 0:
            return f"node {node.name!r} has fan_out = true but its result names no number of parts"
        if result.parts > node.parts_max:
            return f"node {node.name!r} made {result.parts} parts, more than its parts_max = {node.parts_max}"
    if node.route_one and result.route not in _routes(node):
        known = ", ".join(repr(succ.name) for succ in node.succs)
        return f"node {node.name!r} has route = 'one' but chose {result.route!r} (successors: {known}, or '' for none)"
    return ""


def is_useless(request: RequestRecord, job: Job) -> bool:
    """True if everything that waits for this job has fired without it."""
    joins = request.joins
    if not joins or not job.node.succs or job.node.fan_out:
        return False
    for succ in job.node.succs:
        row = joins.get((succ.index, job.part[:-1] if succ.gather else job.part))
        if row is None or not row[2]:
            return False
    return True


def is_starved(request: RequestRecord, job: Job) -> bool:
    """True if a failed job that was skipped was the last that a join hoped for, so that the join has failed as well,
    and what follows cannot do without it."""
    return not job.node.fan_out and _starves(request, job.node, job.part)


def _starves(request: RequestRecord, node: Node, part: Part) -> bool:
    for succ in node.succs:
        at = part[:-1] if succ.gather else part
        row = (request.joins or {}).get((succ.index, at))
        has_failed = row is not None and row[2] and not row[1]
        if has_failed and not succ.spared:
            return True
        if (has_failed or not succ.is_join) and _starves(request, succ, at):
            return True
    return False


def _routes(node: Node) -> Tuple[str, ...]:
    return tuple(succ.name for succ in node.succs) + ("",)


def _pass_on(request: RequestRecord, node: Node, part: Part, result: JobResult | None, ready: List[NodePart]) -> None:
    """Give a token to each successor; ``result`` None means skipped."""
    if result is None:
        request.fate(node, part, _inherited(request, node, part))
    if node.fan_out:
        _open_scope(request, node, part, result, ready)
        return
    for succ in node.succs:
        done = result is not None and not (node.route_one and succ.name != result.route)
        _token(request, succ, part, done, ready)


def _inherited(request: RequestRecord, node: Node, part: Part) -> str:
    """The outcome of a skipped node: it failed, or was lost, with one before it."""
    fates = request.fates or {}
    before = [fates.get((pred.index, part[:-1] if pred.fan_out else part)) for pred in node.preds]
    return LOST if LOST in before else JOB_FAILED if JOB_FAILED in before else LEFT_OUT


def _open_scope(
    request: RequestRecord, node: Node, part: Part, result: JobResult | None, ready: List[NodePart]
) -> None:
    """A fan-out ended: one token per part and successor. No part at all: what gathers them runs with empty lists."""
    count = 0 if result is None or result.parts is None else result.parts
    if request.scopes is None:
        request.scopes = {}
    request.scopes[node.index, part] = count
    for index in range(count):
        for succ in node.succs:
            _token(request, succ, part + (index,), True, ready)
    if count == 0:
        for closer in node.closers:
            if result is None:
                _pass_on(request, closer, part, None, ready)
            else:
                ready.append((closer, part))


def _token(request: RequestRecord, node: Node, part: Part, done: bool, ready: List[NodePart]) -> None:
    """One predecessor of ``node`` came to its end at ``part``."""
    if node.gather:
        scope = node.preds[0].scope_after()
        assert scope is not None, "a gather node stands behind a fan-out (checked in apps.py)"
        assert request.scopes is not None, "the fan-out has ended"
        part = part[:-1]
        expected = len(node.preds) * request.scopes[scope.index, part]
    else:
        expected = len(node.preds)
    if node.gather or expected > 1:
        if request.joins is None:
            request.joins = {}
        row = request.joins.setdefault((node.index, part), [0, 0, 0])
        row[0] += 1
        row[1] += done
        if row[2]:
            return
        row[2] = int(row[0] == expected or (isinstance(node.join, int) and row[1] >= node.join))
        if not row[2]:
            return
        done = row[1] > 0
    if done:
        ready.append((node, part))
    else:
        _pass_on(request, node, part, None, ready)
