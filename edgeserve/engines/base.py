"""The contract of an engine: code that can run one model on one device.

An engine knows nothing of requests, deadlines or queues. It is loaded once per device; each lane that may run the
model opens a :class:`Session` of its own, on the lane's thread. A session launches batches and gives back a
:class:`Pending` for each. An engine that can only run a batch to its end implements ``run`` and gets sessions for
nothing. ``edgeserve/testing/engine_conformance.py`` holds every engine to this page.
"""

from __future__ import annotations

import copy
import threading
from numbers import Integral
from typing import (
    Any,
    Callable,
    Container,
    Dict,
    Final,
    FrozenSet,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Sized,
    Tuple,
)

from edgeserve.engines.own_values import lent, owned
from edgeserve.errors import DeviceLost, EdgeServeError, EngineError, ProcessEnded, StateLost, WrongRows, told
from edgeserve.units import counted

Values = Dict[str, Any]
"""Named values of one item (no batch dimension): numpy arrays, or any object for host functions."""

PREPARED: Final = "(prepared)"
"""The name under which an item has the result of :meth:`Engine.prepare`."""

WAIT_S_MAX = 0.05
"""The longest single wait for a batch, so that a thread that waits also notices that it is to give up."""

LAYER_RUNS = 20
"""Batches that :meth:`Engine.layer_times` takes the mean of."""


class LaneInfo(NamedTuple):
    """A lane that may run the model: its device's kind (``cpu``, ``cuda``) and index, the number of threads that one
    batch may use and the cores that they are pinned to (``()`` = any; an engine that makes threads of its own pins
    those), its name, and how many batches it holds launched and not finished. ``nice``: how far its threads yield to
    others, which threads that are made while a session is opened inherit. ``models``: how many models the configuration
    puts on it (0: not known). ``priority``: of its streams on a GPU, from 0. ``sms``: the multiprocessors that are its
    own there (0: all, shared). ``flush``: denormal numbers count as 0 on
    its threads (:mod:`edgeserve.engines.denormals`). ``serves``: requests wait on it or will; what takes minutes and
    disturbs others (building a plan) is then not begun unless the configuration allows it.

    ``open`` is told two more: the clock that :meth:`Pending.times` is read on (nanoseconds; ``None`` where times are
    not used), and ``common``, where the sessions of one lane, of any model, keep shared objects by name: a lane's
    batches run one after the other, so its sessions use one stream. Objects there with a ``close`` are closed when the
    lane ends.
    """

    device_kind: str = "cpu"
    device_index: int = 0
    threads: int = 1
    cores: Tuple[int, ...] = ()
    name: str = ""
    depth: int = 1
    clock_ns: Optional[Callable[[], int]] = None
    common: Optional[Dict[str, Any]] = None
    nice: int = 0
    models: int = 0
    apps: int = 0
    priority: int = 0
    flush: bool = False
    serves: bool = False
    sms: int = 0


class SequenceInfo(NamedTuple):
    """The facts for the scheduler of a model whose items are sequences that grow step by step: how many tokens one
    sequence may have in all (``context_tokens``), the bytes of device memory that each token of its state occupies, how
    many sequences one lane can hold at once (``slots``), and how many tokens of prompts one turn reads at most
    (``prefill_tokens``; 0: a prompt is read whole before the first step, and nothing interrupts that). A turn is the
    run between two looks at :attr:`BatchControl.stop`: a step of all, or a part of a prompt."""

    context_tokens: int
    bytes_per_token: int
    slots: int
    prefill_tokens: int = 0


class BatchControl:
    """The questions and reports of an engine while its batch runs, between two steps. The lane implements it; its
    methods may be called from any thread, and cost about a microsecond where nothing is to be told. Items are named by
    their place in the batch."""

    def emit(self, index: int, result: Result) -> None:
        """Tell of one item before the batch is over.

        With ``done=False``, ``result.outputs`` are a piece of the item's answer, which its client gets now, and
        ``result.state`` is from where the item can go on behind this piece, should the lane be lost; the item goes on.
        An item whose state can say what it has :func:`written <written_of>` is told of as soon as it has written
        anything, though the piece may be empty: from then on it does not end without that.
        With ``done=True``, or with an ``error``, the item is over and answered now: its place in the batch's
        results holds :data:`ANSWERED`, and nothing more is told of it.
        """
        raise NotImplementedError

    @property
    def stop(self) -> bool:
        """True if the batch is to end after the present step: the items that are not over are returned with
        ``done=False``. Stays true."""
        raise NotImplementedError

    def dropped(self, index: int) -> bool:
        """True if an item's request has ended. The engine makes no further step for it, frees what it holds and
        returns it with ``done=True`` and no outputs. Stays true."""
        raise NotImplementedError


