"""Running a model a few times on this machine, before anything is written: it must run, and how long it takes tells a
deadline and which batch sizes pay."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from dataclasses import replace
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from edgeserve.commands.init.compute import CPU, GPU, compute_threads
from edgeserve.commands.init.images import ImageProposal
from edgeserve.commands.init.roles import WITHOUT_BATCH_AXIS, Roles, Shape
from edgeserve.config.schema import ModelConfig
from edgeserve.device.boards import has_nvidia_gpu
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, Session, Values, run_whole
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.describe import READERS
from edgeserve.engines.row_check import Remembers, RowCheck
from edgeserve.engines.states import GrowingState
from edgeserve.engines.tensorrt.library import open_library
from edgeserve.engines.warm import warm_up
from edgeserve.errors import EngineError, WrongRows
from edgeserve.offload.pin import allowed_cores
from edgeserve.texts import is_text
from edgeserve.units import NS_PER_MS

SIZES = (1, 2, 4, 8)
"""Batch sizes that are tried where the file leaves the batch axis open."""

PAYS = 0.95
"""A batch size is written when one item takes at most so much of what it takes in the size before."""

SLOW_NS = 500 * NS_PER_MS
"""A model that takes longer alone is not tried in batches: the trial would take too long."""

SPEND_NS = 60 * NS_PER_MS


class ModelTrial(NamedTuple):
    """``times_ns`` is the typical time of each batch size that is worth writing; empty where the model was not run.
    ``shapes`` are those of one item that it ran with. ``why`` says what was tried in vain before, ``ended`` why there
    are not more batch sizes, ``mixing`` how far one item changed the answers of others, and ``other_rows`` whether
    outputs had not a row for each."""

    engine: str
    device: str
    times_ns: Dict[int, int] = {}
    shapes: Dict[str, Shape] = {}
    example: Values = {}
    outputs: Tuple[Tuple[str, str], ...] = ()
    why: str = ""
    ended: str = ""
    mixing: float = 0.0
    other_rows: bool = False


class FoundModel(NamedTuple):
    """One model: its name, its file relative to the configuration, what it is, how its trial went, and what is proposed
    for frames of a camera."""

    name: str
    file: str
    roles: Roles
    tried: ModelTrial
    image: Optional[ImageProposal] = None


def try_model(name: str, path: str, roles: Roles, gpu: Optional[bool] = None) -> ModelTrial:
    """Run the model with the engine and on the device that would serve it: TensorRT for an ONNX file where it is
    installed, a GPU that its own engine can use (``gpu`` of ``None``: if there is one), else the CPU.
    :class:`EngineError` when it does not run with any lengths that were tried, :class:`WrongRows` when an output has
    not a row for each item."""
    own = roles.description.engine
    by_gpu = gpu is not False and own != "sentence" and _can_use_gpu(path)  # which runs on a CPU alone
    if own == "lm":
        device = GPU if by_gpu else CPU
        make_engine(model_config(name, os.path.abspath(path), roles, {}, (1,)), [LaneInfo(device)], "/").check()
        return ModelTrial(own, device)
    ways = [(own, GPU), (own, CPU)] if by_gpu else [(own, CPU)]
    if (
        own == "onnx"
        and gpu is not False
        and not roles.is_open
        and roles.batch_axis
        and not roles.settings
        and tensorrt_answers()
    ):
        ways.insert(0, ("tensorrt", GPU))
    if own == "tensorrt":
        if gpu is False:
            raise EngineError(
                f"{path}: a plan of TensorRT runs on its GPU alone; leave --cpu out, or give the ONNX "
                "file that it was built from"
            )
        ways = [(own, GPU)]
    first: Optional[EngineError] = None
    for engine, device in ways:
        for shapes in roles.candidates:
            try:
                return _run(name, path, roles, shapes, engine, device)._replace(
                    why="" if first is None or (engine, device) == ways[0] else str(first)
                )
            except WrongRows:
                raise  # with other lengths too
            except (GrowingState, Remembers) as error:
                raise EngineError(f"{path}: {error}") from None  # with other lengths too
            except EngineError as error:
                first = first or error
    assert first is not None, "there is at least one device and one candidate"
    if len(roles.candidates) > 1:
        names = " ".join(f"--shape {port.name}=..." for port in roles.given if None in port.dims[1:])
        raise EngineError(
            f"{path}: does not run with any of the lengths that were tried for its open axes; give them, "
            f"without the batch axis: {names}. The first try said: {first}"
        )
    raise first


def tensorrt_answers() -> bool:
    """True if TensorRT can be imported, and CUDA's device 0 answers."""
    if not has_nvidia_gpu():
        return False
    try:
        open_library("auto")
        CudaDevice(open_driver("auto"), 0).close()
    except EngineError:
        return False
    return True


def _can_use_gpu(path: str) -> bool:
    if not has_nvidia_gpu():
        return False
    module = importlib.import_module(READERS[os.path.splitext(path)[1].lower()])
    return bool(getattr(module, "can_use_gpu", lambda: False)())


def model_config(
    name: str, path: str, roles: Roles, shapes: Dict[str, Shape], batch: Tuple[int, ...], engine: str = ""
) -> ModelConfig:
    """The model's section, as the engine takes it."""
    return ModelConfig(
        name=name,
        engine=engine or roles.description.engine,
        file=path,
        batch=batch,
        shapes=dict(shapes),
        state=dict(roles.state),
        options=engine_options(roles, shapes),
    )


