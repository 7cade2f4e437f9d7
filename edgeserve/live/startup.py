"""Start-up: engines made, loaded and warmed on the very threads that will run them, before any request is served.

What it learns on the way (bytes, times of models without a profile) is what ``build_scheduler`` wants to know. Runs on
the loop's thread, before the loop.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections import abc
from typing import (
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Set,
    Tuple,
)

import numpy as np

from edgeserve.config.profile_record import Profile
from edgeserve.config.python_names import as_given
from edgeserve.config.schema import AppConfig, Config, ModelConfig
from edgeserve.engines import check_streams, lane_info, load_engine, make_engine
from edgeserve.engines.base import (
    CONTEXT_BYTES_MAX,
    CONTEXT_BYTES_MIN,
    Engine,
    Footprint,
    OutputType,
    RowFacts,
    SequenceInfo,
    checked_fact,
    fact_of,
)
from edgeserve.engines.denormals import flush_to_zero
from edgeserve.engines.warm import dear_changes, time_changes, warm_up
from edgeserve.errors import ConfigError, EngineError, ExampleUnknown, ProfileError
from edgeserve.live.loop_io import Mailbox
from edgeserve.offload.lane_thread import LaneDown, LaneThread, LaneWork, WorkDone
from edgeserve.offload.pin import allowed_cores, pin_thread
from edgeserve.sched.core.build import ASSUMED_NS, copy_lane_name, model_lanes, shared_bytes
from edgeserve.sched.protocol.actions import START_ANY_TIME_NS
from edgeserve.units import NS_PER_MS, NS_PER_S, format_duration, format_size
from edgeserve.waits import readable_files

log = logging.getLogger("edgeserve")

LOOK_NS = 5 * NS_PER_S
"""The time between two looks at the progress of a load."""

MEASURE_NS = 100 * NS_PER_MS
"""The time per batch size, at start, to measure it better than by the least number of runs."""


Progress = Callable[[str], None]
"""Takes what a start does now, in words; on the loop's thread."""


class StartInterrupted(EngineError):
    """The start was called off before it was ready."""


@contextlib.contextmanager
def naming_file(source: str) -> Iterator[None]:
    """Errors of a model, a policy or a profile name the configuration's file, as errors of the file itself do."""
    try:
        yield
    except StartInterrupted:
        raise
    except (ConfigError, EngineError, ProfileError) as error:
        text = str(error)
        told = as_given(source, text)
        if not source.startswith("(") and source not in text:
            told = f"{source}: {text}"
        if told == text:
            raise
        raise type(error)(told) from error


class _Made(NamedTuple):
    """A model on a device, whose engine is made. ``missing`` are its lanes without times, ``known`` the memory
    that it is known to occupy (0: not known)."""

    model: ModelConfig
    engine: Engine
    lanes: List[str]
    missing: List[str]
    known: Footprint


class Started(NamedTuple):
    """The result of a start: the engines by (model, device), and what the scheduler is built from."""

    engines: Dict[Tuple[str, str], Engine]
    footprints: Dict[Tuple[str, str], Footprint]
    measured: Dict[Tuple[str, str], Dict[int, List[int]]]
    resident: Dict[str, List[str]]
    sequences: Dict[str, SequenceInfo]
    outputs: Dict[str, Dict[str, OutputType]]  # by model, as far as they are known
    sizes: Dict[str, Tuple[int, ...]]  # of models that run in fewer batch sizes than are configured
    names: Dict[str, FrozenSet[str]]  # of outputs, by model, as far as they are known


def make_lanes(config: Config, mailbox: Mailbox, clock_ns: Callable[[], int]) -> Dict[str, LaneThread]:
    """All lanes, not started: those of the configuration, and a copy lane per device."""
    lanes = {name: make_lane(config, name, mailbox, clock_ns) for name in config.lanes}
    for device in config.devices:
        name = copy_lane_name(device)
        lanes[name] = LaneThread(name, mailbox.post, clock_ns)
    return lanes