class _BatchFields(NamedTuple):
    items: Sequence[Values]
    size: int
    states: Sequence[Any] = ()
    steps_max: Optional[int] = None
    variant: str = ""
    control: Optional[BatchControl] = None
    owners: Sequence[str] = ()
    exact: bool = False


class Batch(_BatchFields):
    """The argument of ``launch`` and ``run``. ``items[i]`` are the values of job i; ``size >= len(items)`` is the size
    to pad to.

    ``states[i]`` is the state of job i's last result (``None`` at the start of a stream or sequence).
    ``steps_max`` bounds the steps of an iterative model in this call; ``None`` leaves the number to the engine.
    ``variant`` is one of the engine's ``variants``, or ``""`` for its own choice: a way to run the model, or one phase
    of a model that has phases. ``control`` is for models that make several steps per call; ``None`` in warm-up and
    measurements, which have no listener. ``owners[i]`` is the owner of job i, for engines that reuse one item's memory
    for another: only of the same owner, since times would tell others. Left out, as in measurements, nothing is kept
    and nothing reused. ``exact``: lengths are not rounded up (``options.pad_multiple``), to see what that changes.
    """

    __slots__ = ()

    def __new__(cls, items: Sequence[Values], size: int, states: Sequence[Any] = (), *more: Any, **by: Any) -> Batch:
        return super().__new__(cls, items, size, states or (None,) * len(items), *more, **by)

    def without(self, failed: Container[int]) -> Batch:
        """The batch of the other items, at the same size, for engines that find some items wrong before they run."""
        kept = [index for index in range(len(self.items)) if index not in failed]
        return self._replace(
            items=[self.items[index] for index in kept],
            states=[self.states[index] for index in kept],
            owners=[self.owners[index] for index in kept] if self.owners else (),
            control=None if self.control is None else _ControlOfSome(self.control, kept),
        )


class _ControlOfSome(BatchControl):
    """The control of a batch for some of its items, which are counted anew."""

    __slots__ = ("_whole", "_places")

    def __init__(self, whole: BatchControl, places: Sequence[int]) -> None:
        self._whole = whole
        self._places = places

    def emit(self, index: int, result: Result) -> None:
        self._whole.emit(self._places[index] if index >= 0 else index, result)

    @property
    def stop(self) -> bool:
        return self._whole.stop

    def dropped(self, index: int) -> bool:
        return self._whole.dropped(self._places[index] if index >= 0 else index)


class Result:
    """The result of a batch for one item.

    ``outputs`` the named values; ``parts`` (fan-out nodes only) a list of named values, one per part, ``outputs`` then
    holds what all parts share; ``route`` the successor taken; ``hints`` numbers for the scheduler, which count for the
    nodes behind (``{"read.work": 2.5}``: of the request, or of the one part that the item is); ``state`` kept for the
    next call of the same stream or sequence with ``state_bytes``; ``done=False`` means unfinished (call again), and
    its ``hints`` re-estimate what is left (``{"answer.steps": 37}``: steps that node ``answer`` still needs).
    ``steps`` are the steps that the call made for this item where ``batch.steps_max`` bounds them: the scheduler learns
    the time of one step. A call without that bound counts as one step, as a profile measures it. An item that is not
    done may have made none: a part of its prompt was read. ``turns`` counts the call's turns until this result,
    for models whose ``SequenceInfo`` bounds turns: the time of one is then what is learnt and profiled (0: as many as
    steps). ``cached`` are the tokens of the item's input that were in memory before it began.
    ``error`` says that this item failed, and why; nothing else of the result is looked at then, and the state that the
    item came with stays as it was.
    """

    __slots__ = (
        "outputs",
        "parts",
        "route",
        "hints",
        "state",
        "state_bytes",
        "done",
        "error",
        "steps",
        "turns",
        "cached",
    )

    def __init__(
        self,
        outputs: Values,
        parts: List[Values] | None = None,
        route: str | None = None,
        hints: Mapping[str, float] | None = None,
        state: Any = None,
        state_bytes: int = 0,
        done: bool = True,
        error: Exception | None = None,
        steps: int = 1,
        turns: int = 0,
        cached: int = 0,
    ) -> None:
        self.outputs = outputs
        self.parts = parts
        self.route = route
        self.hints = hints
        self.state = state
        self.state_bytes = state_bytes
        self.done = done
        self.error = error
        self.steps = steps
        self.turns = turns
        self.cached = cached


