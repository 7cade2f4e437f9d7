"""Llama-like models on ONNX Runtime's CPU provider, from the graphs that ``edgeserve.commands.lm_model`` writes.

The graph appends to keys and values in place (ONNX Runtime's GroupQueryAttention with one buffer for past and present),
so a step copies no memory. Beside ``NAME.onnx`` lies ``NAME.json``, which says what the graph is, and the tokenizer.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgeserve.config.model_files import weights_size_bytes
from edgeserve.config.schema import ModelConfig
from edgeserve.config.text_files import regular_file
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm.backend import BackendSession, ModelFacts, TokenRow
from edgeserve.engines.lm.kv_rows import KvRows
from edgeserve.engines.lm.onnx_sessions import SharedSession, SharedSessions, is_since
from edgeserve.engines.lm.sampling import Scores
from edgeserve.engines.lm.tokenizers import open_tokenizer
from edgeserve.engines.options import Options
from edgeserve.errors import EngineError

FORMAT = "edgeserve-lm-1"
"""The format that the description beside the graph must have; another number means another set of inputs."""

KNOWN_KEYS = (
    "format",
    "layers",
    "heads",
    "kv_heads",
    "head_size",
    "vocabulary",
    "context",
    "tokenizer",
    "specials",
    "first",
    "stops",
    "chat_template",
)

CHUNKS_SINCE = (1, 20)
"""The first version of ONNX Runtime in which several tokens may follow a sequence in memory; before, one."""


def make(model: ModelConfig, path: str, options: Options, lanes: Sequence[LaneInfo]) -> OnnxBackend:
    """The table's entry."""
    check_lanes(model, lanes, "onnx")
    return OnnxBackend(
        model.name, path, options.integer("context", 0, 0), options.integer("threads", 0, 0, 1024), lanes
    )


def check_lanes(model: ModelConfig, lanes: Sequence[LaneInfo], backend: str) -> None:
    """Raises :class:`EngineError` for a lane that is not of a CPU."""
    for lane in lanes:
        if lane.device_kind != "cpu":
            raise EngineError(
                f"model {model.name!r}: back end {backend!r} of engine 'lm' runs on CPU lanes, and lane "
                f"{lane.name!r} is of a {lane.device_kind} device; set [model.{model.name}] lanes, or "
                "options.backend = 'llama.cpp' or 'torch'"
            )


class OnnxBackend:
    """One graph; lanes with equal threads and cores share a session of ONNX Runtime, each has its own memory."""

    def __init__(self, model: str, path: str, context: int, threads: int, lanes: Sequence[LaneInfo]) -> None:
        self._model = model
        self._path = path
        self._lanes = lanes
        self._context = context
        self._threads = threads
        self._about: Dict[str, Any] = {}
        self._sessions = SharedSessions(model, path, threads)
        self._tokenizer: Any = None
        self.continues = is_since(CHUNKS_SINCE)

    def load(self) -> ModelFacts:
        about = self.about()
        for lane in self._lanes:
            self._sessions.of(lane)
        per_token = about["layers"] * 2 * about["kv_heads"] * about["head_size"] * 4
        return ModelFacts(
            self._context or about["context"],
            about["vocabulary"],
            per_token,
            weights_size_bytes(self._path) * len(self._sessions),
            self.continues,
        )

    def unload(self) -> None:
        self._sessions = SharedSessions(self._model, self._path, self._threads)

    def open(self, lane: LaneInfo, slots: int) -> OnnxSession:
        return OnnxSession(self._model, self._sessions.of(lane), self.about(), slots, self._context)

    def tokenizer(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = open_tokenizer(self.about(), os.path.dirname(self._path), self._model)
        return self._tokenizer

    def about(self) -> Dict[str, Any]:
        """The description of the graph; checked when it is read."""
        if self._about:
            return self._about
        path = os.path.splitext(self._path)[0] + ".json"
        try:
            with open(path, encoding="utf-8", opener=regular_file) as file:
                about = json.load(file)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"model {self._model!r}: {path} cannot be read ({error}); it says what {self._path} is. "
                "Make both with python -m edgeserve.commands.lm_model"
            ) from None
        lacks = [key for key in KNOWN_KEYS if key not in about]
        if about.get("format") != FORMAT or lacks:
            raise EngineError(
                f"model {self._model!r}: {path} has format {about.get('format')!r}"
                f"{' and lacks ' + ', '.join(lacks) if lacks else ''}; expected {FORMAT!r}. Make the "
                "model again with python -m edgeserve.commands.lm_model"
            )
        if self._context > about["context"]:
            raise EngineError(
                f"model {self._model!r}: [model.{self._model}] options.context = {self._context}, but "
                f"the graph was made for {about['context']} tokens; lower it, or make the graph longer "
                "(--context)"
            )
        self._about = about
        return self._about


