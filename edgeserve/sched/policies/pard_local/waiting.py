"""Who waits for a cohort: groups of requests that a decision need not tell apart (``pard_local``).

The requests of a group have the same left and the same jobs, and are of one class; they stand in order of their
deadlines. What is true of one is true of all but the deadline: those that are late are the first, and those that may go
next are among the first. So a decision costs the same behind ten thousand requests as behind a hundred.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, List, Sequence, Tuple

from edgeserve.sched.plan.remaining_work import Member
from edgeserve.sched.protocol.events import CLASSES
from edgeserve.sched.requests.states import READY
from edgeserve.sched.resources.lanes import Lane

Row = Tuple[int, int, Member]
"""When a request is due, its number, and the request itself."""

Key = Tuple[object, ...]


class Group:
    """Requests alike, in order of deadlines. ``kind``: what each has left (:meth:`Member.kind`; None: something of its
    own). ``values``: how many are worth how much."""

    __slots__ = ("key", "rank", "kind", "rows", "values")

    def __init__(self, key: Key, rank: int, kind: Tuple[int, ...] | None) -> None:
        self.key = key
        self.rank = rank
        self.kind = kind
        self.rows: List[Row] = []
        self.values: Dict[float, int] = {}

    def first(self, count: int) -> List[Row]:
        """So many of its requests, those due first, and all that are due when the last of them is."""
        rows = self.rows
        return rows[: bisect_left(rows, (rows[count - 1][0] + 1,))] if 0 < count < len(rows) else rows

    def can_begin(self, lane: Lane) -> bool:
        """Whether its requests have a job for this lane, and no other lane holds a state of theirs."""
        found = False
        for job in self.rows[0][2].jobs.values():  # those of the others are alike
            if job.lane and job.lane != lane.name:
                return False
            found = found or (job.state == READY and job.node.model in lane.models)
        return found


class Waiting:
    """The requests of one pipeline that wait: ``count`` of them, and how many of each class."""

    __slots__ = ("count", "by_rank", "_groups", "_loose")

    def __init__(self) -> None:
        self.count = 0
        self.by_rank = [0] * len(CLASSES)
        self._groups: Dict[Key, Group] = {}
        self._loose: Dict[int, Member] = {}  # who came or changed since the groups were asked for

    def add(self, member: Member) -> None:
        """A request waits from now on."""
        member.waits = True
        self.count += 1
        self.by_rank[member.rank] += 1
        self._loose[member.request.id] = member

    def remove(self, member: Member) -> None:
        """A request does not wait any more."""
        member.waits = False
        self.count -= 1
        self.by_rank[member.rank] -= 1
        request, group = member.request, member.group
        if not isinstance(group, Group):
            del self._loose[request.id]
            return
        member.group = None
        del group.rows[bisect_left(group.rows, (member.due_ns, request.id))]
        group.values[request.value] -= 1
        if not group.values[request.value]:
            del group.values[request.value]
        if not group.rows:
            del self._groups[group.key]

    def changed(self, member: Member) -> None:
        """Jobs of a request that waits in a group have changed."""
        self.remove(member)
        self.add(member)

    def groups(self) -> List[Group]:
        """All groups; none is empty."""
        if self._loose:
            for request_id, member in self._loose.items():
                kind = member.kind()
                jobs = tuple([(job.node.index, job.lane, job.state == READY) for job in member.jobs.values()])
                key = (member.rank, kind, jobs)
                group = self._groups.get(key)
                if group is None:
                    group = self._groups[key] = Group(key, member.rank, kind)
                value = member.request.value
                group.values[value] = group.values.get(value, 0) + 1
                insort(group.rows, (member.due_ns, request_id, member))
                member.group = group
            self._loose.clear()
        return list(self._groups.values())


def are_alike(groups: Sequence[Group]) -> bool:
    """Whether all requests of these groups have the same left, are of one class and worth the same."""
    first = groups[0]
    value = next(iter(first.values))
    for group in groups:
        if len(group.values) > 1 or value not in group.values or group.kind != first.kind or group.rank != first.rank:
            return False
    return first.kind is not None


def in_order(groups: Sequence[Group]) -> Sequence[Row]:
    """All rows of these groups in order of deadlines."""
    return groups[0].rows if len(groups) == 1 else sorted([row for group in groups for row in group.rows])


def tightest(groups: Sequence[Group], count: int) -> List[Row]:
    """So many rows of these groups, those due first."""
    return sorted([row for group in groups for row in group.rows[:count]])[:count]


def most_urgent(groups: Sequence[Group], count: int) -> List[Member]:
    """So many requests of these groups, those of the most urgent class first and the tightest of each, in order of
    deadlines."""
    ranked = sorted([(group.rank, row) for group in groups for row in group.rows[:count]])[:count]
    return [row[2] for row in sorted([row for _, row in ranked])]