ANSWERED: Final = Result({})
"""Stands in the results of a batch at the place of an item that :meth:`BatchControl.emit` told to be over."""


def release_state(state: Any) -> None:
    """Have a state give back what it occupies on its device, if it can (its ``release`` method). It keeps what is
    needed to compute that again, on any lane."""
    release = getattr(state, "release", None)
    if release is not None:
        release()


class Prepared(Protocol):
    """The result of an engine's preparation of an item. ``took_ns``: the processor time of that, charged to its
    owner."""

    took_ns: int


class Written(NamedTuple):
    """The partial answer of an unfinished item: the outputs of an answer that ends here, and its amount, for people
    (``"19 tokens"``)."""

    outputs: Values
    amount: str


def written_of(state: Any) -> Optional[Written]:
    """The partial answer of the item of a state (the state's ``written`` method), ``None`` for nothing, or where its
    engine does not keep that. Asked on any thread, while the lane may go on with the item."""
    written = getattr(state, "written", None)
    found: Optional[Written] = None if written is None else written()
    return found


CONTEXT_BYTES_MAX = 1 << 30
"""The most memory, gone after a load beside the model's own, that counts as the model's: the first one brings
CUDA's context and the libraries, 300 to 900 MB (gh:wang-xinyu/tensorrtx#1145). More is other programs'."""

CONTEXT_BYTES_MIN = 300 << 20
"""The least memory of a further process's context, by the same source, where nothing tells."""


class Footprint(NamedTuple):
    """Bytes a loaded model occupies on its device: its weights, and the working memory of its largest batch, of all
    the lanes' sessions together. ``shared_bytes``, besides: memory of each lane that all its models use in turn, as
    large as the largest of them needs; how much this one takes."""

    weights_bytes: int
    work_bytes: int = 0
    shared_bytes: int = 0


class OutputType(NamedTuple):
    """An output: a numpy dtype or ``"text"``, and its shape without a batch axis, -1 for a size that varies."""

    dtype: str
    shape: Tuple[int, ...]


class RowFacts(NamedTuple):
    """An engine's facts on the rows of a batch, for the check that a start makes (``engines/row_check.py``).

    ``checked``: false where items are computed one by one, so that none can change the answer of another. ``lacking``:
    why the model's file says that its outputs have not one row per item, ``""`` where it does not. ``open_axes``: input
    that is padded -> its axes along which items may be shorter than the example. ``rounding``: as which share of its
    largest value an output of one item may differ between batch sizes, since other kernels add up in another order.
    ``numbers_max``: the largest whole number that may be tried as an input; more than 1 where a place beyond a table is
    an error of that item and harms nothing. ``by_chance``: whether the model draws random numbers (``None``: not
    known); of one that draws none, the same item must get the same answer at any time. ``numbers``: whole numbers that
    the model may compare its inputs with (the end of a text, a mask). ``longer``: input -> the least shape that
    is rounded up to other lengths than the example's.
    """

    checked: bool = True
    lacking: str = ""
    open_axes: Mapping[str, Tuple[int, ...]] = {}
    rounding: float = 1e-3
    numbers_max: int = 1
    by_chance: Optional[bool] = None
    numbers: Tuple[int, ...] = ()
    longer: Mapping[str, Tuple[int, ...]] = {}


class Pending:
    """A batch that was launched. One thread asks it, the lane's.

    ``result`` is asked once, when the batch is done: it unpacks. A subclass implements ``done``, ``wait`` and
    ``result``; ``times`` and ``abort`` where the device can.
    """

    def done(self) -> bool:
        """True if the batch is over, well or not. Returns at once, and stays true."""
        raise NotImplementedError

    def wait(self, timeout_s: float) -> bool:
        """Wait until the batch is over, but no longer than ``timeout_s``; whether it is."""
        raise NotImplementedError

    def result(self) -> List[Result]:
        """One result per item, in order, with ``error`` where that item alone failed. Raises what failed the whole
        batch, :class:`~edgeserve.errors.DeviceLost` when the device is gone."""
        raise NotImplementedError

    def times(self) -> Optional[Tuple[int, int]]:
        """When the device began the batch and when it ended it, on the lane's ``clock_ns``: without packing, unpacking
        and the wait for the batch before. ``None`` when the device cannot say: the lane then measures, and charges
        time that two batches share to the first alone. Asked when the batch is done."""
        return None

    def abort(self) -> bool:
        """End the batch now: all its requests have ended. True if that was possible: then it is done soon,
        and ``result`` raises an :class:`~edgeserve.errors.EngineError`. ``False``: it is over, or goes on to its
        end."""
        return False


