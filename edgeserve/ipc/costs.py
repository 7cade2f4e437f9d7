"""The loop's time that small messages cost: of each owner, beside the share that it may take. Knows no socket."""

from __future__ import annotations

from typing import Callable, Dict

from edgeserve.owners import user_of
from edgeserve.units import NS_PER_MS

COST_SHARE = 20
"""One part in so many of the loop's time is for one user's refused messages and questions, shared equally among its
processes: a twentieth delays no deadline that has any slack."""

COST_NS_MAX = 50 * NS_PER_MS
"""The time that they may take at once: a client that starts and asks for everything stays below it."""

ACCOUNTS_MAX = 4096
"""Users and processes whose costs are remembered, sixteen times the clients that there may be by default; all are
forgotten beyond it."""


class Account:
    """The loop's time that an owner's refused messages and questions have cost, less its share since. A process has
    the account of its ``user``, too, of which it is one of ``processes``."""

    __slots__ = ("user", "processes", "_owed_ns", "_at_ns")

    def __init__(self, user: Account | None = None, now_ns: int = 0) -> None:
        self.user = user
        self.processes = 1
        # An owner over its limit begins no new account by a new process.
        self._owed_ns = COST_NS_MAX if user is not None and user.is_over(now_ns) else 0
        self._at_ns = now_ns

    def charge(self, cost_ns: int, now_ns: int) -> None:
        """Count what a message that was refused, or a question, has cost."""
        parts = 1
        if self.user is not None:
            self.user.charge(cost_ns, now_ns)
            parts = self.user.processes
        self._owed_ns = max(0, self._owed_ns - (now_ns - self._at_ns) // (COST_SHARE * parts)) + cost_ns
        self._at_ns = now_ns

    def is_over(self, now_ns: int) -> bool:
        """True if it has had more than its share: then it gets the cheapest answer."""
        parts = 1
        if self.user is not None:
            if not self.user.is_over(now_ns):
                return False
            parts = self.user.processes
        return self._owed_ns - (now_ns - self._at_ns) // (COST_SHARE * parts) > COST_NS_MAX // parts


class OwnerAccounts:
    """The accounts of all owners. ``processes_of(user)``: how many processes of a user are connected."""

    def __init__(self, processes_of: Callable[[str], int]) -> None:
        self._processes_of = processes_of
        self._accounts: Dict[str, Account] = {}

    def of(self, owner: str, now_ns: int) -> Account:
        """The account of an owner, a new one where it has none."""
        if len(self._accounts) >= ACCOUNTS_MAX:
            self._accounts.clear()
        user, account = user_of(owner), self._accounts.get(owner)
        if account is None:
            of_user = self.of(user, now_ns) if user != owner else None
            account = self._accounts[owner] = Account(of_user, now_ns)
        if account.user is not None:
            account.user.processes = max(1, self._processes_of(user))
        return account
