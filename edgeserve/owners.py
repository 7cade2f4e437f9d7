"""The owner whose share of the server a connection and its requests use: first a user, then a process.

The bus names an owner as the transport tells: ``uid:1000/pid:77`` on this host (``pid:0`` over TCP, which does not tell
the process), ``key:robot`` or ``address:192.0.2.7`` beyond it. A request's client is ``[NAME@]OWNER #CONNECTION``; NAME
is what the client calls itself (it takes neither mark), or for whom a front asks (then OWNER is the front's user,
without a process).
"""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional

CONNECTION_MARK = " #"
"""The separator in the name of a request's client: the owner stands before it, the connection's number behind it."""

NAME_MARK = "@"
"""The separator between the client's own name, which selects its weight, and the owner of its connection."""

_PROCESS_MARK = "/pid:"


def process_owner(uid: int, pid: int) -> str:
    """The owner of the connections of a process on this host."""
    return f"uid:{uid}{_PROCESS_MARK}{pid}"


def pid_of(owner: str) -> int:
    """The process of an owner; 0 where it is none, or is not known."""
    pid = owner.rpartition(NAME_MARK)[2].partition(_PROCESS_MARK)[2]
    return int(pid or 0)


def user_of(owner: str) -> str:
    """The user of a process, with the name of its client or without; any other owner is a user of its own."""
    user, mark, _ = owner.rpartition(NAME_MARK)[2].partition(_PROCESS_MARK)
    return user if mark else owner


def by_user(owners: Mapping[str, object]) -> Dict[str, List[str]]:
    """User -> its owners, both in order of their names."""
    users: Dict[str, List[str]] = {}
    for owner in sorted(owners):
        users.setdefault(user_of(owner), []).append(owner)
    return users


def who_makes_room(
    counts: Mapping[str, int], own: str, weight_of: Callable[[str], float] = lambda owner: 1.0
) -> Optional[str]:
    """The owner that loses a place to one more of ``own``: of the user with the most for its weight (the greatest of
    its processes), the process with the most; of its own user's processes where no user has more; None where no owner
    has more than ``own`` would have then. ``counts``: places by owner."""
    users = by_user(counts)

    def use(owners: List[str], more: int = 0) -> float:
        return (sum([counts[owner] for owner in owners]) + more) / max([weight_of(owner) for owner in owners])

    user = user_of(own)
    theirs = users.get(user, [])
    greediest = max(users, key=lambda name: use(users[name]), default=user)
    own_use = use(theirs, 1) if theirs else 1 / weight_of(own)
    if greediest != user and own_use < use(users[greediest]):
        return max(users[greediest], key=lambda owner: use([owner]))
    most = max(theirs, key=lambda owner: use([owner]), default=own)
    is_less = most != own and (counts.get(own, 0) + 1) / weight_of(own) < use([most])
    return most if is_less else None
