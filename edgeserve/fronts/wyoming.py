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
import logging
import os
from typing import Any, Awaitable, Dict, Mapping, Optional

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
from wyoming.intent import Intent, NotRecognized, Recognize
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped
from wyoming.vad import VoiceStarted, VoiceStopped
from wyoming.wake import Detect, Detection, NotDetected

from edgeserve import __version__
from edgeserve.answers import Answer
from edgeserve.client import AsyncClient
from edgeserve.errors import BadInput, ConfigError, EdgeServeError, Rejected, nearest
from edgeserve.front import (
    AcceptedConnections,
    Front,
    Held,
    Places,
    Ready,
    ServedApp,
    Troubles,
    app_for,
    host_and_port,
    of_any,
    of_text,
    rest_of,
)
from edgeserve.front.sound import Converter
from edgeserve.fronts.listening import FULL_SCALE, RATE, SILENCE_S, VoiceActivity, WakeWords, as_type
from edgeserve.fronts.mdns import announced
from edgeserve.fronts.voice_answers import entities_of, rate_of, sound_of, text_of, words_of
from edgeserve.fronts.wyoming_events import ODD, OddEvent, Sentences, read_event, text_in
from edgeserve.fronts.wyoming_settings import EXAMPLE, Voice

log = logging.getLogger("edgeserve")

WIDTH = 2

CONNECTIONS_MAX = 128
CONNECTIONS_OF_ONE_MAX = 64
"""The most connections of one address, or one user of this machine: Home Assistant asks for all of its satellites."""

BYTES_MAX = 128 * 1024**2
"""The most bytes of events on their way, and of commands that are heard, of all connections; of one address or user
three quarters: Home Assistant's satellites are one."""

SOUND_S_MAX = 60
"""The longest command, in seconds: spoken commands are shorter, and every connection may hold as much."""

PATIENCE_MS = 120_000.0
"""The apps' own deadlines are shorter; a language model's may be a minute."""

SOUND_STEP = 2_048
"""Samples of an event of speech."""

