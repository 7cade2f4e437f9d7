"""Models with an encoder and a decoder on ONNX Runtime's CPU provider: a folder that ``optimum`` exported (T5, BART and
their kin), or graphs of any names that a description tells.

The encoder reads a source once; the decoder's graph is run for each step. What a step leaves for the next one is kept
by sequence. Graphs have no mask for the tokens of answers, so sequences with keys and values run together only where
their answers are of one length; those whose decoder keeps a state of a fixed size (a GRU's) run together always.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edgeserve.config.files import resolve_path
from edgeserve.config.model_files import weights_size_bytes
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo, check_count
from edgeserve.engines.lm.backend import BackendSession, Encoder, ModelFacts, Row, Source, begun_alone, in_groups
from edgeserve.engines.lm.onnx_backend import check_lanes
from edgeserve.engines.lm.onnx_sessions import SharedSession, SharedSessions
from edgeserve.engines.lm.tokenizers import CharacterTokenizer, tokenizer_with_ends
from edgeserve.engines.options import Options
from edgeserve.errors import EngineError

FORMAT = "edgeserve-encdec-1"
"""What a description must say; another number means other keys."""

KEYS = {
    "format": str,
    "encoder": str,
    "decoder": str,
    "encoder_tokens": str,
    "decoder_tokens": str,
    "mask": str,
    "mask_is_padding": bool,
    "from_encoder": dict,
    "states": dict,
    "scores": str,
    "source_tokens": int,
    "answer_tokens": int,
    "characters": list,
    "unknown": int,
    "first": list,
    "last": list,
    "stops": list,
    "begin": list,
}
"""A description's keys and their types; ``docs/guide/encoder-decoder.md`` says what they mean."""

ANSWERS = ".decoder."
"""In the names of what grows with the answer; all else that has an axis of tokens goes along the source's."""

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


class Link(NamedTuple):
    """An input of the decoder that is kept between two steps. It begins with an output of the encoder, or of the
    decoder's first run (``first``), and goes on with an output of each step (``later``; empty: it stays)."""

    name: str
    first: str
    later: str


class Graphs(NamedTuple):
    """How the graphs are used. ``decoders``: the one of the first run, and that of the others (the same where there is
    one). ``mask``: the name in the encoder and in the decoder; ``padding``: true where a token is none. ``branch``: an
    input that says whether the run is a first one."""

    encoder: str
    decoders: Tuple[str, ...]
    tokens: Tuple[str, str]
    mask: Tuple[str, str]
    padding: bool
    links: Tuple[Link, ...]
    scores: str
    branch: str = ""

    @property
    def files(self) -> Tuple[str, ...]:
        return (self.encoder, *self.decoders)


class About(NamedTuple):
    """A model: its graphs, its bounds, and the tokens that are told to the decoder or end an answer."""

    graphs: Graphs
    vocabulary: int
    encoder: Encoder
    answer_tokens: int
    tokenizer: Any


def make(model: ModelConfig, path: str, options: Options, lanes: Sequence[LaneInfo]) -> OnnxEncoderBackend:
    """The table's entry; ``path`` is a description, or ``encoder_model.onnx`` of an exported folder."""
    check_lanes(model, lanes, "onnx-encoder")
    return OnnxEncoderBackend(
        model.name, path, options.integer("context", 0, 0), options.integer("threads", 0, 0, 1024), lanes
    )