def make_lane(config: Config, name: str, mailbox: Mailbox, clock_ns: Callable[[], int]) -> LaneThread:
    """One lane of the configuration, not started."""
    settings = config.lanes[name]
    device = config.devices[settings.device]
    turns = None
    if device.kind == "cuda" and device.in_turn:
        from edgeserve.engines.turns import turns_on

        turns = turns_on(device.index)
    return LaneThread(
        name,
        mailbox.post,
        clock_ns,
        _pinning(config, name),
        lane_info(config, name),
        settings.hang_ns,
        turns,
    )


def _pinning(config: Config, lane: str) -> Callable[[], None]:
    settings = config.lanes[lane]
    cores, nice = settings.cores, settings.nice
    was_told = not set(cores) <= set(allowed_cores())  # by the checks before loading

    def prepare() -> None:
        pinned = pin_thread(cores)
        if cores and not pinned.done and not was_told:
            log.warning("lane %s is not pinned: %s", lane, pinned.why)
        if nice:
            from edgeserve.engines.niceness import yield_to_others

            why_not = yield_to_others(nice)
            if why_not:
                log.warning("lane %s does not yield to others: %s", lane, why_not)
        why_not = flush_to_zero()
        if why_not:
            log.info("lane %s: %s", lane, why_not)

    return prepare


