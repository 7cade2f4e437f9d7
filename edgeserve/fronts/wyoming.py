"""Home Assistant's voice protocol, Wyoming, answered by apps of a running server.

One listener for all that Home Assistant and satellites ask: which services there are, wake words, voice activity,
speech to text, intents, text to speech. A connection is a satellite, or a question of Home Assistant's; its address
decides whose share it uses. A refused or late request is answered as the protocol's empty answer, and an error before
it: older clients wait for the former alone.

Sound comes as 16-bit integers, is brought to 16 kHz mono, and goes to apps of float32 from -1 to 1 (or of int16). The
protocol has no password.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import logging
import os
import re
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np
from numpy.typing import NDArray
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event
from wyoming.handle import Handled, HandledChunk, HandledStart, HandledStop, NotHandled
from wyoming.info import (
    AsrModel,
    AsrProgram,
    Attribution,
    Describe,
    HandleModel,
    HandleProgram,
    Info,
    IntentModel,
    IntentProgram,
    TtsProgram,
    TtsVoice,
    WakeModel,
    WakeProgram,
)
from wyoming.intent import Entity, Intent, NotRecognized, Recognize
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped
from wyoming.vad import VoiceStarted, VoiceStopped
from wyoming.wake import Detect, Detection, NotDetected

from edgeserve import __version__
from edgeserve.answers import Answer
from edgeserve.client import AsyncClient
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Rejected, nearest
from edgeserve.front import (
    Front,
    FrontSettings,
    Held,
    Places,
    Ready,
    Seats,
    ServedApp,
    Troubles,
    app_for,
    boolean,
    entry,
    host_and_port,
    integer,
    number,
    of_any,
    of_text,
    seated,
    string,
    table_of,
    tuple_of,
    user_at,
)
from edgeserve.front.sound import RATE_HZ_MAX, RATE_HZ_MIN, Converter
from edgeserve.fronts.listening import FULL_SCALE, RATE, SILENCE_S, VoiceActivity, WakeWords, as_type

log = logging.getLogger("edgeserve")

WIDTH = 2

CONNECTIONS_MAX = 128
CONNECTIONS_OF_ONE_MAX = 64
"""The most connections of one address, or one user of this machine: Home Assistant asks for all of its satellites."""

PART_BYTES_MAX = 4 * 1024**2
"""The most bytes of an event's data, and of its sound: two minutes."""

BYTES_MAX = 128 * 1024**2
"""The most bytes of events on their way, and of commands that are heard, of all connections; of one address or user
three quarters: Home Assistant's satellites are one."""

SOUND_S_MAX = 60
"""The longest command, in seconds: spoken commands are shorter, and every connection may hold as much."""

PATIENCE_MS = 120_000.0
"""The apps' own deadlines are shorter; a language model's may be a minute."""

TEXT_CHARS_MAX = 64 * 1024
SOUND_STEP = 2_048
"""Samples of an event of speech."""

ODD = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""The errors that the package's events raise for data of another form."""

SERVICE = "_wyoming._tcp.local."
SENTENCE_END = re.compile(r"(?<=[.!?;:])\s+|\n+")

ROLES = {
    "wake": ("two seconds of sound", of_any, 'sound = { dtype = "float32", shape = [31840] }'),
    "vad": ("frames of sound", of_any, 'input = { dtype = "float32", shape = [576] }'),
    "asr": ("sound", of_any, 'audio = { dtype = "float32", shape = [-1] }'),
    "intent": ("text", of_text, 'text = { dtype = "text" }'),
    "tts": ("text", of_text, 'text = { dtype = "text" }'),
}
"""The roles of an app -> the text for its input, the check that an input fits, an example."""


EXAMPLE = "127.0.0.1:10300"


