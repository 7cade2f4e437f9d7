"""The measurement of one model on one lane: what ``edgeserve profile`` writes into a profile."""

from __future__ import annotations

import ctypes
import gc
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

import numpy as np
import psutil

from edgeserve.commands.alone import measure_alone
from edgeserve.commands.measure import (
    PROMPT_TOKENS,
    StopRule,
    fit_affine,
    measure_loads,
    measure_prompt,
    measure_rested,
    measure_size,
    medians,
    summarise,
)
from edgeserve.commands.profile_modes import share_modes
from edgeserve.config.profile_record import Clocks
from edgeserve.config.profiles import LaneProfile, Profile, Timing, write_profile
from edgeserve.device.circumstances import circumstances
from edgeserve.device.host import busy_time, others_busy
from edgeserve.engines.base import Engine, Footprint, LaneInfo, Session, Values
from edgeserve.engines.warm import time_changes, warm_up
from edgeserve.live.device_watch import clocks_of

ALONE_FACTOR = 10
"""An app's requests are measured alone for at most this many times what a batch size may take (``--seconds``)."""

CHECK_RUNS = 20
"""Runs of the first size again after the last, to see drift over the whole lane."""

Progress = Callable[[str, int], None]
"""Hears of each part of a measurement: what it is, and how many of its kind are done."""