class Starter:
    """Loads and warms, one model after the other, so that no measurement disturbs another.

    Knows no request. ``called_off()`` is asked between models; other mail that arrives meanwhile stays for the loop.
    ``progress`` hears of each step, and how far a long one is. ``card_free_bytes(index)``: the free memory of a card,
    ``None`` where nothing tells.
    """

    def __init__(
        self,
        config: Config,
        profiles: Sequence[Profile],
        lanes: Mapping[str, LaneThread],
        mailbox: Mailbox,
        clock_ns: Callable[[], int],
        called_off: Callable[[], bool],
        engines: Mapping[Tuple[str, str], Engine] | None = None,
        progress: Progress | None = None,
        card_free_bytes: Callable[[int], int | None] = lambda index: None,
    ) -> None:
        self._config = config
        self._card_free_bytes = card_free_bytes
        self._with_context: Set[str] = set()  # cards, and lanes with multiprocessors of their own, that have one
        self._made = dict(engines or {})
        self._profiled = {
            (profile.model, lane): timings.timings for profile in profiles for lane, timings in profile.lanes.items()
        }
        self._known = {profile.model: Footprint(*profile.footprint) for profile in profiles}
        self._lanes = lanes
        self._mailbox = mailbox
        self._clock_ns = clock_ns
        self._called_off = called_off
        self._tell = progress or (lambda text: None)
        self._later: List[Any] = []
        self._started = Started({}, {}, {}, {device: [] for device in config.devices}, {}, {}, {}, {})

    def start(self) -> Started:
        """Everything made, warmed and, as far as memory allows, resident. Raises :class:`EngineError` or
        :class:`ConfigError` naming the model."""
        try:
            for device in self._config.devices:
                self._start_device(device)
            self._give_times_to_new_sizes()
        finally:
            for item in self._later:
                self._mailbox.post(item)
        return self._started

    def _start_device(self, device: str) -> None:
        """Load pinned models first, then the others in the order of the file; a model beyond the budget stays out until
        a request needs it. Its batches are tried before the others come, while there is room."""
        config = self._config
        budget = config.devices[device].memory_bytes
        left = budget or 2**62
        found = [self._made_for(model, device) for model in sorted(config.models.values(), key=lambda m: not m.pinned)]
        models = [item for item in found if item is not None]
        room, outside = left, set()
        inside: Dict[str, Footprint] = {}
        for item in models:
            needed = self._needed_bytes(item.model, device, item.known, inside)
            if not item.missing and needed > room:
                outside.add(item.model.name)
            else:
                room -= needed
                inside[item.model.name] = item.known
        for item in sorted(models, key=lambda item: item.model.name not in outside):
            needed = self._needed_bytes(item.model, device, item.known, self._there(device))
            if item.model.name in outside or (not item.missing and needed > left):
                self._look_at_outsider(item, device)
                log.info(
                    "model %s (%s) is not loaded at start: device %s has %s left",
                    item.model.name,
                    format_size(needed),
                    device,
                    format_size(room if item.model.name in outside else left),
                )
                continue
            left = self._start_model(item, device, left, budget)

    def _made_for(self, model: ModelConfig, device: str) -> _Made | None:
        """The engine of a model on a device with its measurements; ``None`` where no lane there may run it."""
        config = self._config
        lanes = [name for name in model_lanes(config, model) if config.lanes[name].device == device]
        if not lanes:
            return None
        engine = self._made.get((model.name, device)) or make_engine(
            model, [lane_info(config, lane, serves=True) for lane in lanes], config.directory
        )
        check_streams(config, model, engine)
        self._started.engines[model.name, device] = engine
        missing = [lane for lane in lanes if not self._is_timed(model, lane, model.batch)]
        return _Made(model, engine, lanes, missing, self._known.get(model.name, Footprint(0)))

    def _look_at_outsider(self, item: _Made, device: str) -> None:
        """See in which batches a model may run that is loaded later only, and unload it."""
        from edgeserve.engines.row_check import may_need_row_check

        if not may_need_row_check(item.model, item.engine):
            return
        engine = item.engine
        self._call(copy_lane_name(device), item.model, "loaded", lambda _: self._load(item), engine)
        self._checked_sizes(item.model, item.lanes[0], engine)
        self._unload(item, device)

    def _load(self, item: _Made) -> Footprint:
        return load_engine(item.engine, item.model, self._config.directory)

    def _start_model(self, item: _Made, device: str, left: int, budget: int) -> int:
        """Load one model and warm it on its lanes; returns the memory that is left then."""
        model, engine, lanes = item.model, item.engine, item.lanes
        free_before = self._free_before(device, engine, lanes)
        loaded: Footprint = self._call(
            copy_lane_name(device),
            model,
            "loaded",
            lambda _: checked_fact(model.name, "load", self._load(item), (Footprint,)),
            engine,
        )
        check_inputs(self._config, model, engine)
        sizes = self._checked_sizes(model, lanes[0], engine)
        seen: Dict[str, Any] = {}
        is_warm = [self._warm_up(item, lane, sizes, seen) for lane in lanes]
        if is_warm[-1] and self._config.devices[device].kind == "cuda":
            self._tell_changes(model, lanes[0], engine, sizes)
        footprint = self._whole_footprint(item, device, loaded, free_before)
        self._started.footprints[model.name, device] = footprint
        outputs = fact_of(engine, model.name, "outputs", (abc.Mapping,))
        self._started.outputs[model.name] = {**output_types(seen), **outputs}
        self._started.names[model.name] = frozenset({*seen, *outputs})
        sequence = fact_of(
            engine, model.name, "sequence", (SequenceInfo, type(None))
        )  # its sessions may have measured some of it
        if sequence is not None:
            self._started.sequences[model.name] = sequence
        needed = self._needed_bytes(model, device, footprint, self._there(device))
        return self._left_beside(item, device, needed, left, budget)

    def _warm_up(self, item: _Made, lane: str, sizes: Sequence[int], seen: Dict[str, Any]) -> bool:
        """Run each batch size on a lane; what it takes counts where no profile says. ``seen`` gets the outputs. False
        where it is not known what the model takes."""
        model, engine = item.model, item.engine
        times: Dict[int, List[int]] = {}
        try:
            times = self._call(
                lane,
                model,
                f"warmed up on lane {lane}",
                lambda here: warm_up(
                    here.open(engine),
                    engine.example(),
                    sizes,
                    self._clock_ns,
                    spend_ns=MEASURE_NS,
                    seen=seen,
                    sequences=engine.makes_sequences,
                ),
            )
            how = "measured a few runs of each batch size at start; run 'edgeserve profile'"
        except ExampleUnknown as unknown:
            why = as_given(self._config.source, str(unknown))
            how = f"{format_duration(ASSUMED_NS)} is assumed until it has run ({why})"
        if lane in item.missing or not self._is_timed(model, lane, sizes):
            runs_of = {size: runs[1:] or runs for size, runs in times.items()}
            self._started.measured[model.name, lane] = steadied(runs_of) if times else {size: [] for size in sizes}
            log.info("no profile for model %s on lane %s: %s", model.name, lane, how)
        return bool(times)

    def _whole_footprint(self, item: _Made, device: str, footprint: Footprint, free_before: int | None) -> Footprint:
        """A model's footprint with what its engine does not see of a card."""
        settings = self._config.devices[device]
        if free_before is not None:
            footprint = self._with_what_is_gone(settings.index, free_before, footprint, len(item.lanes))
        if item.engine.ends_calls and settings.kind == "cuda":
            if free_before is None:
                footprint = footprint._replace(work_bytes=footprint.work_bytes + CONTEXT_BYTES_MIN * len(item.lanes))
            self._tell_turns(item.model, device)
        return footprint

    def _left_beside(self, item: _Made, device: str, needed: int, left: int, budget: int) -> int:
        """The memory that is left beside a loaded model; it is unloaded again where that is too little for it."""
        name = item.model.name
        if budget and needed > budget:
            raise ConfigError(
                f"model {name!r} needs {format_size(needed)} on device {device!r}, more than "
                f"[device.{device}] memory = {format_size(budget)}"
            )
        if needed <= left:
            self._started.resident[device].append(name)
            return left - needed
        too_much, room = format_size(needed), format_size(left)
        log.info("model %s (%s) is unloaded again: device %s has %s left", name, too_much, device, room)
        self._unload(item, device)
        return left

    def _unload(self, item: _Made, device: str) -> None:
        for lane in item.lanes:
            self._lanes[lane].forget(item.engine)
        self._call(copy_lane_name(device), item.model, "unloaded", lambda _: item.engine.unload())

    def _there(self, device: str) -> Dict[str, Footprint]:
        """The memory of the models that are loaded."""
        return {name: self._started.footprints[name, device] for name in self._started.resident[device]}

    def _needed_bytes(
        self, model: ModelConfig, device: str, footprint: Footprint, others: Mapping[str, Footprint]
    ) -> int:
        """The memory that a model takes beside others: what its lanes' models share grows at most."""
        grown = shared_bytes(self._config, device, {**others, model.name: footprint})
        own = model.memory_bytes or footprint.weights_bytes + footprint.work_bytes
        return own + grown - shared_bytes(self._config, device, others)

    def _tell_changes(self, model: ModelConfig, lane: str, engine: Engine, sizes: Sequence[int]) -> None:
        """Say in the log where a GPU's library pays for each change of the batch size, as a server makes them."""
        changes = self._call(
            lane,
            model,
            f"tried in batches that change on lane {lane}",
            lambda here: time_changes(
                here.open(engine), engine.example(), sizes, self._clock_ns, engine.makes_sequences, self._called_off
            ),
        )
        dear = dear_changes(changes)
        if dear:
            log.warning(
                "model %s on lane %s is %s. Fewer sizes in %s change less often",
                model.name,
                lane,
                dear,
                as_given(self._config.source, f"[model.{model.name}] batch"),
            )

    def _tell_turns(self, model: ModelConfig, device: str) -> None:
        log.info(
            "model %s runs in a process of its own: on device %s that is another context of CUDA, which its memory "
            "counts, and its steps and the batches of other processes %s",
            model.name,
            device,
            "run in turn"
            if self._config.devices[device].in_turn
            else f"share the GPU as CUDA cuts the time ([device.{device}] in_turn = false)",
        )

    def _free_before(self, device: str, engine: Engine, lanes: Sequence[str]) -> int | None:
        """The free bytes of a card before a context is made: by the first model, or the first of a lane that has
        multiprocessors of its own."""
        config = self._config.devices[device]
        contexts = {str(config.index), *(lane for lane in lanes if self._config.lanes[lane].sms)}
        if config.kind != "cuda" or (contexts <= self._with_context and not engine.ends_calls):
            return None
        self._with_context |= contexts
        return self._card_free_bytes(config.index)

    def _with_what_is_gone(self, index: int, free_before: int, footprint: Footprint, lanes: int) -> Footprint:
        """The first model's footprint with what its engine does not see: CUDA's context and the libraries."""
        free_after = self._card_free_bytes(index)
        if free_after is None:
            return footprint
        unseen = free_before - free_after - sum(footprint) - (lanes - 1) * footprint.shared_bytes
        return footprint._replace(work_bytes=footprint.work_bytes + min(max(0, unseen), CONTEXT_BYTES_MAX))

    def _checked_sizes(self, model: ModelConfig, lane: str, engine: Engine) -> Tuple[int, ...]:
        """The batch sizes in which the model keeps the items of several clients apart. The log says why others end."""
        if not fact_of(engine, model.name, "rows", (RowFacts,)).checked:
            return model.batch
        from edgeserve.engines.row_check import row_check_of

        check = row_check_of(model, engine)
        if check is None:
            return model.batch
        try:
            self._call(
                lane, model, "tried on items alone", lambda here: check.begin(here.open(engine), engine.example())
            )
            self._call(lane, model, "tried on the same item again", lambda _: check.stands_still())
        except ExampleUnknown as unknown:
            check.give_up(f"it is not known what it takes ({unknown})")

        def look(size: int) -> str:
            return str(self._call(lane, model, f"tried in batches of {size}", lambda _: check.look(size)))

        for place, size in enumerate(check.order()):
            if look(size) and not place:
                break
        sizes = check.sizes()
        if sizes != model.batch:
            log.warning(
                "model %s runs in batches of %s, and not of %s as configured: %s. %s accepts what is meant so",
                model.name,
                list(sizes),
                list(model.batch),
                check.why,
                as_given(self._config.source, f"[model.{model.name}] batch_tolerance"),
            )
            others = self._started.sizes.get(model.name, sizes)
            self._started.sizes[model.name] = min(sizes, others, key=lambda left: (left[-1], len(left)))
        return sizes

    def _give_times_to_new_sizes(self) -> None:
        """Enter the sizes that a model runs in on one device for all of its lanes: a model configured without a batch
        of one may have to run in such."""
        for name, sizes in self._started.sizes.items():
            model = self._config.models[name]
            for lane in model_lanes(self._config, model):
                if not self._is_timed(model, lane, sizes):
                    times = self._started.measured.setdefault((name, lane), {})
                    times.update({size: [] for size in sizes if size not in times})

    def _is_timed(self, model: ModelConfig, lane: str, sizes: Sequence[int]) -> bool:
        timings = self._profiled.get((model.name, lane), {})
        return all(size in timings or size in model.expected for size in sizes)

    def _call(
        self, lane: str, model: ModelConfig, what: str, call: Callable[[Any], Any], engine: Engine | None = None
    ) -> Any:
        """Run ``call(lane)`` on a lane's thread and wait for it. ``engine`` is asked meanwhile how far it is."""
        self._tell(f"model {model.name} is being {what}")
        said = ""
        work = LaneWork(0, 0, START_ANY_TIME_NS, call, self._lanes[lane])
        self._lanes[lane].give(work)
        while True:
            for item in self._mailbox.take():
                if isinstance(item, WorkDone) and item.work is work:
                    return value_of(item.value, item.error, model, what)
                if isinstance(item, LaneDown):
                    raise EngineError(f"lane {item.lane!r} is down: {item.reason}")
                self._later.append(item)
            if self._called_off():
                raise StartInterrupted(f"the start was called off while model {model.name!r} was being {what}")
            if self._mailbox.going_to_sleep():
                readable_files((self._mailbox.fileno(),), LOOK_NS)  # calling the start off posts mail, too
            self._mailbox.awake()
            told, said = said, "" if engine is None else fact_of(engine, model.name, "progress", (str,))
            if said != told:
                self._tell(f"model {model.name}: {said}")


