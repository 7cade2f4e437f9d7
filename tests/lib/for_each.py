"""One test of many values, where a test of each would take longer to start than to run; of expensive values, some each
time.

A test costs several milliseconds beside its body, in each process that collects it and in the one that counts.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterable, List

import pytest


def for_each(values: Callable[[], Iterable[Any]]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Call a test with each of the values, which are made when it runs. Every value that fails is named."""

    def decorate(test: Callable[[Any], None]) -> Callable[[], None]:
        @functools.wraps(test)
        def of_all() -> None:
            wrong: List[str] = []
            count = 0
            for value in values():
                count += 1
                try:
                    test(value)
                except AssertionError as error:
                    wrong.append(f"{value}: {error}")
            assert count, "no value to test"
            assert not wrong, "\n".join(wrong)

        del of_all.__wrapped__  # type: ignore[attr-defined]  # pytest would look for a fixture of its argument
        return of_all

    return decorate


def each_time(values: Iterable[Any], *chosen: Any) -> List[Any]:
    """Values of a parameter: those chosen are tested each time, the others nightly."""
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.nightly) for value in values]
