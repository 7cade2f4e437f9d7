"""Machine costs: what a machine and the server's loop take beside the models' own times, as a TOML file.

``edgeserve profile`` measures them (``commands/measure_machine.py``) and writes ``profiles/<device>/machine.toml``
beside the profiles of the models; the simulator charges them (``sim/host.py``). The same keys make the section
``[machine]`` of a scenario. This module holds the record, its reading and its writing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from edgeserve.config.machine import device_slug
from edgeserve.config.plain_text import toml_file, toml_key, toml_value
from edgeserve.config.profiles import QUANTILES, write_measured
from edgeserve.config.readers import anything, duration, durations_by_size, entry, integer, number, read_table, table_of
from edgeserve.config.text_files import read_text
from edgeserve.config.toml_files import parse_toml
from edgeserve.errors import ConfigError, ProfileError
from edgeserve.units import NS_PER_US

FORMAT = 1
"""Version of the file; one of another version is refused with that reason."""

FILE = "machine.toml"
"""The file's name: it lies beside the profiles of the device's models, which are ``.json``, so that no model's name can
collide with it."""

USUAL = "edf"
"""The policy of the server whose loop is measured: its decisions are part of ``event``."""

Spread = Tuple[int, ...]
"""A distribution by its quantiles at :data:`~edgeserve.config.profiles.QUANTILES`, nanoseconds; ``()`` is always 0."""


def read_spread_ns(value: Any, where: str) -> Spread:
    """``"80us"`` (always), or the durations at the quantiles that a profile stores, rising."""
    if not isinstance(value, list):
        return (duration(value, where),) * len(QUANTILES)
    found = tuple(duration(item, f"{where}[{index}]") for index, item in enumerate(value))
    if found and (len(found) != len(QUANTILES) or list(found) != sorted(found)):
        raise ConfigError(
            f"{where} = {value!r}: expected one duration, or {len(QUANTILES)} rising ones: the quantiles "
            f"{', '.join(f'{item:g}' for item in QUANTILES)}"
        )
    return found


@dataclass(frozen=True)
class LockUse:
    """``[machine.lock.MODEL]``: how one host function uses the interpreter lock."""

    share: float = entry(number(0.0, 1.0), 1.0)  # share of its time for which other threads have to wait
    wait_ns: Spread = entry(read_spread_ns, (), key="wait")  # how long a thread that wakes up meanwhile waits
    function: str = entry(anything, "")  # what was measured: its name and the hash of its file


def _locks(value: Any, where: str) -> Dict[str, LockUse]:
    return {
        name: read_table(LockUse, table, f"{where}.{name}") for name, table in table_of(anything)(value, where).items()
    }


@dataclass(frozen=True)
class MachineCosts:
    """``[machine]``: what the loop's thread, its wake-ups and the interpreter lock cost. All zero: an ideal machine."""

    step_ns: int = entry(duration, 0, key="step")  # the loop's thread, per turn: one decision
    event_ns: int = entry(duration, 0, key="event")  # the same, per event of the turn and what is decided on it
    receive_ns: int = entry(duration, 0, key="receive")  # the same, per request that is read and checked
    answer_ns: int = entry(duration, 0, key="answer")  # the same, per answer or refusal that is sent
    send_ns: Spread = entry(read_spread_ns, (), key="send")  # from a client's stamp until the loop has news
    wake_ns: Spread = entry(read_spread_ns, (), key="wake")  # from news for a sleeping loop until it runs
    start_ns: Spread = entry(read_spread_ns, (), key="start")  # from giving an idle lane a work until it starts
    stall_every_ns: int = entry(duration, 0, key="stall_every")  # mean running time between two stalls; 0 = none
    stall_ns: Spread = entry(read_spread_ns, (), key="stall")  # how long a running thread is held up then
    lock_factor: float = entry(number(1.0, 10.0), 1.0)  # two pure Python functions at a time take so much longer
    lock_wait_ns: Spread = entry(read_spread_ns, (), key="lock_wait")  # a wake-up's wait for one of them
    contention: float = entry(number(1.0, 10.0), 1.0)  # two busy cores: what was measured alone takes so much longer
    cores: int = entry(integer(0), 0)  # the cores that a server may use; 0 where unknown
    lock: Dict[str, LockUse] = entry(_locks, factory=dict)  # per model with a host function; others hold it always
    # Policy -> requests open -> the scheduler's time per request; what a policy takes beyond edf's is charged.
    decide: Dict[str, Dict[int, int]] = entry(table_of(durations_by_size), factory=dict)
    circumstances: Dict[str, Any] = entry(table_of(anything), factory=dict)  # date, device, versions, load

    def lock_of(self, model: str) -> LockUse:
        """The use of the lock by a model's host function; one that was not measured counts as pure Python."""
        return self.lock.get(model) or LockUse(1.0, self.lock_wait_ns)

    def decision_ns(self, kind: str, count: int) -> int:
        """The time that a policy takes per request with ``count`` open, beyond the time in ``event``, of ``edf`` with
        the fewest: on a line between the measured numbers; 0 where it was not measured."""
        known, usual = self.decide.get(kind), self.decide.get(USUAL)
        if not known or not usual:
            return 0
        counts = sorted(known)
        high = next((item for item in counts if item >= count), counts[-1])
        low = max([item for item in counts if item <= count], default=high)
        share = (count - low) / (high - low) if high > low else 0.0
        taken_ns = known[low] + share * (known[high] - known[low])
        return max(0, round(taken_ns) - usual[min(usual)])


