"""Forms of answers that were compiled, kept for their owner alone (``form_trial.py`` says within which bounds)."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable, Dict, Hashable, NamedTuple, Optional, Tuple

from edgeserve.errors import Rejected
from edgeserve.units import format_size

FORM_BYTES_LEAST = 32 << 10
"""A form counts at least so much in memory, and eight times its text."""

KEPT_BYTES_MAX = 64 << 20
"""Compiled forms of a model that are kept for later requests, of all owners together. The owner that has most of it
makes room."""

IN_USE_BYTES_MAX = 256 << 20
"""Compiled forms of a model in memory, those of open requests included: one owner may have half of it."""


class Cost(NamedTuple):
    """The cost of compiling a form in the trial: processor time, and memory."""

    took_ns: int
    bytes: int


Try = Callable[[str], Cost]
"""Tries a grammar; raises :class:`WrongInput` where it takes too long or too much, or is none."""


class Form:
    """A form of one owner, compiled for the vocabulary of the model ``of``; each answer begins with a copy. It travels
    without what was compiled. ``took_ns``: what compiling took, the trial included; 0 where it was kept from before."""

    __slots__ = ("of", "grammar", "owner", "bytes", "took_ns", "_matcher", "__weakref__")

    def __init__(
        self, of: Hashable, grammar: str, owner: str, bytes: int = 0, took_ns: int = 0, matcher: Any = None
    ) -> None:
        self.of = of
        self.grammar = grammar
        self.owner = owner
        self.bytes = bytes
        self.took_ns = took_ns
        self._matcher = matcher

    def is_for(self, of: Hashable) -> bool:
        """True if it can be used with this vocabulary."""
        return self._matcher is not None and self.of == of

    def matcher(self) -> Any:
        """The library's object for one more answer."""
        return self._matcher.deep_copy()

    def again(self) -> Form:
        """The same for another request, which waits for nothing."""
        return Form(self.of, self.grammar, self.owner, self.bytes, 0, self._matcher)

    def __reduce__(self) -> Tuple[Any, ...]:
        return (Form, (self.of, self.grammar, self.owner))


class Forms:
    """The compiled forms of one model, by owner and grammar. Whether another owner has asked for the same form cannot
    be told by the time that it takes. Any thread; the lock is held for look-ups alone."""

    def __init__(self, model: str, of: Hashable) -> None:
        self.of = of
        self._model = model
        self._lock = threading.Lock()
        self._kept: Dict[str, OrderedDict[str, Form]] = {}
        self._in_use: weakref.WeakSet[Form] = weakref.WeakSet()

    def form(self, grammar: str, owner: str, attempt: Optional[Try], compile: Callable[[str], Any]) -> Form:
        """The form, tried and compiled now unless its owner has asked for it before. Raises what these raise, and
        :class:`Rejected` where its owner has too many in use."""
        with self._lock:
            mine = self._kept.get(owner)
            if mine is not None and grammar in mine:
                mine.move_to_end(grammar)
                return self._used(mine[grammar].again())
        cost = Cost(0, 0) if attempt is None else attempt(grammar)
        size = max(cost.bytes, FORM_BYTES_LEAST, 8 * len(grammar))
        self._refuse_beyond(owner, size)
        took_ns = 2 * cost.took_ns  # tried, and then compiled here
        form = Form(self.of, grammar, owner, size, took_ns, compile(grammar))
        with self._lock:
            self._keep(form)
            return self._used(form)

    def kept_bytes(self) -> Dict[str, int]:
        """The bytes of kept forms, by owner."""
        with self._lock:
            return {owner: sum([form.bytes for form in forms.values()]) for owner, forms in self._kept.items()}

    def _used(self, form: Form) -> Form:
        self._in_use.add(form)
        return form

    def _refuse_beyond(self, owner: str, size: int) -> None:
        used, own = self._used_bytes(owner)  # not here: the error that tells of it would keep the forms
        if used + size > IN_USE_BYTES_MAX or own + size > IN_USE_BYTES_MAX // 2:
            raise Rejected(
                f"model {self._model!r}: the forms of open requests take {format_size(used)} of memory, "
                f"{format_size(own)} of them this client's; send fewer different forms at a time",
                "over_share",
            )

    def _used_bytes(self, owner: str) -> Tuple[int, int]:
        """The bytes of all forms, and of one owner's."""
        with self._lock:
            forms = {id(form._matcher): form for form in self._in_use}.values()  # copies share what was compiled
            return sum([form.bytes for form in forms]), sum([form.bytes for form in forms if form.owner == owner])

    def _keep(self, form: Form) -> None:
        if form.bytes > KEPT_BYTES_MAX:
            return
        self._kept.setdefault(form.owner, OrderedDict())[form.grammar] = form
        sizes = {owner: sum([each.bytes for each in forms.values()]) for owner, forms in self._kept.items()}
        while sum(sizes.values()) > KEPT_BYTES_MAX:
            greediest = max(sizes, key=lambda owner: (sizes[owner], owner))
            _, oldest = self._kept[greediest].popitem(last=False)
            sizes[greediest] -= oldest.bytes
            if not self._kept[greediest]:
                del self._kept[greediest], sizes[greediest]