def check_inputs(config: Config, model: ModelConfig, engine: Engine) -> None:
    """Raise :class:`ConfigError` where an app of this model alone declares inputs with which no request could run."""
    for app in config.apps.values():
        if len(app.nodes) != 1 or app.nodes[0].inputs or not app.inputs:
            continue
        if model.name != app.nodes[0].model and model.name not in app.variants:
            continue
        declared = {
            name: OutputType(tensor.dtype, tensor.shape) if tensor.dtype not in ("bytes", "any") else None
            for name, tensor in app.inputs.items()
        }
        wrong = fact_of(engine, model.name, "misfits", (list, tuple), declared)
        if wrong:
            raise ConfigError(
                f"[app.{app.name}.inputs] declares what {_called(model, app)} does not take: {'; '.join(wrong)}. "
                f"Correct it, or leave [app.{app.name}.inputs] out"
            )


def _called(model: ModelConfig, app: AppConfig) -> str:
    return "its model" if model.name == app.nodes[0].model else f"the variant {model.name!r} of its model"


def output_types(outputs: Mapping[str, Any]) -> Dict[str, OutputType]:
    """The types of outputs that were seen once: their sizes may vary. Outputs without a type on the bus are left
    out."""
    found = {}
    for name, value in outputs.items():
        if isinstance(value, str) or isinstance(value, list) and all(isinstance(text, str) for text in value):
            found[name] = OutputType("text", ())
        elif isinstance(value, (np.ndarray, np.generic, int, float)):
            array = np.asarray(value)
            found[name] = OutputType("text" if array.dtype.kind in "OU" else str(array.dtype), (-1,) * array.ndim)
    return found


