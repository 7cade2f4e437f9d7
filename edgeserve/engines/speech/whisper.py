"""The ``whisper`` engine: speech to text by a Whisper network on CTranslate2 (``pip install ctranslate2``).

An item has ``audio``: float32 from -1 to 1, or int16, ``[samples]``, one channel at 16 kHz; and perhaps ``language``
(``"en"``). A step encodes and decodes one window of at most 30 s, of all items of the batch together. What was said in
it is a piece of the answer, and longer items go on with the next window. The answer: ``text``; ``language``;
``segments``, JSON text of a list of objects with ``start`` and ``end`` (seconds) and ``text``; ``duration`` (seconds).

``file`` is ``model.bin`` of a converted model, which lies beside its ``config.json`` and its vocabulary. Options:
``language`` (of items that name none; left out: the network says which it hears), ``translate`` (to English), ``beam``
(sequences that are kept while a window is decoded, 1: the best token each time), ``threads`` (of a run; left out: the
lane's), ``precision`` (CTranslate2's ``compute_type``; left out: as the file has its weights).
"""

from __future__ import annotations

import json
import mmap
import os
import re
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import ctranslate2
import numpy as np
from numpy.typing import NDArray

from edgeserve.config.model_files import model_path
from edgeserve.config.schema import ModelConfig
from edgeserve.config.text_files import regular_file
from edgeserve.engines.base import (
    ANSWERED,
    Batch,
    Engine,
    Finished,
    Footprint,
    LaneInfo,
    OutputType,
    Pending,
    Result,
    SequenceInfo,
    Session,
    Values,
    Written,
    check_count,
    own_failure,
)
from edgeserve.engines.collate import MASKED, has_masked
from edgeserve.engines.cuda.status import OUT_OF_MEMORY, error_of, status_in
from edgeserve.engines.lm.tokenizers import byte_characters
from edgeserve.engines.niceness import made_yielding
from edgeserve.engines.options import Options
from edgeserve.engines.speech.heard import window_of
from edgeserve.engines.speech.mel import RATE_HZ, WINDOW_SAMPLES, log_mel
from edgeserve.errors import EngineError, WrongInput, nearest

KNOWN_OPTIONS = ("language", "translate", "beam", "threads", "precision")

WINDOWS_MAX = 720
"""Steps of one item at most: six hours."""

SILENT, SURE = 0.6, -1.0
"""A window is silent in which the network hears no speech (with a probability above the first) and is not sure of what
it wrote (mean logarithm of the tokens' probabilities below the second): Radford et al. 2022, section 4.5."""

ENCODED_FRAMES = 1500
"""Places that the encoder makes of a window."""

FULL_SCALE = 32768.0
LOUD_MAX = 4.0
"""A sound of floats with larger values is not from -1 to 1."""


class Words(NamedTuple):
    """A vocabulary: its tokens, and the numbers of the ones that the engine uses. ``languages``: the code of
    a language -> its token; empty where the network knows English alone."""

    texts: Sequence[str]
    begin: int
    end: int
    transcribe: int
    translate: int
    first_time: int
    languages: Dict[str, int]

    def text(self, tokens: Sequence[int]) -> str:
        bytes_of = byte_characters()
        data = bytes([bytes_of[letter] for token in tokens if token < self.end for letter in self.texts[token]])
        return data.decode("utf-8", "replace")