class OnnxEncoderBackend:
    """One model; lanes with equal threads and cores share the sessions of ONNX Runtime."""

    continues = True

    def __init__(self, model: str, path: str, context: int, threads: int, lanes: Sequence[LaneInfo]) -> None:
        self._model = model
        self._path = path
        self._context = context
        self._threads = threads
        self._lanes = lanes
        self._about: Optional[About] = None
        self._opened: List[SharedSessions] = []

    def load(self) -> ModelFacts:
        about = self.about()
        if not self._opened:
            self._opened = [SharedSessions(self._model, path, self._threads) for path in about.graphs.files]
        sessions = [self._sessions(lane) for lane in self._lanes or [LaneInfo()]][0]
        if self._context > max(about.answer_tokens, about.encoder.source_tokens):
            raise EngineError(
                f"model {self._model!r}: [model.{self._model}] options.context = {self._context}; the model was made "
                f"for prompts of {about.encoder.source_tokens} tokens and answers of {about.answer_tokens}; lower it"
            )
        context = min(self._context or about.answer_tokens, about.answer_tokens)
        source = min(self._context or about.encoder.source_tokens, about.encoder.source_tokens)
        weights = sum([weights_size_bytes(path) for path in about.graphs.files])
        per_token = _bytes_per_token(sessions[-1].session, [link.name for link in about.graphs.links])
        encoder = about.encoder._replace(source_tokens=source)
        return ModelFacts(context, about.vocabulary, per_token, weights * len(self._opened[0]), encoder=encoder)

    def unload(self) -> None:
        self._opened = []

    def open(self, lane: LaneInfo, slots: int) -> OnnxEncoderSession:
        return OnnxEncoderSession(self._model, self._sessions(lane), self.about().graphs, slots)

    def tokenizer(self) -> Any:
        return self.about().tokenizer

    def about(self) -> About:
        """What the model is; checked when it is read."""
        if self._about is None:
            try:
                with_names = os.path.basename(self._path) == "encoder_model.onnx"
                self._about = (exported if with_names else described)(self._path, self._model)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise EngineError(
                    f"model {self._model!r}: what lies beside {self._path} cannot be read ({error!r}); expected a "
                    "folder that optimum exported, or a description (docs/guide/encoder-decoder.md)"
                ) from error
        return self._about

    def _sessions(self, lane: LaneInfo) -> List[SharedSession]:
        return [sessions.of(lane) for sessions in self._opened]


def _bytes_per_token(decoder: Any, names: Sequence[str]) -> int:
    """What a token of a source, or of an answer, keeps in memory, whichever is more: what has an axis besides the rows'
    of no fixed length. A state of a fixed size is less than what the tokens of an answer are counted with."""
    kept = {True: 1, False: 1}
    for value in decoder.get_inputs():
        if value.name in names and _token_axis(value.shape):
            sizes = [size for size in value.shape if isinstance(size, int)]
            kept[ANSWERS in value.name] += int(np.prod(sizes)) * np.dtype(DTYPES[value.type]).itemsize
    return max(kept.values())


def _token_axis(shape: Sequence[Any]) -> int:
    """The axis along the tokens of a source, or of an answer: behind that of the rows, without a fixed length. 0: there
    is none."""
    return next((at for at, size in enumerate(shape) if at and not isinstance(size, int)), 0)


def described(path: str, model: str) -> About:
    """What a description says."""
    with open(path, encoding="utf-8") as file:
        told: Dict[str, Any] = json.load(file)
    wrong = [key for key, kind in KEYS.items() if not isinstance(told.get(key), kind)]
    if wrong or told["format"] != FORMAT:
        raise EngineError(
            f"model {model!r}: {path} has format {told.get('format')!r}"
            f"{' and lacks, or has of another type, ' + ', '.join(wrong) if wrong else ''}; expected {FORMAT!r} "
            "(docs/guide/encoder-decoder.md)"
        )
    folder = os.path.dirname(path)
    states: Mapping[str, str] = told["states"]
    links = [Link(name, output, states.get(name, "")) for name, output in told["from_encoder"].items()]
    graphs = Graphs(
        resolve_path(told["encoder"], folder),
        (resolve_path(told["decoder"], folder),),
        (told["encoder_tokens"], told["decoder_tokens"]),
        (told["mask"], told["mask"]),
        told["mask_is_padding"],
        tuple(links),
        told["scores"],
    )
    names = told["characters"]
    tokenizer = CharacterTokenizer(names, told["unknown"], told["first"], told["last"], told["stops"])
    encoder = Encoder(told["source_tokens"], tuple(told["begin"]))
    return About(graphs, len(names), encoder, told["answer_tokens"], tokenizer)