class LaneRun:
    """One model's measurement on one lane, on the calling thread, which runs as the lane's would. What it measured is
    in the profile's file after each part; once ``stopped()`` is true it goes no further."""

    def __init__(
        self,
        engine: Engine,
        info: LaneInfo,
        lane: str,
        profile: Profile,
        path: str,
        rule: StopRule,
        progress: Progress,
        stopped: Callable[[], bool],
    ) -> None:
        self._engine, self._info, self._lane = engine, info, lane
        self._profile, self._path = profile, path
        self._rule, self._progress, self._stopped = rule, progress, stopped
        self._clock_ns = info.clock_ns or time.perf_counter_ns
        self._session: Session
        self._weights_bytes = 0

    def load(self) -> None:
        """Load the model, and open it for the lane. Raises what its engine does."""
        self._weights_bytes = self._engine.load().weights_bytes
        self._session = self._engine.open(self._info)

    def alone(self, items_of: Mapping[str, Sequence[Values]]) -> Dict[str, Tuple[int, ...]]:
        """App -> the times of its example requests, each run alone, rising."""
        found: Dict[str, Tuple[int, ...]] = {}
        time_ns_max = ALONE_FACTOR * self._rule.time_ns_max
        for done, (app, items) in enumerate(items_of.items()):
            self._progress(f"{app} alone", done)
            times = measure_alone(self._session, items, self._clock_ns, time_ns_max, self._stopped)
            if self._stopped():
                break
            found[app] = tuple(sorted(times))
        return found

    def batches(
        self,
        sizes: Sequence[int],
        todo: Sequence[int],
        known: LaneProfile,
        about: Mapping[str, Any],
        cores: Sequence[int],
    ) -> Tuple[int, ...]:
        """Measure the sizes ``todo`` of all ``sizes``, and return the measured ones. ``known`` is what it has of
        the lane, ``about`` the circumstances of its measurement, ``cores`` the ones that the thread is pinned to."""
        lanes = self._profile.circumstances["lanes"]
        if not todo:
            lanes[self._lane]["examples"] = about["examples"]
            self._write(known, self._profile.footprint)
            return ()
        engine, rule, clock_ns = self._engine, self._rule, self._clock_ns
        self._profile.circumstances["inputs"] = described(item := engine.example())
        known = replace(known, load_ns=measure_loads(engine, clock_ns))
        self._progress("warming up", 0)
        footprint = _measured_footprint(engine, self._info, item, todo, clock_ns)
        session = self._session = engine.open(self._info)
        noted, before_all = _watched(cores), circumstances()
        timings = {size: timing for size, timing in known.timings.items() if size not in todo}
        known = replace(known, prompt_token_ns=self._prompt_token_ns(item))
        for done, size in enumerate(todo):
            self._progress(f"batch {size}", done)
            samples = measure_size(session, item, size, clock_ns, rule, self._stopped, engine.makes_sequences)
            if self._stopped():
                return tuple(todo[:done])
            timings[size] = summarise(samples)
            device = {"before": before_all, "after": circumstances()}
            lanes[self._lane] = {**about, "drift": 0.0, **noted(), "device": device}
            self._write(_fitted(known, timings, self._clocks()), footprint)
        self._progress("checking", len(todo))
        lanes[self._lane].update(engine.figures(), **self._checked(item, sizes, todo[0], timings))
        rested_ns = measure_rested(session, item, min(sizes), clock_ns, rule, engine.makes_sequences)
        self._write(replace(self._profile.lanes[self._lane], rested_ns=rested_ns), footprint)
        share_modes(self._path, self._lane)
        return tuple(todo)

    def _write(self, measured: LaneProfile, footprint: Sequence[int]) -> None:
        # Working memory belongs to the model, not to a lane: the largest that was seen counts.
        work, shared = (max(pair) for pair in zip(self._profile.footprint[1:], footprint[1:]))
        self._profile = replace(
            self._profile,
            lanes={**self._profile.lanes, self._lane: measured},
            weights_bytes=self._weights_bytes,
            work_bytes=work,
            shared_bytes=shared,
        )
        write_profile(self._path, self._profile)

    def _clocks(self) -> Clocks:
        return clocks_of(self._info.device_index) if self._info.device_kind == "cuda" else Clocks()

    def _bounded(self) -> Callable[[], bool]:
        """True once it is stopped, or the time that a batch size may take is over, counted from now."""
        due_ns = self._clock_ns() + self._rule.time_ns_max
        return lambda: self._stopped() or self._clock_ns() >= due_ns

    def _prompt_token_ns(self, item: Values) -> int:
        """Reading one token of a prompt; 0 of a model that reads none."""
        sequence = self._engine.sequence()
        if sequence is None:
            return 0
        tokens = min(PROMPT_TOKENS, sequence.context_tokens // 2)
        return measure_prompt(self._session, item, tokens, self._clock_ns, self._bounded())

    def _checked(self, item: Values, sizes: Sequence[int], first: int, timings: Mapping[int, Timing]) -> Dict[str, Any]:
        """The costs of changes of the batch size, and the drift: the ``first`` size's median once more after all
        others, over its median before, minus 1. Each takes as long as a batch size may."""
        session, clock_ns, sequences = self._session, self._clock_ns, self._engine.makes_sequences
        again = StopRule(runs_min=CHECK_RUNS, runs_max=CHECK_RUNS)
        changes = time_changes(session, item, sizes, clock_ns, sequences, self._bounded())
        samples = measure_size(session, item, first, clock_ns, again, self._bounded(), sequences)
        before_ns = timings[first].median_ns
        drift = round(summarise(samples).median_ns / before_ns - 1, 4) if samples and before_ns else 0.0
        return {"changes_ns": {str(size): list(change) for size, change in changes.items()}, "drift": drift}


def _watched(cores: Sequence[int]) -> Callable[[], Dict[str, Any]]:
    """The other work of the machine on a lane's ``cores`` from now on, each time that is asked."""
    begun_s, busy_s, busy = time.perf_counter(), time.process_time(), busy_time(cores)

    def noted() -> Dict[str, Any]:
        elapsed_s = time.perf_counter() - begun_s
        # A share well below the number of threads on a CPU lane: the machine had other work to do.
        return {
            "cpu_share": round((time.process_time() - busy_s) / elapsed_s, 3),
            "load": {"others": round(others_busy(busy, busy_time(cores), elapsed_s), 2), "cores": len(cores)},
        }

    return noted


def _fitted(known: LaneProfile, timings: Mapping[int, Timing], clocks: Clocks) -> LaneProfile:
    fixed_ns, per_item_ns, error_max = fit_affine(medians(timings))
    return replace(
        known,
        timings=dict(sorted(timings.items())),
        fixed_ns=fixed_ns,
        per_item_ns=per_item_ns,
        fit_error_max=error_max,
        clock_mhz=clocks.compute_mhz,
        memory_clock_mhz=clocks.memory_mhz,
    )


def described(item: Values) -> Dict[str, Any]:
    """The example that was measured: name -> (dtype, shape) of an array, the type's name of anything else."""
    return {
        name: [str(value.dtype), list(value.shape)] if isinstance(value, np.ndarray) else type(value).__name__
        for name, value in item.items()
    }


def _resident_bytes() -> int:
    """Resident memory of this process and its children (an engine may have a process of its own)."""
    me = psutil.Process()
    total = int(me.memory_info().rss)
    for child in me.children(recursive=True):
        try:
            total += int(child.memory_info().rss)
        except psutil.NoSuchProcess:
            continue  # it ended while we looked
    return total


def _measured_footprint(
    engine: Engine, lane: LaneInfo, item: Values, sizes: Sequence[int], clock_ns: Callable[[], int]
) -> Footprint:
    """Warm the engine up and say its memory, for work what the process grows by, beyond the weights, from unloaded to
    warm. The libraries are in memory already (the engine was loaded before), and what earlier models freed goes back
    to the system first. Where growth says nothing (the memory is a GPU's) it is the engine's own estimate."""
    engine.unload()
    _give_back()
    before_bytes = _resident_bytes()
    footprint = engine.load()
    warm_up(engine.open(lane), item, sizes, clock_ns)
    grown_bytes = _resident_bytes() - before_bytes - footprint.weights_bytes
    measured = lane.device_kind == "cpu" and grown_bytes > 0
    return Footprint(footprint.weights_bytes, grown_bytes) if measured else footprint


def _give_back() -> None:
    """Return freed memory to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