class Listened:
    """The state of an item that is not over: the sound, how many samples of it were heard, and what was said.
    ``told`` is what of it is whole: samples, segments and text after a window. ``of``: the files of the model that
    hears it."""

    def __init__(self, audio: NDArray[Any], language: str, of: Tuple[Any, ...]) -> None:
        self.audio = audio
        self.of = of
        self.language = language
        self.at = 0
        self.segments: List[Dict[str, Any]] = []
        self.sent = ""
        self.told = (0, 0, "")

    def written(self) -> Optional[Written]:
        """The text of the windows so far, while the next one may be heard."""
        at, count, text = self.told
        if not text:
            return None
        heard_s, all_s = at / RATE_HZ, len(self.audio) / RATE_HZ
        outputs = _outputs(self, text, self.segments[:count])
        return Written(outputs, f"{heard_s:.1f} s of {all_s:.1f} s of sound")

    @property
    def left(self) -> int:
        """Windows that are still to be heard, at least."""
        return max(0, -(-(len(self.audio) - self.at) // WINDOW_SAMPLES))

    def release(self) -> None:
        """Nothing is kept on the device between two windows."""


class WhisperEngine(Engine):
    """One network; each lane has its weights and its threads."""

    makes_sequences = True

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        self.name = model.name
        self.language = options.text("language")
        self.translates = options.boolean("translate", False)
        self.beam = options.integer("beam", 1, 1, 32)
        self._threads = options.integer("threads", 0, 0, 1024)
        self._precision = options.text("precision", "default")
        self._model = model
        self._directory = directory
        self._lanes = list(lanes)
        self._slots = max(model.slots, *model.batch)
        self._footprint: Optional[Footprint] = None
        self._words: Optional[Words] = None
        self._opened: Dict[str, Any] = {}
        self._lock = threading.Lock()

    def load(self) -> Footprint:
        if self._footprint is None:
            path = model_path(self._model, self._directory)
            words = vocabulary(self.name, os.path.dirname(path))
            self._check_language(words)
            lanes = max(1, len(self._lanes))
            per_item = _item_bytes(self.name, path) * max(self._model.batch)
            self._words = words
            self._footprint = Footprint(os.path.getsize(path) * lanes, per_item * lanes)
        return self._footprint

    def unload(self) -> None:
        with self._lock:
            self._footprint, self._words, self._opened = None, None, {}

    def sequence(self) -> Optional[SequenceInfo]:
        """A step is a window; nothing is kept on the device between two."""
        self.words()
        return SequenceInfo(WINDOWS_MAX + 1, 0, self._slots)

    def example(self) -> Values:
        return {"audio": np.zeros(RATE_HZ, np.float32)}

    def outputs(self) -> Dict[str, OutputType]:
        texts = {name: OutputType("text", ()) for name in ("text", "language", "segments")}
        return {**texts, "duration": OutputType("float64", ())}

    def open(self, lane: LaneInfo) -> Session:
        self.words()
        with self._lock:
            if lane.name not in self._opened:
                self._opened[lane.name] = self._open(lane)
            return WhisperSession(self, self._opened[lane.name])

    def run(self, batch: Batch) -> List[Result]:
        """Run a batch for a caller without a lane."""
        return self.open(LaneInfo()).launch(batch).result()

    def words(self) -> Words:
        """The vocabulary of the loaded model."""
        if self._words is None:
            raise EngineError(f"model {self.name!r} is not loaded; call load() before it is used")
        return self._words

    def _open(self, lane: LaneInfo) -> Any:
        folder = os.path.dirname(model_path(self._model, self._directory))
        settings = {
            "device": "cuda" if lane.device_kind == "cuda" else "cpu",
            "device_index": lane.device_index,
            "compute_type": self._precision,
            "intra_threads": self._threads or lane.threads,
        }
        try:
            # On the lane's thread: the threads that the library makes have its cores.
            return made_yielding(lane.nice, lambda: ctranslate2.models.Whisper(folder, **settings))
        except Exception as error:
            what = f"model {self.name!r}: ctranslate2 {ctranslate2.__version__}: loading {folder} on lane {lane.name!r}"
            raise _failed(what, error) from error

    def _check_language(self, words: Words) -> None:
        if self.language and self.language not in (words.languages or {"en": 0}):
            raise EngineError(
                f"model {self.name!r}: [model.{self.name}] options.language = {self.language!r}"
                f"{nearest(self.language, words.languages or ['en'])}"
            )
        if self.translates and not words.languages:
            raise EngineError(f"model {self.name!r}: its network knows English alone; take options.translate away")


class WhisperSession(Session):
    """One lane's network. A batch is over when ``launch`` returns; what listens to it listens through its control."""

    def __init__(self, engine: WhisperEngine, network: Any) -> None:
        self._engine = engine
        self._network = network

    def launch(self, batch: Batch) -> Pending:
        words = self._engine.words()
        control = batch.control
        results: Dict[int, Result] = {}
        open_items: Dict[int, Listened] = {}

        def over(index: int, result: Result) -> None:
            open_items.pop(index, None)
            results[index] = result if control is None else ANSWERED
            if control is not None:
                control.emit(index, result)

        for index, item in enumerate(batch.items):
            state = batch.states[index]
            try:
                open_items[index] = self._listened(item, words) if state is None else self._going_on(state)
            except BaseException as error:  # noqa: BLE001 it is this item's
                over(index, Result({}, error=own_failure(self._engine.name, error)))
        steps = 0
        while open_items and (batch.steps_max is None or steps < batch.steps_max):
            steps += 1
            for index, piece in zip(list(open_items), self._hear(list(open_items.values()), words)):
                heard = open_items[index]
                if control is not None and control.dropped(index):
                    over(index, Result({}, steps=steps))
                    continue
                if control is not None and piece:
                    control.emit(index, Result({"text": piece}, state=heard, done=False, steps=steps))
                if heard.at >= len(heard.audio):
                    over(index, Result(_outputs(heard, heard.sent, heard.segments), steps=steps))
            if control is not None and control.stop:
                break
        for index, heard in open_items.items():
            results[index] = Result({}, state=heard, done=False, steps=steps, hints={"steps": heard.left})
        return Finished([results[index] for index in range(len(batch.items))])

    def _hear(self, items: Sequence[Listened], words: Words) -> List[str]:
        """The next window of each: what was said in it."""
        parts = [item.audio[item.at : item.at + WINDOW_SAMPLES] for item in items]
        spectra = np.stack([log_mel(part, self._network.n_mels) for part in parts])
        try:
            encoded = self._network.encode(ctranslate2.StorageView.from_array(spectra))
            if words.languages and not all(item.language for item in items):
                languages = self._network.detect_language(encoded)
                check_count(languages, len(items), f"model {self._engine.name!r}: ctranslate2's detect_language")
                for item, found in zip(items, languages):
                    item.language = item.language or found[0][0].strip("<|>")
            said = self._network.generate(
                encoded,
                [self._prompt(item, words) for item in items],
                beam_size=self._engine.beam,
                return_scores=True,
                return_no_speech_prob=True,
            )
        except (MemoryError, RuntimeError) as error:
            what = f"model {self._engine.name!r}: ctranslate2 {ctranslate2.__version__}: a step of {len(items)} windows"
            raise _failed(what, error) from error
        check_count(said, len(items), f"model {self._engine.name!r}: ctranslate2")
        return [self._add(item, len(part), found, words) for item, part, found in zip(items, parts, said)]

    def _prompt(self, item: Listened, words: Words) -> List[int]:
        if not words.languages:
            return [words.begin]
        task = words.translate if self._engine.translates else words.transcribe
        return [words.begin, words.languages[item.language], task]

    def _add(self, item: Listened, samples: int, said: Any, words: Words) -> str:
        """Take up what was said of an item's window; the text of it."""
        is_silent = said.no_speech_prob > SILENT and said.scores[0] < SURE
        tokens = () if is_silent else [token for token in said.sequences_ids[0] if token != words.end]
        window = window_of(tokens, words.first_time, samples / RATE_HZ, item.at + samples >= len(item.audio))
        begin_s, text = item.at / RATE_HZ, ""
        for segment in window.segments:
            part = words.text(segment.tokens)
            times = {"start": round(begin_s + segment.start_s, 2), "end": round(begin_s + segment.end_s, 2)}
            item.segments.append({**times, "text": part.strip()})
            text += part
        item.at += max(1, round(window.heard_s * RATE_HZ))
        text = text if item.sent else text.lstrip()
        item.sent += text
        item.told = (item.at, len(item.segments), item.sent)
        return text

    def _going_on(self, state: Listened) -> Listened:
        if state.of != self._engine.loaded_from:
            raise EngineError(f"model {self._engine.name!r}: its files were replaced within the answer; ask again")
        return state

    def _listened(self, item: Values, words: Words) -> Listened:
        name = self._engine.name
        if item.get("audio") is None:
            raise WrongInput(f"model {name!r}: there is no input 'audio' (inputs: {', '.join(sorted(item)) or 'none'})")
        if has_masked(item["audio"]):
            raise WrongInput(f"model {name!r}: input 'audio' {MASKED}")
        audio = np.asarray(item["audio"])
        if audio.ndim != 1 or not len(audio) or audio.dtype not in (np.float32, np.float64, np.int16):
            raise WrongInput(
                f"model {name!r}: input 'audio' is {audio.dtype} of shape {list(audio.shape)}; expected float32 from "
                "-1 to 1, or int16, [samples] of one channel at 16 kHz"
            )
        if len(audio) > WINDOWS_MAX * WINDOW_SAMPLES:
            raise WrongInput(
                f"model {name!r}: input 'audio' has {len(audio)} samples; at most {WINDOWS_MAX * WINDOW_SAMPLES} are "
                "heard"
            )
        if audio.dtype == np.int16:
            audio = audio.astype(np.float32) / FULL_SCALE
        elif not float(np.abs(audio).max()) <= LOUD_MAX:  # and NaN neither
            raise WrongInput(
                f"model {name!r}: input 'audio' has values up to {np.abs(audio).max():g}; expected floats from -1 to 1 "
                "(divide 16 bit samples by 32768, or send them as int16)"
            )
        audio = audio.astype(np.float32, copy=False)
        return Listened(audio, self._language(item, words), self._engine.loaded_from)

    def _language(self, item: Values, words: Words) -> str:
        given: Any = item.get("language")
        given = given.item() if isinstance(given, np.ndarray) and given.ndim == 0 else given
        given = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        known = words.languages or {"en": 0}
        language = given or self._engine.language or ("" if words.languages else "en")
        if language and (not isinstance(language, str) or language not in known):
            raise WrongInput(
                f"model {self._engine.name!r}: input 'language' is {language!r}{nearest(str(language), known)}"
            )
        return str(language)


def _failed(what: str, error: Exception) -> EngineError:
    """The error of what CTranslate2 raised in ``what``: the device's, where that was the reason."""
    status = OUT_OF_MEMORY if isinstance(error, MemoryError) else status_in(str(error))
    return EngineError(f"{what} failed: {error}") if status is None else error_of(what, status, str(error))


def _outputs(heard: Listened, text: str, segments: Sequence[Dict[str, Any]]) -> Values:
    return {
        "text": text,
        "language": heard.language,
        "segments": json.dumps(segments, ensure_ascii=False),
        "duration": len(heard.audio) / RATE_HZ,
    }


def vocabulary(model: str, folder: str) -> Words:
    """The vocabulary beside a converted model: ``vocabulary.json``, or ``vocabulary.txt`` of older ones."""
    try:
        if os.path.exists(os.path.join(folder, "vocabulary.json")):
            with open(os.path.join(folder, "vocabulary.json"), encoding="utf-8", opener=regular_file) as file:
                texts = json.load(file)
        else:
            with open(os.path.join(folder, "vocabulary.txt"), encoding="utf-8", opener=regular_file) as file:
                texts = file.read().rstrip("\n").split("\n")
        numbers = {text: number for number, text in enumerate(texts)}
        begin, end = numbers["<|startoftranscript|>"], numbers["<|endoftext|>"]
        first = numbers["<|notimestamps|>"] + 1
        task = numbers["<|transcribe|>"], numbers["<|translate|>"]
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(
            f"model {model!r}: no vocabulary of a Whisper network lies in {folder} ({error!r}); expected "
            "vocabulary.json or vocabulary.txt beside model.bin, as ct2-transformers-converter writes them"
        ) from error
    codes = {texts[number].strip("<|>"): number for number in range(begin + 1, min(task))}
    # A network that knows English alone has one token less, and the languages' names all the same.
    is_english = first - 1 < ENGLISH_TOKENS
    return Words(texts, begin, end, *task, first, {} if is_english else codes)


ENGLISH_TOKENS = 50363
"""The token ``<|notimestamps|>`` of networks that know many languages; those of English have a smaller one."""


def _item_bytes(model: str, path: str) -> int:
    """The bytes that an item of a step keeps in memory: the encoder's output for its window, and its keys and values in
    each layer of the decoder."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        layers = {int(number) for number in re.findall(rb"decoder/layer_(\d+)/", data)}
        found = re.search(rb"encoder/layer_norm/beta\0", data)
        if not layers or found is None:
            raise EngineError(f"model {model!r}: {path} is no Whisper network of CTranslate2; expected its model.bin")
        rank = data[found.end()]
        size = int.from_bytes(data[found.end() + 1 : found.end() + 1 + 4 * rank][-4:], "little")
    return ENCODED_FRAMES * size * 4 * (1 + 2 * len(layers))