def exported(path: str, model: str) -> About:
    """What the files of a folder say that ``optimum`` exported."""
    folder = os.path.dirname(path)

    def table(name: str) -> Dict[str, Any]:
        file = os.path.join(folder, name)
        if not os.path.exists(file):
            return {}
        with open(file, encoding="utf-8") as opened:
            found: Dict[str, Any] = json.load(opened)
        return found

    config = table("config.json")
    settings = {**config, **{key: value for key, value in table("generation_config.json").items() if value is not None}}
    begin = [settings["decoder_start_token_id"], settings.get("forced_bos_token_id")]
    ends = settings["eos_token_id"]
    context = int(config.get("max_position_embeddings") or config.get("n_positions") or 0)
    layers = int(config.get("num_decoder_layers") or config["decoder_layers"])
    pairs = [
        (layer, kind, part) for layer in range(layers) for kind in ("decoder", "encoder") for part in ("key", "value")
    ]
    links = [Link("encoder_hidden_states", "last_hidden_state", "")]
    for layer, kind, part in pairs:
        output = f"present.{layer}.{kind}.{part}"
        links.append(Link(f"past_key_values.{layer}.{kind}.{part}", output, output if kind == "decoder" else ""))
    merged = os.path.join(folder, "decoder_model_merged.onnx")
    is_merged = os.path.exists(merged)
    two = tuple(os.path.join(folder, name) for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"))
    graphs = Graphs(
        path,
        (merged,) if is_merged else two,
        ("input_ids", "input_ids"),
        ("attention_mask", "encoder_attention_mask"),
        False,
        tuple(links),
        "logits",
        "use_cache_branch" if is_merged else "",
    )
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = tokenizer_with_ends(file.read(), ends if isinstance(ends, list) else [ends], model)
    encoder = Encoder(context, tuple(int(token) for token in begin if token is not None))
    return About(graphs, int(config["vocab_size"]), encoder, context, tokenizer)


class OnnxEncoderSession(BackendSession):
    """One lane's sequences: those that made the last step together as one batch, the others each by itself."""

    mixes = False

    def __init__(self, model: str, sessions: Sequence[SharedSession], graphs: Graphs, slots: int) -> None:
        self.slots = slots
        self._model = model
        self._encoder, self._first, self._later = sessions[0], sessions[1], sessions[-1]
        self._graphs = graphs
        self._alone: Dict[int, Dict[str, NDArray[Any]]] = {}  # slot -> what is kept by the decoder's inputs, a row each
        self._lengths: Dict[int, int] = {}  # slot -> tokens of its source
        self._members: List[int] = []  # slots of the batch, in order
        self._batch: Dict[str, NDArray[Any]] = {}
        self._inputs = {value.name: value for used in sessions[1:] for value in used.session.get_inputs()}
        self._later_names = {value.name for value in self._later.session.get_inputs()}
        links = [link.name for link in graphs.links if link.name in self._inputs]
        axes = {name: _token_axis(self._inputs[name].shape) for name in links}
        self._source_axis = {name: axis for name, axis in axes.items() if axis and ANSWERS not in name}
        self._grows = any(axis and ANSWERS in name for name, axis in axes.items())

    def encode(self, sources: Sequence[Source]) -> None:
        """Sources of one length run together: a recurrent encoder would read what fills up the others."""
        groups: Dict[int, List[Source]] = {}
        for source in sources:
            self.free(source.slot)
            self._lengths[source.slot] = len(source.tokens)
            groups.setdefault(len(source.tokens), []).append(source)
        for group in groups.values():
            self._encode([source.slot for source in group], np.array([source.tokens for source in group], np.int64))

    def _encode(self, slots: List[int], tokens: NDArray[Any]) -> None:
        mask = self._mask(self._graphs.mask[0], slots, self._encoder.session)
        wanted = [value.name for value in self._encoder.session.get_outputs()]
        found = self._call(self._encoder, wanted, {self._graphs.tokens[0]: tokens, **mask}, len(slots))
        links = {link.name: found[link.first] for link in self._graphs.links if link.first in found}
        self._part()
        self._members, self._batch = slots, {name: array for name, array in links.items() if name in self._inputs}
        self._part()

    def prefill(self, rows: Sequence[Row]) -> List[NDArray[Any]]:
        return in_groups(rows, begun_alone, self._append)

    def decode(self, rows: Sequence[Row]) -> List[NDArray[Any]]:
        return in_groups(rows, lambda row: row.start if self._grows else 0, self._append)

    def free(self, slot: int) -> None:
        if slot in self._members:
            self._part()
        self._alone.pop(slot, None)
        self._lengths.pop(slot, None)

    def close(self) -> None:
        self._alone, self._lengths, self._members, self._batch = {}, {}, [], {}

    def _append(self, rows: List[Row]) -> NDArray[Any]:
        """Append the tokens of rows of one length: the scores behind the last, ``[rows, vocabulary]``."""
        slots = [row.slot for row in rows]
        tokens = np.array([row.tokens for row in rows], np.int64)
        is_first = rows[0].start == 0 and self._grows
        parts = [tokens] if is_first else np.split(tokens, tokens.shape[1], axis=1)
        return [self._run(slots, part, is_first) for part in parts][-1]

    def _run(self, slots: List[int], tokens: NDArray[Any], is_first: bool) -> NDArray[Any]:
        """Append as many tokens to each sequence: the scores behind the last, ``[rows, vocabulary]``."""
        graphs = self._graphs
        used = self._first if is_first else self._later
        self._gather(slots)
        takes = {value.name for value in used.session.get_inputs()}
        given = {name: array for name, array in self._batch.items() if name in takes}
        given.update({graphs.tokens[1]: tokens, **self._mask(graphs.mask[1], slots, used.session)})
        if graphs.branch:
            given[graphs.branch] = np.array([not is_first])
            given.update({name: self._nothing(name, len(slots)) for name in takes if name not in given})
        gives = {value.name for value in used.session.get_outputs()}
        links = [(link.name, link.first if is_first and link.first in gives else link.later) for link in graphs.links]
        links = [(name, output) for name, output in links if output in gives]
        found = self._call(used, [graphs.scores, *[output for _, output in links]], given, len(slots))
        batch = {**self._batch, **{name: found[output] for name, output in links}}
        self._batch = {name: array for name, array in batch.items() if name in self._later_names}
        scores = found[graphs.scores]
        return np.asarray(scores[:, -1] if scores.ndim == 3 else scores, np.float32)

    def _nothing(self, name: str, rows: int) -> NDArray[Any]:
        value = self._inputs[name]
        return np.zeros([rows, *[size if isinstance(size, int) else 0 for size in value.shape[1:]]], DTYPES[value.type])

    def _mask(self, name: str, slots: Sequence[int], session: Any) -> Dict[str, NDArray[Any]]:
        """Which places of the sources are tokens, where the graph asks for that."""
        value = next((value for value in session.get_inputs() if value.name == name), None)
        if value is None:
            return {}
        lengths = np.array([self._lengths[slot] for slot in slots])
        is_token = np.arange(lengths.max())[None, :] < lengths[:, None]
        return {name: (is_token != self._graphs.padding).astype(DTYPES[value.type])}

    def _gather(self, slots: List[int]) -> None:
        """Make these sequences the batch."""
        if slots == self._members:
            return
        self._part()
        longest = max([self._lengths[slot] for slot in slots])
        parts = [self._alone.pop(slot) for slot in slots]
        self._batch = {
            name: np.stack([_filled(part[name], self._source_axis.get(name, 0) - 1, longest) for part in parts])
            for name in parts[0]
        }
        self._members = list(slots)

    def _part(self) -> None:
        """Let the sequences of the batch lie each by itself, without what fills them up."""
        members, self._members = self._members, []
        batch, self._batch = self._batch, {}
        for place, slot in enumerate(members):
            row = {name: array[place] for name, array in batch.items()}
            for name, axis in self._source_axis.items():
                if name in row:
                    row[name] = row[name].take(range(self._lengths[slot]), axis - 1)
            self._alone[slot] = {name: np.array(array) for name, array in row.items()}

    def _call(
        self, used: SharedSession, wanted: List[str], given: Dict[str, Any], count: int
    ) -> Dict[str, NDArray[Any]]:
        try:
            with used.turn:
                found = dict(zip(wanted, used.session.run(wanted, given)))
        except Exception as error:
            raise EngineError(
                f"model {self._model!r}: onnxruntime {onnxruntime.__version__} failed in a step of {count} sequences: "
                f"{error}"
            ) from error
        for name, array in found.items():
            check_count(array, count, f"model {self._model!r}: output {name!r}")
        return found


def _filled(array: NDArray[Any], axis: int, length: int) -> NDArray[Any]:
    """Zeros behind the tokens of a source, up to ``length`` in all; ``axis`` -1: it has no such axis."""
    if axis < 0 or array.shape[axis] == length:
        return array
    widths = [(0, length - array.shape[axis] if at == axis else 0) for at in range(array.ndim)]
    return np.pad(array, widths)