def steadied(times: Mapping[int, List[int]]) -> Dict[int, List[int]]:
    """Durations by batch size, without the disturbance by other programs.

    How the sizes compare is taken from each one's fastest run, since disturbances only ever add; how long runs take,
    from the typical excess over all sizes. And fewer jobs take no longer than more. A size that is thought too slow is
    never chosen, so its error would last: of a network that is fastest in batches of 12, three typical runs of each
    size on a busy machine made the scheduler run batches of 6 from then on.
    """
    level = statistics.median([statistics.median(runs) / max(1, min(runs)) for runs in times.values()])
    steady: Dict[int, List[int]] = {}
    fastest_ns = 2**62
    for size in sorted(times, reverse=True):
        runs = times[size]
        fastest_ns = min(fastest_ns, *runs)
        factor = fastest_ns * level / max(1, statistics.median(runs))
        steady[size] = [max(1, round(run * factor)) for run in runs]
    return dict(sorted(steady.items()))


def value_of(value: Any, error: BaseException | None, model: ModelConfig, what: str) -> Any:
    """The value of a call on a lane. Raises what it raised, with the model's name."""
    if error is None:
        return value
    if isinstance(error, (EngineError, ConfigError)):
        text = str(error)
        if repr(model.name) not in text and f"[model.{model.name}]" not in text:  # an engine of one's own need not know
            error.args = (f"model {model.name!r}: {text}",)
        raise error
    raise EngineError(
        f"model {model.name!r} could not be {what}: {type(error).__name__}: {error}; look at [model.{model.name}]"
    ) from error