class _Bound:
    """The arrays that one place and number of rows is bound to: made once, used for every step of such a batch."""

    def __init__(self, session: Any, rows: KvRows, first: int, count: int, width: int, vocabulary: int) -> None:
        self.binding = session.io_binding()
        self.tokens: NDArray[Any] = np.zeros((count, width), np.int64)
        self.lengths: NDArray[Any] = np.zeros(count, np.int32)
        self.total: NDArray[Any] = np.zeros((), np.int32)
        self.scores = np.zeros((count, vocabulary), np.float32)
        self.kept: List[Any] = []  # bound memory lies in the arrays, which must live as long
        for name, array in (("tokens", self.tokens), ("lengths", self.lengths), ("total", self.total)):
            self.binding.bind_ortvalue_input(name, self._value(array))
        self.binding.bind_ortvalue_output("scores", self._value(self.scores))
        for number, pair in enumerate(rows.layers):
            for kind, array in zip(("keys", "values"), pair):
                value = self._value(array[first : first + count])
                self.binding.bind_ortvalue_input(f"past_{kind}_{number}", value)
                self.binding.bind_ortvalue_output(f"{kind}_{number}", value)

    def _value(self, array: NDArray[Any]) -> Any:
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        self.kept.append((value, array))
        return value


class OnnxSession(BackendSession):
    """One lane's sequences."""

    def __init__(self, model: str, shared: SharedSession, about: Dict[str, Any], slots: int, context: int) -> None:
        self.slots = slots
        self._model = model
        self._session, self._turn = shared
        self._vocabulary = int(about["vocabulary"])
        self._rows = KvRows(about["layers"], slots, about["kv_heads"], context or about["context"], about["head_size"])
        self._decoding: Dict[Tuple[int, int], _Bound] = {}  # (first row, rows) -> what they are bound to
        self.mixes = False
        self._chunks = is_since(CHUNKS_SINCE)

    def prefill(self, rows: Sequence[TokenRow]) -> List[Scores]:
        """Compute rows of prompts: rows that begin run together, filled up to the longest; a row that goes on runs
        alone."""
        scores: Dict[int, NDArray[Any]] = {}
        fresh = [row for row in rows if row.start == 0]
        if fresh:
            scores.update(self._run(fresh))
        for row in rows:
            if row.start == 0:
                continue
            if len(row.tokens) == 1 or self._chunks:
                scores.update(self._run([row]))
                continue
            for place, token in enumerate(row.tokens):
                scores.update(self._run([TokenRow(row.slot, [token], row.start + place)]))
        return [scores[row.slot] for row in rows]

    def decode(self, rows: Sequence[TokenRow]) -> List[Scores]:
        scores = self._run(rows)
        return [scores[row.slot] for row in rows]

    def free(self, slot: int) -> None:
        self._rows.free(slot)

    def keep(self, slot: int) -> None:
        """It stays in its row, unless others need to lie side by side."""

    def copy(self, source: int, target: int, count: int) -> None:
        self._rows.copy(source, target, count)

    def close(self) -> None:
        self._decoding = {}
        self._rows.close()

    def _run(self, rows: Sequence[TokenRow]) -> Dict[int, NDArray[Any]]:
        """The scores by slot."""
        first = self._rows.arrange([row.slot for row in rows])
        width = max([len(row.tokens) for row in rows])
        bound = self._bound(first, len(rows), width)
        places = {row.slot: self._rows.row_of(row.slot) - first for row in rows}
        for row in rows:
            place = places[row.slot]
            bound.tokens[place, : len(row.tokens)] = row.tokens
            bound.lengths[place] = row.start + len(row.tokens) - 1  # the operator wants the last one's place
        bound.total[...] = int(bound.lengths.max()) + 1
        try:
            with self._turn:
                self._session.run_with_iobinding(bound.binding)
        except Exception as error:
            raise EngineError(
                f"model {self._model!r}: onnxruntime {onnxruntime.__version__} failed in a step of "
                f"{len(rows)} sequences: {error}"
            ) from error
        for row in rows:
            self._rows.grown(row.slot, row.start + len(row.tokens))
        return {slot: bound.scores[place] for slot, place in places.items()}

    def _bound(self, first: int, count: int, width: int) -> _Bound:
        if width > 1:
            return _Bound(self._session, self._rows, first, count, width, self._vocabulary)
        bound = self._decoding.get((first, count))
        if bound is None:
            bound = self._decoding[first, count] = _Bound(self._session, self._rows, first, count, 1, self._vocabulary)
        return bound