def _typical(low_us: float, median_us: float, p90_us: float, p99_us: float, most_us: float) -> Spread:
    """A spread through five of its quantiles, straight lines between them."""
    known = ((0.0, low_us), (0.5, median_us), (0.9, p90_us), (0.99, p99_us), (1.0, most_us))
    found = []
    for q in QUANTILES:
        after = next(index for index, (at, _) in enumerate(known) if at >= q)
        (low, first), (high, second) = known[max(0, after - 1)], known[after]
        value_us = second if high == low else first + (second - first) * (q - low) / (high - low)
        found.append(round(value_us * NS_PER_US))
    return tuple(found)


ASSUMED = MachineCosts(
    step_ns=250_000,
    event_ns=10_000,
    receive_ns=20_000,
    answer_ns=10_000,
    send_ns=_typical(20, 40, 80, 200, 1000),
    wake_ns=_typical(50, 90, 150, 400, 4000),
    start_ns=_typical(15, 30, 60, 300, 4000),
    lock_factor=2.0,
    lock_wait_ns=_typical(0, 5000, 5200, 6000, 10_000),
)
"""The costs charged where nothing was measured: about 0.7 ms for a lone request. Processor times are those of
``edgeserve profile`` on two cores of an Intel Xeon with Python 3.11; waits are the lower half of the measured ones,
since other programs ran. The lock's are two functions in turn, and the interpreter's switch interval of 5 ms."""


def machine_path(directory: str, device: str) -> str:
    """The path of a device's costs below a profiles directory."""
    return os.path.join(directory, device, FILE)


def read_machine(path: str) -> MachineCosts:
    """Read one file. :class:`ProfileError` names it, the key, and the mend."""
    try:
        table = parse_toml(read_text(path), path)
        if table.get("format") != FORMAT:
            raise ConfigError(f"format {table.get('format')!r}, expected {FORMAT}")
        return read_table(MachineCosts, {key: value for key, value in table.items() if key != "format"}, "[machine]")
    except ConfigError as error:
        message = str(error) if str(error).startswith(path) else f"{path}: {error}"
        raise ProfileError(f"{message}; measure it again with 'edgeserve profile'") from None
    except (OSError, ValueError) as error:
        raise ProfileError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); measure it again "
            "with 'edgeserve profile'"
        ) from None


def write_machine(path: str, costs: MachineCosts) -> None:
    """Write atomically (a reader never sees half a file); makes the directories. Raises :class:`ProfileError`."""
    write_measured(path, toml_file(_lines(costs)))


def find_machine(directory: str, elsewhere: bool = False) -> Optional[Tuple[str, MachineCosts]]:
    """This machine's costs below a directory of profiles, with their path; ``None`` where there are none. With
    ``elsewhere``, for simulations: where this machine was not measured at all, those of the only device that was.
    ``directory`` may also be that of one device."""
    path = machine_path(directory, device_slug())
    if not os.path.isdir(os.path.dirname(path)) and elsewhere and os.path.isdir(directory):
        try:
            names = os.listdir(directory)
        except OSError as error:
            raise ProfileError(f"{directory}: cannot be read ({error.strerror}); name another directory") from None
        found = [os.path.join(directory, FILE), *(machine_path(directory, name) for name in names)]
        found = [item for item in found if os.path.isfile(item)]
        if len(found) == 1:  # of several none is meant: find_profiles says so where models were measured
            path = found[0]
    return (path, read_machine(path)) if os.path.isfile(path) else None


def with_overrides(costs: MachineCosts, table: Mapping[str, Any]) -> MachineCosts:
    """The costs with what a scenario's ``[machine]`` says in their place; locks are replaced model by model."""
    given = read_table(MachineCosts, table, "[machine]")
    names = {item.name for item in fields(MachineCosts) if (item.metadata["key"] or item.name) in table}
    changes: Dict[str, Any] = {name: getattr(given, name) for name in names}
    if "lock" in changes:
        changes["lock"] = {**costs.lock, **given.lock}
    return replace(costs, **changes)


def _lines(costs: Any) -> List[str]:
    """The file's text: plain keys first, then the tables."""
    lines = [f"format = {FORMAT}"] + _plain(costs)
    lines += ["", "[circumstances]"] + [
        f"{toml_key(key)} = {toml_value(value)}" for key, value in sorted(costs.circumstances.items())
    ]
    for kind, taken in sorted(costs.decide.items()):
        lines += ["", f"[decide.{toml_key(kind)}]", *(f"{n} = {_duration(ns)}" for n, ns in sorted(taken.items()))]
    for model, use in sorted(costs.lock.items()):
        lines += ["", f"[lock.{toml_key(model)}]"] + _plain(use)
    return lines


def _plain(record: Any) -> List[str]:
    lines = []
    for item in fields(record):
        value, key = getattr(record, item.name), item.metadata["key"] or item.name
        if isinstance(value, dict):
            continue
        if isinstance(value, tuple):
            lines.append(f"{key} = [{', '.join(_duration(ns) for ns in value)}]")
        else:
            lines.append(f"{key} = {_duration(value) if item.name.endswith('_ns') else toml_value(value)}")
    return lines


def _duration(value_ns: int) -> str:
    return f'"{value_ns / NS_PER_US:.10g}us"'