ROLES = {
    "wake": ("two seconds of sound", of_any, 'sound = { dtype = "float32", shape = [31840] }'),
    "vad": ("frames of sound", of_any, 'input = { dtype = "float32", shape = [576] }'),
    "asr": ("sound", of_any, 'audio = { dtype = "float32", shape = [-1] }'),
    "intent": ("text", of_text, 'text = { dtype = "text" }'),
    "tts": ("text", of_text, 'text = { dtype = "text" }'),
}
"""The roles of an app -> the text for its input, the check that an input fits, an example."""


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
        self.connections = AcceptedConnections(self._converse, CONNECTIONS_MAX, CONNECTIONS_OF_ONE_MAX)
        self.places = Places(BYTES_MAX, "bytes of events", lasting=True)
        self._numbers = itertools.count(1)

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
            server = await asyncio.start_server(self.connections.accept, host, port)
        except OSError as error:
            raise ConfigError(f"{where} = {self.voice.listen!r}: {error}; expected such as 127.0.0.1:10300") from None
        bound = server.sockets[0].getsockname()[1]
        try:
            async with announced(self.voice.where("zeroconf"), self.voice.zeroconf, host, bound):
                ready(f"tcp://{host}:{bound}")
                await stopped.wait()
        finally:
            server.close()
            await self.connections.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: str) -> None:
        stream = f"wyoming-{os.getpid()}-{next(self._numbers)}"
        await WyomingConnection(self, reader, writer, origin, stream).run()


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
            if self._writer.transport.is_closing():  # asyncio's own error for that is an AttributeError
                raise ConnectionResetError("the client has gone")
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
            names = Detect.from_event(event).names
            if not isinstance(names or [], list) or not all(isinstance(name, str) for name in names or []):
                raise TypeError(f"names is {str(names)[:40]}, expected a list of texts")
            self._listen("wake", {"names": names})
        elif Transcribe.is_type(kind):
            asked = Transcribe.from_event(event)
            if asked.language is not None:
                text_in(event.data, "language")
            sensitivity = str(getattr(asked.vad_sensitivity, "value", asked.vad_sensitivity))
            self._listen("asr", {"language": asked.language, "pause_s": SILENCE_S.get(sensitivity)})
        elif AudioStart.is_type(kind):
            self._listen(self._mode if self._mode not in ("", "done") else self._usual(), self._asked)
        elif AudioStop.is_type(kind):
            await self._sound_ended()
        elif Recognize.is_type(kind) or Transcript.is_type(kind):
            await self._next(self._answer_text(text_in(event.data, "text"), Recognize.is_type(kind)))
        else:
            await self._take_text(event)

    async def _take_text(self, event: Event) -> None:
        """Text to be spoken: whole, or in pieces, after which the whole comes again for servers that know no pieces."""
        if SynthesizeStart.is_type(event.type):
            self._text = Sentences()
        elif SynthesizeChunk.is_type(event.type) and self._text is not None:
            for sentence in self._text.add(text_in(event.data, "text")):
                await self._next(self._speak(sentence))
        elif SynthesizeStop.is_type(event.type) and self._text is not None:
            rest, self._text = self._text.rest, None
            if rest.strip():
                await self._next(self._speak(rest))
            await self._next(self.send(SynthesizeStopped()))
        elif Synthesize.is_type(event.type) and self._text is None:
            await self._next(self._speak(text_in(event.data, "text")))

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
        self._converter = Converter(SOUND_S_MAX)  # the last sound may have ended with half a sample
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
                sent = ""
                async with stream:
                    async for piece in stream:
                        if words_of(piece, "text"):
                            sent += words_of(piece, "text")
                            await self.send(TranscriptChunk(words_of(piece, "text")))
                    answer = await stream.answer()
                text = text_of(answer)
                if answer.reason:
                    await self._cut("asr", answer)
                rest = rest_of(text, sent.lstrip())
                if rest:
                    await self.send(TranscriptChunk(rest))
            self._front.counts["transcripts"] += 1
            await self.send(Transcript(text, language=language))
            await self.send(TranscriptStop())
        except EdgeServeError as error:
            await self._no_transcript(error)

    async def _cut(self, role: str, answer: Answer) -> None:
        """Tell by an Error event that the text which follows ends early: no text's event has a place for it."""
        text = f"the {role} app's text ends early: {answer.reason}"
        self._front.troubles.tell(f"{role} cut", text)
        await self.send(Error(text, "partial"))

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
            sent = ""
            stream = self._client.stream(app.name, {app.input: text}, origin=self._origin, **self._options(app))
            async with stream:
                async for piece in stream:
                    if words_of(piece, "text") and not recognize:
                        if not sent:
                            await self.send(HandledStart())
                        sent += words_of(piece, "text")
                        await self.send(HandledChunk(words_of(piece, "text")))
                answer = await stream.answer()
            if answer.reason:
                await self._cut("intent", answer)
            self._front.counts["sentences"] += 1
            name = words_of(answer.outputs, "intent")
            said = words_of(answer.outputs, "text") if "intent" in answer.outputs else text_of(answer)
            if name:
                await self.send(Intent(name, entities_of(answer.outputs.get("entities")), said or None))
            elif recognize or "intent" in answer.outputs:
                await self.send(NotRecognized(said or None))
            else:
                rest = rest_of(said, sent.lstrip()) if sent else ""
                if rest:
                    await self.send(HandledChunk(rest))
                await self.send(Handled(said))
                if sent:
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
            rate = rate_of(answer, rate)
            sound = as_type(sound_of(answer), "int16", 1.0)
            self._front.counts["spoken"] += 1
        except EdgeServeError as error:
            await self._failed("tts", error)
            sound = np.zeros(0, np.int16)
        await self.send(AudioStart(rate, WIDTH, 1))
        for at in range(0, len(sound), SOUND_STEP):
            await self.send(AudioChunk(rate, WIDTH, 1, sound[at : at + SOUND_STEP].tobytes()))
        await self.send(AudioStop())