@dataclass(frozen=True)
class Voice(FrontSettings):
    """``[front.wyoming]``: the apps by role, and their settings."""

    apps: Dict[str, str] = entry(table_of(string), factory=dict)  # the app of each role: wake, vad, asr, intent, tts
    languages: Tuple[str, ...] = entry(tuple_of(string), ("en",))  # that the apps understand
    wake_words: Tuple[str, ...] = entry(tuple_of(string), ())  # that may be heard; empty: any, told by the app's name
    wake_every_ms: float = entry(number(10.0), 250.0)  # between two looks for a wake word
    wake_unit: bool = entry(boolean, False)  # the wake app's floats go from -1 to 1, not to 32768
    tts_rate: int = entry(integer(1), 22_050)  # of speech whose app says no rate
    sorry: str = entry(string, "Sorry, not now.")  # said instead of a refused or failed answer
    listen: str = entry(string, EXAMPLE)  # HOST:PORT, where Home Assistant and satellites ask
    zeroconf: str = entry(string, "")  # the name under which Home Assistant finds the front; "" = none


class WyomingFront(Front):
    """The apps of one server as services of voice."""

    Settings = Voice
    timeout_ms = PATIENCE_MS

    def __init__(self, client: AsyncClient, voice: Voice) -> None:
        super().__init__(client, voice)
        self.voice = voice
        self.apps: Dict[str, ServedApp] = {}
        self.troubles = Troubles("wyoming")
        self._has_intents = False
        self._seats = Seats(CONNECTIONS_MAX, CONNECTIONS_OF_ONE_MAX)
        self.places = Places(BYTES_MAX, "bytes of events", lasting=True)
        self._numbers = itertools.count(1)
        self._tasks: Dict[asyncio.Task[None], None] = {}

    @classmethod
    def check(cls, settings: Voice) -> None:
        """See :class:`~edgeserve.front.Front`."""
        where = settings.where("apps")
        for role in settings.apps:
            if role not in ROLES:
                raise ConfigError(f"{where}: {role!r} is no role{nearest(role, ROLES)}")
        if not any(settings.apps.values()):
            raise ConfigError(f"no app is named: set {where} for one of the roles {', '.join(ROLES)}")
        host_and_port(settings.where("listen"), settings.listen, EXAMPLE)
        if settings.zeroconf and importlib.util.find_spec("zeroconf") is None:
            raise ConfigError(f"{settings.where('zeroconf')} needs zeroconf: pip install 'edgeserve-runtime[wyoming]'")

    async def look(self) -> None:
        """Ask the server for the apps. Raises :class:`EdgeServeError` where one cannot do what it is named for."""
        served = await self.client.apps()
        for role, (brings, fits, example) in ROLES.items():
            if self.voice.apps.get(role):
                self.apps[role] = app_for(served, self.voice.apps[role], brings, fits, example)
        for role in ("wake", "vad"):
            if role in self.apps and (len(self.apps[role].shape) != 1 or self.apps[role].shape[0] < 1):
                raise ConfigError(
                    f"app {self.apps[role].name!r} takes {self.apps[role].dtype} of shape "
                    f"{list(self.apps[role].shape)}; the role {role} needs a known number of samples, such as "
                    f"{ROLES[role][2]}"
                )
        if "intent" in self.apps:
            app = self.apps["intent"]
            outputs = {*served[app.name]["outputs"], *served[app.name]["output_types"]}
            is_open = bool(app.inputs[app.input].get("optional"))  # a language model's prompt
            self._has_intents = "intent" in outputs or not (outputs or is_open)

    def failed(self, role: str, error: EdgeServeError) -> None:
        """Count a question without an answer; its kind is logged once."""
        self.counts[f"{role}: {error.code}"] += 1
        self.troubles.tell(f"{role}: {error.code}", f"{role}: {error.code}: {error}")

    def info(self) -> Info:
        """The answer to a client that asks which services there are."""
        languages = list(self.voice.languages)

        def about(name: str, what: str) -> Dict[str, Any]:
            return {
                "name": name,
                "description": what,
                "attribution": Attribution("EdgeServe", ""),
                "installed": True,
                "version": __version__,
            }

        def told(role: str, what: str) -> Dict[str, Any]:
            return about(self.apps[role].name, f"EdgeServe: {what}")

        info = Info()
        if "wake" in self.apps:
            words = self.voice.wake_words or (self.apps["wake"].name,)
            models = [
                WakeModel(**about(word, word.replace("_", " ")), languages=languages, phrase=word.replace("_", " "))
                for word in words
            ]
            info.wake = [WakeProgram(**told("wake", "wake words"), models=models)]
        if "asr" in self.apps:
            hearing = [AsrModel(**told("asr", "speech to text"), languages=languages)]
            info.asr = [
                AsrProgram(
                    **told("asr", "speech to text"),
                    models=hearing,
                    supports_transcript_streaming=True,
                    requires_external_vad="vad" not in self.apps,
                )
            ]
        if "intent" in self.apps and self._has_intents:
            intents = [IntentModel(**told("intent", "intents"), languages=languages)]
            info.intent = [IntentProgram(**told("intent", "intents"), models=intents)]
        elif "intent" in self.apps:
            handlers = [HandleModel(**told("intent", "answers"), languages=languages)]
            info.handle = [HandleProgram(**told("intent", "answers"), models=handlers, supports_handled_streaming=True)]
        if "tts" in self.apps:
            voices = [TtsVoice(**told("tts", "text to speech"), languages=languages)]
            info.tts = [TtsProgram(**told("tts", "text to speech"), voices=voices, supports_synthesize_streaming=True)]
        return info

    async def serve(self, stopped: asyncio.Event, ready: Ready) -> None:
        """See :class:`~edgeserve.front.Front`."""
        where = self.voice.where("listen")
        host, port = host_and_port(where, self.voice.listen, EXAMPLE)
        try:
            server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise ConfigError(f"{where} = {self.voice.listen!r}: {error}; expected such as 127.0.0.1:10300") from None
        bound = server.sockets[0].getsockname()[1]
        try:
            async with announced(self.voice.where("zeroconf"), self.voice.zeroconf, host, bound):
                ready(f"tcp://{host}:{bound}")
                await stopped.wait()
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        origin = user_at(writer)
        task = asyncio.current_task()
        assert task is not None, "a server's callback is a task"
        self._tasks[task] = None
        try:
            async with seated(self._seats, origin):
                await WyomingConnection(
                    self, reader, writer, origin, f"wyoming-{os.getpid()}-{next(self._numbers)}"
                ).run()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            del self._tasks[task]


