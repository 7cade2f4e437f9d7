"""``options.graph = true``: a network's kernels captured as CUDA graphs, one for each form of its inputs.

A graph works in memory of its own: inputs are copied into it on the device, outputs out of it, both on the lane's
stream, so that the batches of a lane may share it. All graphs of a lane share one pool of memory, since they run one
after the other, and nothing of one is read after the next has begun.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any, Callable, Container, Dict, List, Mapping, NamedTuple, Tuple

import torch

from edgeserve.engines.cuda.graphs import GraphCounts

log = logging.getLogger("edgeserve.torch")

WARM_RUNS = 3
"""Runs of a form of inputs before it is captured: libraries choose kernels and allocate in the first ones (PyTorch,
CUDA semantics, "Whole-network capture")."""

Key = Tuple[Any, ...]
"""A form of inputs: name, shape and type of each, and the value of one that the network takes as a number."""


class CapturedCall(NamedTuple):
    """A graph with the memory that it reads and writes."""

    graph: Any
    inputs: Dict[str, torch.Tensor]
    outputs: List[torch.Tensor]


class Graphs:
    """The graphs of one network on one lane. Used on the lane's thread, with its stream current. ``call`` is the
    network; at most ``kept`` graphs, those of the forms that ran last."""

    def __init__(
        self,
        name: str,
        call: Callable[[Dict[str, torch.Tensor]], List[torch.Tensor]],
        stream: Any,
        kept: int,
        numbers: Container[str],
    ) -> None:
        self.counts = GraphCounts()
        self._name = name
        self._call = call
        self._stream = stream
        self._kept = kept
        self._numbers = numbers  # inputs that stay on the host
        self._pool: Any = None
        self._runs: Dict[Key, int] = {}
        self._captured: OrderedDict[Key, CapturedCall] = OrderedDict()
        self._captures = True

    def run(self, feeds: Dict[str, torch.Tensor]) -> List[torch.Tensor]:
        """The network's outputs, in memory of their own."""
        key = tuple(
            (name, tensor.item() if name in self._numbers else (tuple(tensor.shape), tensor.dtype))
            for name, tensor in sorted(feeds.items())
        )
        known = self._captured.get(key)
        if known is None and self._captures:
            known = self._after_a_few(key, feeds)
        if known is None:
            self.counts.enqueued += 1
            return self._call(feeds)
        self._captured.move_to_end(key)
        for name, tensor in feeds.items():
            if name not in self._numbers:
                known.inputs[name].copy_(tensor)
        known.graph.replay()
        self.counts.replayed += 1
        return [output.clone() for output in known.outputs]

    def clear(self) -> None:
        """Drop all graphs; nothing of them runs any more."""
        self.counts.dropped += len(self._captured)
        self._captured.clear()
        self._runs.clear()
        self._pool = None

    def _after_a_few(self, key: Key, feeds: Mapping[str, torch.Tensor]) -> Any:
        """A graph of this form, once it ran :data:`WARM_RUNS` times; ``None`` before."""
        runs = self._runs.get(key, 0)
        if runs < WARM_RUNS:
            if len(self._runs) > 2 * self._kept:  # of forms that never came again
                self._runs.clear()
            self._runs[key] = runs + 1
            return None
        inputs = {name: tensor if name in self._numbers else tensor.clone() for name, tensor in feeds.items()}
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                outputs = self._call(inputs)
        except RuntimeError as error:
            self._captures = False
            why = str(error).split("\n")[0]
            log.info("model %r: no CUDA graph (%s); its kernels are enqueued instead", self._name, why)
            return None
        self._pool = graph.pool() if self._pool is None else self._pool
        del self._runs[key]
        self._captured[key] = CapturedCall(graph, inputs, outputs)
        self.counts.captured += 1
        if len(self._captured) > self._kept:
            self._captured.popitem(last=False)
            self.counts.dropped += 1
        return self._captured[key]
