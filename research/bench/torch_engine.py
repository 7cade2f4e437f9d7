"""The ``torch`` engine beside ONNX Runtime on real networks: the same answers, and what the engine adds to a call.

    python research/bench/torch_engine.py [--quick] [--json FILE]

Needs torch (``make test-torch`` makes an environment), ``pip install --no-deps onnx2torch``, and the networks: ``python
-m edgeserve.commands.assets scripts/plans/assets.toml examples/reader/assets.toml examples/listener/assets.toml``.

*Answers*: the weights of an ONNX file run by both engines through their sessions, on parts of a photographed page and
on drawn numbers, in batches of 1, 2 and 4 with padding; in torch as a module, as an exported program, and as
TorchScript where the network can be brought to that form. The largest difference, as a share of the largest output.

*Overhead*: one thread, and the batch whose bare call (``inference_mode``, the input a tensor already, ``.numpy()`` of
the output) takes closest to 5 ms. Bare calls and calls through the engine (packing, checks, unpacking, a result per
item) take turns in one run, in CPU time of the thread, so that what else the machine does counts for both alike. The
median of the rounds' ratios; the middle half of them is stored too. Beside it the engine alone: the same calls with a
network that returns a stored output at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # research/

import numpy as np
import onnxruntime
import torch
from common.torch_networks import NETWORKS, Network, item_of, make
from lib.checks import Checks, arguments

from edgeserve.config.files import resolve_path
from edgeserve.config.machine import device_name
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, Engine, LaneInfo, Session, Values, run_whole

SCRIPTS = Path(__file__).resolve().parents[1]
LANE = LaneInfo(clock_ns=time.monotonic_ns, common={})
SIZES = (1, 2, 4)
TORCH_INPUT = "input_1"  # what onnx2torch calls the input
DIFFERENCE_MAX = 1e-4
"""Of the largest output: both run in float32 with other kernels and another order of sums."""

OVERHEAD_MAX = 0.05
CALL_MS = 5.0


def engine_of(network: Network, form: str, directory: str) -> Engine:
    """The network in one of the engines, loaded. Raises where it cannot be brought to that form."""
    if form == "onnx":
        model = ModelConfig("net", "onnx", file=network.file, batch=SIZES, shapes={network.input: network.shape})
    elif form == "module":
        model = ModelConfig(
            "net",
            "torch",
            function="common.torch_networks:make",
            batch=SIZES,
            shapes={TORCH_INPUT: network.shape},
            options={"arguments": {"file": network.file}},
        )
    else:
        model = ModelConfig(
            "net",
            "torch",
            file=written(network, form, directory),
            batch=SIZES,
            shapes={} if form == "export" else {TORCH_INPUT: network.shape},
        )
    engine = make_engine(model, [LANE], str(SCRIPTS) if form == "module" else directory)
    engine.load()
    return engine


def written(network: Network, form: str, directory: str) -> str:
    """The network in a file: an exported program, or TorchScript by tracing."""
    module = make(network.file)
    example = torch.from_numpy(np.stack([next(iter(item_of(network, row).values())) for row in range(2)]))
    name = network.name.replace(" ", "_") + (".pt2" if form == "export" else ".pt")
    if form == "export":
        batch = torch.export.Dim("batch", min=1, max=8)
        with contextlib.redirect_stderr(None), contextlib.redirect_stdout(None):  # it prints the whole graph
            program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, os.path.join(directory, name))
    else:
        torch.jit.save(torch.jit.trace(module, example, check_trace=False), os.path.join(directory, name))
    return name


def outputs_of(session: Session, items: List[Values], name: str, size: int) -> List[np.ndarray]:
    """The first output of each item, by a batch of ``size``."""
    renamed = [{name: next(iter(item.values()))} for item in items]
    return [np.asarray(next(iter(result.outputs.values()))) for result in run_whole(session, Batch(renamed, size))[0]]


def largest_difference(one: Session, one_name: str, other: Session, other_name: str, network: Network) -> float:
    """Over all sizes, with one row of padding where there is room."""
    worst = 0.0
    for size in SIZES:
        items = [item_of(network, 10 * size + row) for row in range(max(1, size - 1))]
        wanted = outputs_of(one, items, one_name, size)
        got = outputs_of(other, items, other_name, size)
        scale = max(float(np.abs(array).max()) for array in wanted)
        if scale == 0.0:
            raise SystemExit(f"{network.name}: ONNX Runtime returned zeros; these inputs compare nothing")
        worst = max(worst, *(float(np.abs(a - b).max()) / scale for a, b in zip(wanted, got)))
    return worst


def compare(network: Network, forms: Tuple[str, ...], directory: str) -> Dict[str, Any]:
    """Differences by form, or why the network could not be brought to it."""
    found: Dict[str, Any] = {}
    wanted = engine_of(network, "onnx", directory)
    session = wanted.open(LANE)
    for form in forms:
        try:
            engine = engine_of(network, form, directory)
        except Exception as error:  # noqa: BLE001 exporters raise whatever they like; it is reported
            found[form] = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
            continue
        name = engine.loaded_ports().example().popitem()[0]  # type: ignore[attr-defined]
        found[form] = largest_difference(session, network.input, engine.open(LANE), name, network)
        engine.unload()
    wanted.unload()
    return found


def bare_of(network: Network) -> Callable[[torch.Tensor], np.ndarray]:
    """The call that a program without an engine makes."""
    module = make(network.file)

    def call(tensor: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            array: np.ndarray = module(tensor).numpy()
            return array

    return call


def timed_ns(call: Callable[[], Any]) -> int:
    """CPU time of this thread."""
    begun_ns = time.thread_time_ns()
    call()
    return time.thread_time_ns() - begun_ns


def overhead(network: Network, rounds: int, directory: str) -> Dict[str, float]:
    """What the engine adds to the bare call, as a share of it."""
    torch.set_num_threads(1)
    bare = bare_of(network)
    engine = engine_of(network, "module", directory)
    session, name = engine.open(LANE), TORCH_INPUT

    def work(size: int) -> Tuple[torch.Tensor, Batch]:
        items = [{name: next(iter(item_of(network, row).values()))} for row in range(size)]
        return torch.from_numpy(np.stack([item[name] for item in items])), Batch(items, size)

    def call_ns(size: int) -> float:
        tensor = work(size)[0]
        bare(tensor)
        return statistics.median(timed_ns(lambda: bare(tensor)) for _ in range(7))

    size = min(SIZES, key=lambda size: abs(call_ns(size) / 1e6 - CALL_MS))
    tensor, batch = work(size)
    ratios, bare_ns = [], []
    for index in range(rounds + 5):
        pair = [lambda: bare(tensor), lambda: run_whole(session, batch)]
        order = (0, 1) if index % 2 else (1, 0)
        took = {which: timed_ns(pair[which]) for which in order}
        if index >= 5:
            ratios.append(took[1] / took[0] - 1)
            bare_ns.append(took[0])
    alone_ns = alone(engine, session, batch)
    engine.unload()
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "batch": size,
        "bare_ms": statistics.median(bare_ns) / 1e6,
        "overhead": middle,
        "overhead_quarter": low,
        "overhead_three_quarters": high,
        "engine_alone_us": alone_ns / 1e3,
    }


def alone(engine: Any, session: Session, batch: Batch) -> float:
    """CPU time of a call through the engine whose network takes none, in nanoseconds: the middle of many."""
    stored = engine.call(
        {name: torch.from_numpy(array) for name, array in engine.loaded_ports().pack(batch).feeds.items()}
    )
    engine.call = lambda tensors: stored
    return statistics.median(timed_ns(lambda: run_whole(session, batch)) for _ in range(300))


def main() -> int:
    parser = arguments(__doc__, quick="modules alone, and fewer rounds")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    here = [network for network in NETWORKS if os.path.isfile(resolve_path(network.file, "."))]
    checks = Checks("research/bench/torch_engine.py")
    forms = ("module",) if args.quick else ("module", "export", "script")
    with tempfile.TemporaryDirectory() as directory:
        rows = {network.name: compare(network, forms, directory) for network in here}
        for name, found in rows.items():
            for form, difference in found.items():
                if isinstance(difference, float):
                    checks.at_most(f"{name}, {form}: difference to ONNX Runtime", difference, DIFFERENCE_MAX)
        costs = {network.name: overhead(network, 20 if args.quick else 200, directory) for network in here}
    same = [
        name
        for name, found in rows.items()
        if any(isinstance(value, float) and value <= DIFFERENCE_MAX for value in found.values())
    ]
    checks.at_least("networks with the same answers in both", len(same), 5)
    for name, cost in costs.items():
        if cost["bare_ms"] >= CALL_MS * 0.8:  # shorter calls are stored, and have no bound
            checks.at_most(
                f"{name}, batch {cost['batch']:.0f} of {cost['bare_ms']:.1f} ms: overhead",
                cost["overhead"],
                OVERHEAD_MAX,
            )
            checks.at_most(
                f"{name}: the engine alone, as a share of that call",
                cost["engine_alone_us"] / cost["bare_ms"] / 1e3,
                OVERHEAD_MAX,
            )
    for name, cost in costs.items():
        print(
            f"{name:20} batch {cost['batch']:.0f}  bare {cost['bare_ms']:7.3f} ms  overhead {cost['overhead']:+.2%} "
            f"({cost['overhead_quarter']:+.2%} to {cost['overhead_three_quarters']:+.2%}), "
            f"the engine alone {cost['engine_alone_us']:.0f} us"
        )
    return checks.finish(
        args.json,
        {
            "device": device_name(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "networks": len(here),
            "quick": args.quick,
        },
        differences=rows,
        overheads=costs,
    )


if __name__ == "__main__":
    sys.exit(main())