class Finished(Pending):
    """A batch that is over already, for sessions that run it inside ``launch``."""

    def __init__(self, results: List[Result], times: Optional[Tuple[int, int]] = None) -> None:
        self._results = results
        self._times = times

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return True

    def result(self) -> List[Result]:
        return self._results

    def times(self) -> Optional[Tuple[int, int]]:
        return self._times


class Session:
    """One lane's way to run a loaded model: a stream, an execution context, a channel to another process. Opened and
    used on the lane's thread; it ends with the engine's ``unload``, after which ``launch`` raises."""

    def launch(self, batch: Batch) -> Pending:
        """Begin a batch behind those launched before, and return before it is over where the device can: the lane packs
        the next one meanwhile. Batches of one session end in the order in which they were launched. The inputs may
        be read until the batch is done. Raises what fails the whole batch before it began."""
        raise NotImplementedError


class BlockingSession(Session):
    """The session of an engine that implements ``run``: a batch is over when ``launch`` returns. Unless the engine
    ``keeps_apart`` its values, it gets arrays that cannot be written, and what it may still write to is copied."""

    def __init__(self, engine: Engine, keeps_apart: bool = False) -> None:
        self._engine = engine
        self._keeps_apart = keeps_apart

    def launch(self, batch: Batch) -> Pending:
        if self._keeps_apart:
            return Finished(self._engine.run(batch))
        items = [lent(item) for item in batch.items]
        results = self._engine.run(batch._replace(items=items))
        if isinstance(results, (list, tuple)) and len(results) == len(items):
            results = [_apart(*found) for found in zip(results, items, batch.items)]
        return Finished(results)


def _apart(result: Result, item: Values, given: Values) -> Result:
    """A result with values of its own; one of a wrong form as it is, which is told later."""
    if not isinstance(result, Result) or not isinstance(result.outputs, dict) or not (result.outputs or result.parts):
        return result
    kept: Result = owned(copy.copy(result), item, given)
    return kept


