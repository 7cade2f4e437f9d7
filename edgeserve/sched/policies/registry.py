"""Policies by name; one that is given as ``"module:Class"`` is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Dict, Iterator, Mapping, MutableMapping, Type, Union

from edgeserve.sched.policy_api.policy import Policy


class Registry(MutableMapping[str, Type[Policy]]):
    """Kind -> policy. To ask whether a kind is known, or for the names, imports nothing."""

    def __init__(self, known: Mapping[str, Union[str, Type[Policy]]]) -> None:
        self._known: Dict[str, Any] = dict(known)

    def __getitem__(self, kind: str) -> Type[Policy]:
        found = self._known[kind]
        if isinstance(found, str):
            module, name = found.split(":")
            found = self._known[kind] = getattr(import_module(module), name)
        policy: Type[Policy] = found
        return policy

    def __setitem__(self, kind: str, policy: Type[Policy]) -> None:
        self._known[kind] = policy

    def __delitem__(self, kind: str) -> None:
        del self._known[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