def engine_options(roles: Roles, shapes: Dict[str, Shape]) -> Dict[str, Any]:
    """The value in ``options``."""
    options: Dict[str, Any] = {}
    if not roles.batch_axis:
        options["batch_axis"] = False
    if roles.settings and roles.batch_axis:
        options["settings"] = list(roles.settings)
    if roles.constants:
        options["constants"] = dict(roles.constants)
    if roles.state and roles.state_axis:
        options["state_axis"] = roles.state_axis
    if roles.description.facts.get("outputs"):
        options["outputs"] = list(roles.description.facts["outputs"])
    if roles.description.opaque:
        options["inputs"] = {
            port.name: {"dtype": str(port.dtype), "shape": list(shapes[port.name])} for port in roles.given
        }
    return options


def _run(name: str, path: str, roles: Roles, shapes: Dict[str, Shape], kind: str, device: str) -> ModelTrial:
    sizes = sizes_of(roles)
    # Where one size is written, two items together tell whether the first axis is a batch at all.
    may_be_one_item = kind == "onnx" and roles.batch_axis and not roles.fixed_batch
    looked_at = (1, 2) if sizes == (1,) and may_be_one_item else sizes
    with opened(name, path, roles, shapes, looked_at, kind, device) as (engine, lane):
        session, example = engine.open(lane), engine.example()
        _go_on(session, example, roles)
        check = RowCheck(looked_at, engine.rows())
        times = {sizes[0]: _typical_ns(session, example, sizes[0])}
        if times[sizes[0]] <= SLOW_NS:
            check.begin(session, example)
            if check.wrong_rows is not None:
                raise check.wrong_rows
            check.stands_still()
            for size in looked_at[1:]:
                if check.look(size) or max(times.values()) > SLOW_NS:
                    break
                if size in sizes:
                    times[size] = _typical_ns(session, example, size)
        # Of TensorRT all sizes are written: then the plan that was just built is the one that is served.
        kept = times if kind == "tensorrt" else worthwhile(times)
        ended = check.why if len(sizes) > 1 else ""
        outputs = _outputs(session, example)
        return ModelTrial(
            kind, device, kept, shapes, example, outputs, "", ended, mixing=check.mixing, other_rows=check.other_rows
        )


def _typical_ns(session: Session, example: Values, size: int) -> int:
    """The time that a batch takes, the first run aside."""
    runs = sorted(warm_up(session, example, (size,), time.perf_counter_ns, spend_ns=SPEND_NS)[size][1:])
    return runs[len(runs) // 2]


def _go_on(session: Session, example: Values, roles: Roles) -> None:
    """Run a recurrent model twice, the second time from the state that the first left behind: what grows cannot be
    served."""
    state = None
    for _ in range(2 if roles.state else 0):
        state = run_whole(session, Batch([example], 1, [state]))[0][0].state


@contextlib.contextmanager
def opened(
    name: str, path: str, roles: Roles, shapes: Dict[str, Shape], sizes: Tuple[int, ...], kind: str, device: str
) -> Iterator[Tuple[Engine, LaneInfo]]:
    """The loaded model and the lane that it was made for."""
    lane = LaneInfo(
        device, 0, compute_threads(len(allowed_cores()) or 1), name="trial", common={}, clock_ns=time.perf_counter_ns
    )
    config = model_config(name, os.path.abspath(path), roles, shapes, sizes, kind)
    if kind in WITHOUT_BATCH_AXIS:  # said, so that the engine does not find out by itself
        config = replace(config, options={**config.options, "batch_axis": roles.batch_axis})
    engine = make_engine(config, [lane], "/")
    try:
        engine.load()
        yield engine, lane
    finally:
        engine.unload()
        for shared in (lane.common or {}).values():
            close = getattr(shared, "close", None)
            if close is not None:
                close()


def sizes_of(roles: Roles) -> Tuple[int, ...]:
    """The batch sizes to try: the ones that the file takes."""
    if roles.fixed_batch is not None:
        return (roles.fixed_batch,)
    ranges = roles.description.batches
    sizes = tuple(size for size in SIZES if not ranges or any(low <= size <= high for low, high in ranges))
    sizes = sizes or (min(low for low, _ in ranges),)
    return sizes[:1] if roles.is_open else sizes


def worthwhile(times: Dict[int, int]) -> Dict[int, int]:
    """The first size, and the others while each makes an item cheaper."""
    kept: Dict[int, int] = {}
    for size, taken in sorted(times.items()):
        if kept:
            before = max(kept)
            if taken / size > PAYS * kept[before] / before:
                break
        kept[size] = taken
    return kept


def _outputs(session: Any, example: Values) -> Tuple[Tuple[str, str], ...]:
    """Name and form of each output of one item, for a comment."""
    results, _ = run_whole(session, Batch([example], 1))
    found: List[Tuple[str, str]] = []
    for key, value in results[0].outputs.items():
        shape = getattr(value, "shape", None)
        kind = "text" if isinstance(value, str) or is_text(value) else getattr(value, "dtype", type(value).__name__)
        found.append((key, f"{kind} {list(shape)}" if shape is not None else str(kind)))
    return tuple(found)