class Engine:
    """One model on one device. Subclasses implement ``load``, ``unload``, ``example`` and either ``run`` or ``open``.

    Life: ``load`` -> ``open`` once per lane -> batches... -> ``unload`` -> ``load`` again. ``load`` and ``unload`` are
    idempotent and may be called on another thread than the lanes'; no batch is launched then.
    Every failure is an :class:`edgeserve.errors.EngineError` whose text names the model and the mend. A fault of one
    item (an input that is missing, of another dtype or shape; a value that the model does not take) is the ``error`` of
    its result, and the others run: a batch holds the requests of several clients. Any exception of ``launch``,
    ``result`` or ``run`` fails the whole batch and nothing else: its lane time was planned for one run, so the rest of
    it is not run again. :class:`~edgeserve.errors.DeviceLost` takes the lane down besides.
    """

    variants: Tuple[str, ...] = ()
    """Ways to run the same model that a batch may ask for by name (a precision, an optimisation profile), and phases
    that it may ask for alone (``"prefill"``, ``"decode"``)."""

    def sequence(self) -> Optional[SequenceInfo]:
        """The facts for the scheduler of a model whose items are sequences, asked after ``load``; ``None`` for any
        other. A model of sequences listens to :class:`BatchControl`, and its states have a ``release`` method: it drops
        what the state holds on its device. Given a released state, or one that another session made, a session computes
        that part again. They may have a ``written`` method (:func:`written_of`): then an item that has begun ends at
        its deadline, or with its lane, with what it has written."""
        return None

    makes_sequences = False
    """True if :meth:`sequence` will describe the model as one of sequences: known before it is loaded, so that a
    configuration that cannot be meant is refused."""

    made_from: Tuple[Any, ...] = ()
    """The files of the model as they were when the engine was made (``config/model_files.py``): a changed file makes
    another engine."""

    loaded_from: Tuple[Any, ...] = ()
    """The files that its last load has read (before it: those it was made from). What other files have begun (a stream,
    an answer) does not go on."""

    unchecked = False
    """True if it is not known in which batches what it loads may run: its files are others than at the start."""

    rebuilds = False
    """True if the next load builds anew what the engine keeps built (a plan), with kernels that are timed then. An
    engine that builds nothing ignores it."""

    prepares: Tuple[str, ...] = ()
    """Inputs that make it worth to ask :meth:`prepare` of an item that has one of them."""

    def prepare(self, item: Values, owner: str) -> Optional[Prepared]:
        """Work out what of an item takes long and needs no lane: before its request is accepted, on any thread.
        ``item`` has the inputs of :attr:`prepares` that the request itself brings. A session finds the result in the
        item (:data:`PREPARED`); an item that was not prepared runs all the same. ``None``: there is nothing to do.
        Raises :class:`~edgeserve.errors.WrongInput` where the item cannot be meant. It must have a limit of time that
        is really held."""
        return None

    process_by_default = False
    """True if the model runs in a process of its own where ``options.process`` does not say."""

    def use_processes(self, start: Callable[..., Any], always: bool) -> bool:
        """Let ``start`` make the processes of an engine of sequences, which keeps them itself, as
        ``edgeserve/engines/lm/remote.py`` says. ``always``: to run the model, not only to try it. True if the engine
        can."""
        return False

    ends_calls = False
    """True if ``unload`` may be called while a batch runs, and ends it: of engines that run elsewhere."""

    takes_turns = False
    """True if its sessions wait for their process's turn on a GPU by themselves, for each step
    (``edgeserve/engines/turns.py``). Else the lane does, for each batch."""

    def trouble(self, lane: str) -> str:
        """The reason why a batch on this lane would fail now although the model is loaded, for people and for
        ``health``; ``""`` where nothing is known to be wrong. Asked from any thread, at any time; returns at once."""
        return ""

    def figures(self) -> Mapping[str, Any]:
        """Plain numbers on how its batches ran, for ``stats`` and profiles, as ``{"graphs": {"captured": 2}}``. Asked
        from any thread, at any time; returns at once."""
        return {}

    def layer_times(self, lane: LaneInfo, item: Values, size: int) -> Sequence[Tuple[str, int]]:
        """Layer -> its nanoseconds in a batch of ``size`` of such items, for ``edgeserve profile --layers``; nothing of
        an engine that cannot tell. Asked on the lane's thread, while the model is loaded and open there."""
        return ()

    def progress(self) -> str:
        """The progress of a ``load`` that takes minutes, in a few words; a text that stays the same is no progress.
        ``""`` where it is not known. Asked from any thread, at any time; returns at once."""
        return ""

    def check(self) -> None:
        """Raise ``EngineError`` where :meth:`load` would fail for a reason that can be known at once: a library that is
        not installed, a file of another kind. Loads nothing. ``edgeserve doctor`` and a server ask before they load."""

    def load(self) -> Footprint:
        """Make the model ready to run and say what it occupies, in bytes."""
        raise NotImplementedError(f"{type(self).__name__} has no load()")

    def unload(self) -> None:
        """Give the memory back. The sessions end with it; lanes open new ones after the next ``load``."""
        raise NotImplementedError(f"{type(self).__name__} has no unload()")

    def example(self) -> Values:
        """One item that the model accepts, for warm-up and profiling. :class:`~edgeserve.errors.ExampleUnknown` when
        it cannot be known (its text says which configuration key gives it)."""
        raise NotImplementedError(f"{type(self).__name__} has no example()")

    def outputs(self) -> Mapping[str, OutputType]:
        """The types of one item's outputs as far as the model's file has them, asked after ``load``, for the
        description of apps; the warm-up finds the dtype of other outputs."""
        return {}

    def rows(self) -> RowFacts:
        """The facts on the rows of its batches, asked after ``load``. An engine that computes one item after the
        other says ``RowFacts(checked=False)``: its models are not run on drawn items at start."""
        return RowFacts()

    def output_names(self) -> FrozenSet[str]:
        """The names of one item's outputs, as far as they are known before ``load``: some may be missing, and each
        that is there must be returned sometimes."""
        return frozenset()

    def misfits(self, declared: Mapping[str, Optional[OutputType]]) -> List[str]:
        """The reason why no item that has what an app declares could run, asked after ``load``: a sentence for each
        wrong input. ``declared`` tells the dtype and the shape of each, ``None`` where it is no array of a known dtype.
        An engine that does not know its inputs says nothing."""
        return []

    def open(self, lane: LaneInfo) -> Session:
        """A session for ``lane``, called on its thread after ``load``. Raises :class:`~edgeserve.errors.EngineError`
        when the model is not loaded."""
        return BlockingSession(self)

    def run(self, batch: Batch) -> List[Result]:
        """Run a batch to its end: one result per item, in order, with ``error`` where that item alone failed. Pads to
        ``batch.size`` where the model needs it and cuts the padding off. Called from several lanes' threads at
        once."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")


def is_interrupt(error: BaseException) -> bool:
    """True if Ctrl-C may have raised it, which comes to the main thread alone: a lane's code raises its own."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def fact_of(engine: Engine, model: str, question: str, expected: Tuple[type, ...], *arguments: Any) -> Any:
    """An engine's answer to a question of its contract. Engines are users' code: :class:`~edgeserve.errors.EngineError`
    where it raises anything else, or returns what is none of ``expected``."""
    try:
        fact = getattr(engine, question)(*arguments)
    except EdgeServeError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise EngineError(f"model {model!r}: {question}() of its engine raised {told(error)}") from error
    return checked_fact(model, question, fact, expected)