class Sentences:
    """Text that comes in pieces of any size, cut into sentences. A piece costs its own length."""

    def __init__(self) -> None:
        self._parts: List[str] = []
        self._chars = 0

    @property
    def rest(self) -> str:
        """The text that is no whole sentence yet."""
        return "".join(self._parts)

    def add(self, text: str) -> List[str]:
        """The sentences that end in another piece. Raises ``ValueError`` where one becomes too long."""
        before = self._parts[-1][-1:] if self._parts else ""  # a sign may end the piece before
        *whole, rest = SENTENCE_END.split(before + text)
        if whole:
            whole[0] = self.rest + whole[0][len(before) :]
            self._parts, self._chars = [], 0
        elif before:
            rest = text
        if rest:
            self._parts.append(rest)
            self._chars += len(rest)
        if self._chars > TEXT_CHARS_MAX:
            chars, self._parts, self._chars = self._chars, [], 0
            raise ValueError(f"a sentence of {chars} characters, at most {TEXT_CHARS_MAX} are allowed")
        return [sentence for sentence in whole if sentence.strip()]


class OddEvent(ValueError):
    """An event that this front cannot read; the next one may do."""


async def read_event(reader: asyncio.StreamReader, hold: Callable[[int], None] = lambda count: None) -> Optional[Event]:
    """The next event, None at the end. The sender says how many bytes follow a line, and ``hold`` takes the room for
    them before they are read. Raises :class:`OddEvent` where the bytes are no event, and ``ValueError`` where the
    beginning of the next one is unknown."""
    line = await reader.readline()  # bounded by the stream itself
    if not line:
        return None
    try:
        head = json.loads(line)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(head, dict):
        raise OddEvent(f"a line of JSON that is a {type(head).__name__}, expected an object")
    counts = [_count(head.get(key)) for key in ("data_length", "payload_length")]
    hold(sum(counts))
    parts = [await reader.readexactly(count) if count else b"" for count in counts]
    data = head.get("data") or {}
    try:
        more = json.loads(parts[0]) if parts[0] else {}
        return Event(type=_text(head["type"]), data={**data, **more}, payload=parts[1] or None)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise OddEvent(f"{type(error).__name__}: {error}") from None