def checked_fact(model: str, question: str, fact: Any, expected: Tuple[type, ...]) -> Any:
    """The answer of an engine, see :func:`fact_of`."""
    sizes = fact if isinstance(fact, Footprint) else ()
    if not isinstance(fact, expected) or not all(isinstance(size, Integral) and size >= 0 for size in sizes):
        names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in expected)
        raise EngineError(f"model {model!r}: {question}() of its engine returned {fact!r}; expected {names}")
    return fact


def own_failure(name: str, error: BaseException) -> EngineError:
    """The error of one item of model ``name``, for any error raised while that item alone was processed: its inputs
    were read, its state, its result made. The others of its batch belong to other clients and run on. An error of a
    lost device or process is raised again, and Ctrl-C: they are no item's."""
    if isinstance(error, (DeviceLost, ProcessEnded)) or is_interrupt(error):
        raise error
    if isinstance(error, EngineError):
        return error
    failure = EngineError(f"model {name!r}: one item failed: {told(error)}")
    failure.__cause__ = error
    return failure


def with_failures(results: Sequence[Result], failed: Mapping[int, Exception]) -> List[Result]:
    """The results of the items that ran, in order, and between them those of the items at the places of ``failed``."""
    if not failed:
        return list(results)
    ran = iter(results)
    return [
        Result({}, error=failed[index]) if index in failed else next(ran) for index in range(len(results) + len(failed))
    ]


def check_count(found: Sized, items: int, what: str) -> None:
    """Raise :class:`WrongRows` where a run of several items returned more or fewer parts than items: which part is
    whose is not known then. ``what`` begins the message."""
    if len(found) != items:
        raise WrongRows(f"{what} returned {len(found)} for {counted(items, 'item')}; expected one for each, in order")


def run_batch(session: Session, batch: Batch) -> Tuple[List[Result], Optional[Tuple[int, int]]]:
    """Launch a batch and wait for its end: its results, and the device's times."""
    pending = session.launch(batch)
    while not pending.wait(WAIT_S_MAX):
        pass
    results: Any = pending.result()  # an engine of one's own may return anything
    wrong = [results] if not isinstance(results, (list, tuple)) else [x for x in results if not isinstance(x, Result)]
    if wrong:
        raise EngineError(f"a batch returned {type(wrong[0]).__name__}; expected a list of a Result per item, in order")
    check_count(results, len(batch.items), "a batch")
    return results, pending.times()


def run_whole(session: Session, batch: Batch) -> Tuple[List[Result], Optional[Tuple[int, int]]]:
    """Run a batch as :func:`run_batch`, for callers that have no use for a part of it (warm-up, measurements): the
    first item's failure is raised. A state that is lost is none: numbers that were drawn may be none that the model
    expects."""
    results, times = run_batch(session, batch)
    for result in results:
        if result.error is not None and not isinstance(result.error, StateLost):
            raise result.error
    return results, times