def _count(count: Any) -> int:
    if count is not None and (type(count) is not int or not 0 <= count <= PART_BYTES_MAX):
        raise ValueError(f"a part of {str(count)[:40]} bytes, expected 0 to {PART_BYTES_MAX}")
    return count or 0


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"type is {str(value)[:40]}, expected a text")
    return value


class WyomingConnection:
    """One client: what it asked for last, and the sound that it sends. One question is answered after the other; sound
    is read meanwhile."""

    def __init__(
        self,
        front: WyomingFront,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        origin: str,
        stream: str,
    ) -> None:
        self._front = front
        self._client = front.client
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        self._origin = origin
        self._stream = stream
        self._held = Held(front.places, origin)
        self._tasks: Dict[asyncio.Task[None], None] = {}
        self._answering: Optional[asyncio.Task[None]] = None
        self._converter = Converter(SOUND_S_MAX)
        self._mode = ""  # what the sound is for: a role, "" before the first question, "done" after its answer
        self._asked: Dict[str, Any] = {}  # names of wake words, or language and sensitivity
        self._sound = bytearray()  # of a command
        self._samples = 0  # since the sound began
        self._text: Optional[Sentences] = None  # that comes in pieces, to be spoken
        self._wake = (
            WakeWords(
                self, front.apps["wake"], front.voice.wake_words, front.voice.wake_every_ms, front.voice.wake_unit
            )
            if "wake" in front.apps
            else None
        )
        self._voice = VoiceActivity(self, front.apps["vad"]) if "vad" in front.apps else None

    async def run(self) -> None:
        """Serve until the client disconnects. An odd event is answered by an error; one without a known end ends the
        connection."""
        try:
            while True:
                try:
                    self._hold(0)
                    event = await read_event(self._reader, self._hold)
                except OddEvent as error:
                    await self._answer_odd(error)
                    continue
                except Rejected as error:
                    return await self.send(Error(str(error), error.code))
                except ValueError as error:
                    await self._answer_odd(error)
                    return
                if event is None:
                    return
                await asyncio.sleep(0)  # what has come is read without a wait: other connections have a turn
                try:
                    await self._take(event)
                except ODD as error:
                    await self._answer_odd(error)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._held.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hold(self, count: int) -> None:
        """Have room for so many bytes of an event besides the command's sound. Raises :class:`Rejected`."""
        self._held.set(len(self._sound) + count)

    async def _answer_odd(self, error: Exception) -> None:
        """An event that is none is counted and answered, and its kind is logged once."""
        self._front.counts["malformed"] += 1
        text = f"no event of this protocol: {type(error).__name__}: {error}"
        self._front.troubles.tell("malformed", f"{self._origin}: {text}")
        await self.send(Error(text, "malformed"))

    async def send(self, event: Eventable) -> None:
        """One event to the client, whole."""
        async with self._sending:
            await async_write_event(event.event(), self._writer)

    def begin(self, work: Awaitable[None]) -> asyncio.Task[None]:
        """A task that ends with the connection."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            if not isinstance(task.exception(), ConnectionError):
                log.warning("wyoming: a connection of %s ends: %r", self._origin, task.exception())
            self._writer.close()

    async def ask(self, role: str, values: Mapping[str, Any]) -> Answer:
        """Ask the app of a role. Raises :class:`EdgeServeError`."""
        app = self._app(role)
        return await self._client.infer(app.name, values, origin=self._origin, **self._options(app))

    def _app(self, role: str) -> ServedApp:
        if role not in self._front.apps:
            raise BadInput(f"this front has no app of the role {role}: {self._front.voice.where('apps')} names none")
        return self._front.apps[role]

    def _options(self, app: ServedApp) -> Dict[str, Any]:
        return {"stream": self._stream} if app.streams else {}

    # --- events -------------------------------------------------------------------------------------------------------

    async def _take(self, event: Event) -> None:
        kind = event.type
        if AudioChunk.is_type(kind):
            await self._hear(AudioChunk.from_event(event))
        elif Describe.is_type(kind):
            await self.send(self._front.info())
        elif Ping.is_type(kind):
            await self.send(Pong(Ping.from_event(event).text))
        elif Detect.is_type(kind):
            self._listen("wake", {"names": Detect.from_event(event).names})
        elif Transcribe.is_type(kind):
            asked = Transcribe.from_event(event)
            sensitivity = str(getattr(asked.vad_sensitivity, "value", asked.vad_sensitivity))
            self._listen("asr", {"language": asked.language, "pause_s": SILENCE_S.get(sensitivity)})
        elif AudioStart.is_type(kind):
            self._listen(self._mode if self._mode not in ("", "done") else self._usual(), self._asked)
        elif AudioStop.is_type(kind):
            await self._sound_ended()
        elif Recognize.is_type(kind) or Transcript.is_type(kind):
            await self._next(self._answer_text(str(event.data["text"]), Recognize.is_type(kind)))
        else:
            await self._take_text(event)

    async def _take_text(self, event: Event) -> None:
        """Text to be spoken: whole, or in pieces, after which the whole comes again for servers that know no pieces."""
        if SynthesizeStart.is_type(event.type):
            self._text = Sentences()
        elif SynthesizeChunk.is_type(event.type) and self._text is not None:
            for sentence in self._text.add(SynthesizeChunk.from_event(event).text):
                await self._next(self._speak(sentence))
        elif SynthesizeStop.is_type(event.type) and self._text is not None:
            rest, self._text = self._text.rest, None
            if rest.strip():
                await self._next(self._speak(rest))
            await self._next(self.send(SynthesizeStopped()))
        elif Synthesize.is_type(event.type) and self._text is None:
            await self._next(self._speak(Synthesize.from_event(event).text))

    async def _next(self, work: Awaitable[None]) -> None:
        """Answer when the earlier answer is given."""
        if self._answering is not None:
            await asyncio.wait({self._answering})
        self._answering = self.begin(work)

    def _usual(self) -> str:
        """The role of sound that comes without a question."""
        return next((role for role in ("vad", "asr", "wake") if role in self._front.apps), "done")

    def _listen(self, mode: str, asked: Dict[str, Any]) -> None:
        self._mode, self._asked = mode, asked
        self._sound, self._samples = bytearray(), 0
        if self._wake is not None:
            self._wake.begin(asked.get("names"))
        if self._voice is not None:
            self._voice.begin(asked.get("pause_s"))

    async def _hear(self, chunk: AudioChunk) -> None:
        if not self._mode:
            self._listen(self._usual(), {})
        if self._mode == "done":
            return
        sound = self._converter.convert(chunk.audio, chunk.rate, chunk.width, chunk.channels)
        self._samples += len(sound)
        now_ms = self._samples * 1000 // RATE if chunk.timestamp is None else int(chunk.timestamp)
        if self._voice is not None:
            await self._voice.hear(sound, now_ms)
        if self._mode == "wake" and self._wake is not None:
            self._wake.hear(sound, now_ms, self._voice is None or self._voice.was_heard_lately)
        elif self._mode == "asr":
            if self._samples > SOUND_S_MAX * RATE:
                self._mode = "done"
                await self._next(self._no_transcript(BadInput(f"a command of more than {SOUND_S_MAX} s")))
            else:
                self._sound += sound.tobytes()

    def unanswered(self, role: str, error: EdgeServeError) -> None:
        """A look at the sound that was refused or failed: the next one follows."""
        self._front.failed(role, error)

    async def word_heard(self, name: str, now_ms: int) -> None:
        """A wake word."""
        self._front.counts["wake words"] += 1
        await self.send(Detection(name, now_ms))

    async def voice_began(self, now_ms: int) -> None:
        """The beginning of speech."""
        await self.send(VoiceStarted(now_ms))

    async def voice_ended(self, now_ms: int) -> None:
        """A pause of the speaker: where a command is heard, this is its end."""
        await self.send(VoiceStopped(now_ms))
        if self._mode == "asr":
            await self._sound_ended()

    async def _sound_ended(self) -> None:
        mode, self._mode = self._mode, "done"
        if mode == "asr":
            sound, self._sound = np.frombuffer(self._sound, np.int16), bytearray()
            await self._next(self._transcribe(sound, self._asked.get("language")))
        elif mode == "wake" and not (self._wake is not None and self._wake.found):
            await self.send(NotDetected())

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _transcribe(self, sound: NDArray[np.int16], language: Optional[str]) -> None:
        try:
            app = self._app("asr")
            values: Dict[str, Any] = {app.input: as_type(sound, app.dtype, 1 / FULL_SCALE)}
            if language and "language" in app.inputs:
                values["language"] = language
            await self.send(TranscriptStart(language=language))
            text = ""
            if len(sound):
                stream = self._client.stream(app.name, values, origin=self._origin, **self._options(app))
                came = False
                async with stream:
                    async for piece in stream:
                        if _words(piece, "text"):
                            came = True
                            await self.send(TranscriptChunk(_words(piece, "text")))
                    text = _text_of(await stream.answer())
                if text and not came:
                    await self.send(TranscriptChunk(text))
            self._front.counts["transcripts"] += 1
            await self.send(Transcript(text, language=language))
            await self.send(TranscriptStop())
        except EdgeServeError as error:
            await self._no_transcript(error)

    async def _no_transcript(self, error: EdgeServeError) -> None:
        await self._failed("asr", error)
        await self.send(Transcript(""))
        await self.send(TranscriptStop())

    async def _failed(self, role: str, error: EdgeServeError) -> None:
        self._front.failed(role, error)
        await self.send(Error(str(error), error.code))

    async def _answer_text(self, text: str, recognize: bool) -> None:
        """A sentence: an intent for Home Assistant to act on, or what was done, as text."""
        try:
            app = self._app("intent")
            came = False
            stream = self._client.stream(app.name, {app.input: text}, origin=self._origin, **self._options(app))
            async with stream:
                async for piece in stream:
                    if _words(piece, "text") and not recognize:
                        if not came:
                            await self.send(HandledStart())
                        came = True
                        await self.send(HandledChunk(_words(piece, "text")))
                answer = await stream.answer()
            self._front.counts["sentences"] += 1
            name = _words(answer.outputs, "intent")
            said = _words(answer.outputs, "text") if "intent" in answer.outputs else _text_of(answer)
            if name:
                await self.send(Intent(name, _entities(answer.outputs.get("entities")), said or None))
            elif recognize or "intent" in answer.outputs:
                await self.send(NotRecognized(said or None))
            else:
                await self.send(Handled(said))
                if came:
                    await self.send(HandledStop())
        except EdgeServeError as error:
            self._front.failed("intent", error)
            sorry = self._front.voice.sorry
            await self.send(NotRecognized(sorry) if recognize else NotHandled(sorry))

    async def _speak(self, text: str) -> None:
        rate = self._front.voice.tts_rate
        try:
            app = self._app("tts")
            answer = await self.ask("tts", {app.input: text})
            rate = _rate_of(answer, rate)
            sound = as_type(_sound_of(answer), "int16", 1.0)
            self._front.counts["spoken"] += 1
        except EdgeServeError as error:
            await self._failed("tts", error)
            sound = np.zeros(0, np.int16)
        await self.send(AudioStart(rate, WIDTH, 1))
        for at in range(0, len(sound), SOUND_STEP):
            await self.send(AudioChunk(rate, WIDTH, 1, sound[at : at + SOUND_STEP].tobytes()))
        await self.send(AudioStop())


# --- sound and answers ------------------------------------------------------------------------------------------------


def _words(outputs: Mapping[str, Any], name: str) -> str:
    """An output that is text; nothing where the app answers something else, or nothing."""
    value = outputs.get(name)
    return value if isinstance(value, str) else ""


def _text_of(answer: Answer) -> str:
    """Output ``text``, or the first that is text."""
    names = ["text"] if "text" in answer.outputs else [name for name in answer.outputs if _words(answer.outputs, name)]
    return _words(answer.outputs, names[0]).strip() if names else ""


def _rate_of(answer: Answer, rate: int) -> int:
    """Output ``rate``, samples a second, or the configured one."""
    found = answer.outputs.get("rate", rate)
    try:
        (told,) = np.asarray(found).reshape(-1).tolist()
        whole = int(told)
    except (TypeError, ValueError, OverflowError):
        told, whole = None, 0
    if whole != told or not RATE_HZ_MIN <= whole <= RATE_HZ_MAX:
        expected = f"one whole number from {RATE_HZ_MIN} to {RATE_HZ_MAX}"
        raise BadInput(f"the app answers rate = {str(found)[:40]!r}; expected {expected}")
    return whole


def _sound_of(answer: Answer) -> NDArray[Any]:
    """Output ``audio``, or the only array of numbers, flat."""
    value = answer.outputs.get("audio")
    if value is None:
        arrays = [each for each in answer.outputs.values() if isinstance(each, np.ndarray) and each.ndim]
        value = arrays[0] if len(arrays) == 1 else None
    if value is None or np.asarray(value).dtype.kind not in "fi":
        raise BadInput(f"the app answers {', '.join(answer.outputs) or 'nothing'}; expected audio, int16 or float32")
    return np.nan_to_num(np.asarray(value).reshape(-1))


def _entities(value: Any) -> List[Entity]:
    """Output ``entities``: JSON text of an object, name -> value."""
    if value is None or isinstance(value, str) and not value:
        return []
    try:
        table = json.loads(value) if isinstance(value, (str, bytes)) else dict(value)
        return [Entity(str(name), each) for name, each in table.items()]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"output entities is no JSON object of names and values: {error}") from None


@asynccontextmanager
async def announced(where: str, name: str, host: str, port: int) -> AsyncIterator[None]:
    """While this lasts, Home Assistant finds the front (mDNS) by a name, which stands ``where``. Without a name nothing
    is announced. Raises :class:`ConfigError`."""
    if not name:
        yield
        return
    from zeroconf import BadTypeInNameException, InterfaceChoice
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    anywhere = host in ("0.0.0.0", "::")
    address = _own_address() if anywhere else socket.gethostbyname(host)
    try:
        service = AsyncServiceInfo(
            SERVICE, f"{name}.{SERVICE}", addresses=[socket.inet_aton(address)], port=port, server=f"{name}.local."
        )
    except BadTypeInNameException as error:
        raise ConfigError(f"{where} = {name!r}: mDNS has no such name ({error})") from None
    zeroconf = AsyncZeroconf(interfaces=InterfaceChoice.Default if anywhere else [address])
    try:
        await zeroconf.async_register_service(service, allow_name_change=True)
        if service.name != f"{name}.{SERVICE}":
            log.warning("%s = %r is taken on this network: announced as %s", where, name, service.name)
        yield
        await zeroconf.async_unregister_service(service)
    finally:
        await zeroconf.async_close()


def _own_address() -> str:
    """The address under which other machines of the network see this one: that of the way to mDNS's group."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(("224.0.0.251", 5353))  # sends nothing
        return str(way.getsockname()[0])
