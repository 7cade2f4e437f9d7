"""OpenAI's ``/v1/audio/transcriptions`` over HTTP: a WAV file to an app's ``audio``, its text whole or in pieces.

An app that can transcribe takes ``audio`` (float32 or int16, ``[samples]``, one channel at 16 kHz) and optionally
``language`` (a text), and answers ``text``, and optionally ``language``, ``duration`` and ``segments`` (JSON text of a
list of objects with ``start``, ``end`` and ``text``).
"""

from __future__ import annotations

import asyncio
from typing import Any, AsyncGenerator, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np
from numpy.typing import NDArray
from starlette.routing import Route

from edgeserve.answers import Answer
from edgeserve.errors import BadInput, Failed, UnknownApp, nearest
from edgeserve.front import one_line, rest_of
from edgeserve.front.sound import FLOATS, RATE_HZ, BadSound, Wav, count_at_16_khz, one_channel, resampled, wav_of
from edgeserve.fronts.http.asgi import Call, Site, to_json
from edgeserve.fronts.http.asking import kept, send_stream
from edgeserve.fronts.http.chat import BadField
from edgeserve.fronts.http.chat_routes import EVENT_STREAM
from edgeserve.fronts.http.completion import about_answers, error_body, objects_of, text_of
from edgeserve.fronts.http.forms import form_fields

FORMATS = ("json", "text", "verbose_json", "srt", "vtt")

REASON = b"edgeserve-reason"
"""The header that says why an answer is not whole."""

SAMPLE_BYTES = 32
"""The most bytes that a sample of a file takes while it is read, and again each sample at 16 kHz that it becomes:
floats of 8 bytes, as they are, scaled, and as frequencies before and after."""

READ = ("file", "model", "language", "response_format", "stream", "slo_ms", "deadline_ms")
NEUTRAL: Dict[str, Tuple[str, ...]] = {
    "temperature": ("0", "0.0", "0.00", ""),
    "prompt": ("",),
    "timestamp_granularities": ("segment",),
    "timestamp_granularities[]": ("segment",),
    "chunking_strategy": ("auto",),
}
"""Fields that would change the answer -> values with which they change nothing. The others are refused."""


class Transcription(NamedTuple):
    """A request, ready to be asked."""

    model: str
    inputs: Dict[str, Any]
    options: Dict[str, Any]
    form: str
    stream: bool


def can_transcribe(app: Mapping[str, Any]) -> bool:
    """True if an app, as the server describes it, takes one channel of sound."""
    audio = app["inputs"].get("audio")
    return audio is not None and audio["dtype"] in ("float32", "int16", "any") and len(audio["shape"] or (-1,)) == 1


class AudioRoutes:
    """The route."""

    def __init__(self, site: Site) -> None:
        self._site = site._replace(body=error_body)
        self._backend = site.backend

    def routes(self) -> List[Route]:
        """All of them."""
        return [self._site.route("/v1/audio/transcriptions", self.transcribe, "POST")]

    async def transcribe(self, call: Call) -> None:
        """Answer with the text spoken in a file."""
        fields = await form_fields(call, await call.body())
        apps = {name: app for name, app in (await self._backend.apps()).items() if can_transcribe(app)}
        name = fields.get("model", "")
        if not isinstance(name, str) or name not in apps:
            raise UnknownApp(
                f"no app {str(name)[:128]!r} that takes audio is served here{nearest(str(name)[:128], apps)}"
            )
        data = fields.get("file")
        call.hold(bytes_to_read(data) if isinstance(data, bytes) else 0)
        loop = asyncio.get_running_loop()
        asked = await loop.run_in_executor(None, read_fields, name, fields, apps[name]["inputs"])
        if asked.stream:
            await send_stream(
                call, EVENT_STREAM, self._events(asked, call.origin), lambda error: _event(error_body(error))
            )
            return
        answer = await self._backend.infer(name, asked.inputs, asked.options, call.gone, call.origin)
        body, content = answer_body(answer, asked.form)
        headers = [(b"content-type", content)]
        if answer.reason:  # text and subtitles have no field for that
            headers.append((REASON, one_line(answer.reason).encode("ascii", "backslashreplace")))
        await call.answer(body, 200, headers)

    async def _events(self, asked: Transcription, origin: str) -> AsyncGenerator[bytes, None]:
        pieces = kept(self._backend.stream(asked.model, asked.inputs, asked.options, origin))
        sent = ""
        try:
            async for piece in pieces:
                is_last = isinstance(piece, Answer)
                text = text_of(piece.outputs if is_last else piece)
                delta = rest_of(text, sent) if is_last else text
                if delta:
                    yield _event({"type": "transcript.text.delta", "delta": delta})
                sent += delta
                if is_last:
                    yield _event({"type": "transcript.text.done", "text": text, **_about(piece)})
        finally:
            await pieces.aclose()


def _about(answer: Answer) -> Dict[str, Any]:
    """Whether an answer is late, or is not whole and why, where it is either."""
    return {"edgeserve": about_answers([answer])} if answer.late or answer.reason else {}


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"


def read_fields(name: str, fields: Mapping[str, Any], inputs: Mapping[str, Any]) -> Transcription:
    """A form's fields as a request of an app with these ``inputs``. An unserved field is refused by its name."""
    for field, value in fields.items():
        if field not in READ and value not in NEUTRAL.get(field, ()):
            served = NEUTRAL.get(field)
            raise BadField(
                field, f" = {str(value)[:80]!r} is not served{f'; leave it at {served[0]!r}' if served else ''}"
            )
    data = fields.get("file")
    if not isinstance(data, bytes):
        raise BadField("file", ": expected a WAV file")
    form = fields.get("response_format", "json")
    if form not in FORMATS:
        raise BadField("response_format", f" = {str(form)[:80]!r}{nearest(str(form)[:80], FORMATS)}")
    asked: Dict[str, Any] = {"audio": _as_declared(sound_of(data), inputs["audio"]["dtype"])}
    if fields.get("language"):
        if "language" not in inputs:
            raise BadField("language", f": app {name!r} declares no input 'language'")
        asked["language"] = fields["language"]
    options: Dict[str, Any] = {}
    if "deadline_ms" in fields and "slo_ms" in fields:
        raise BadField("deadline_ms", " says again what slo_ms says; send one of them")
    for field in ("deadline_ms", "slo_ms"):
        if field in fields:
            try:
                options["slo_ms"] = float(fields[field])
            except (TypeError, ValueError):
                raise BadField(field, f" = {str(fields[field])[:80]!r}: expected a number") from None
    stream = str(fields.get("stream", "false")).lower()
    if stream not in ("true", "false"):
        raise BadField("stream", f" = {stream[:80]!r}: expected true or false")
    return Transcription(name, asked, options, str(form), stream == "true")


def bytes_to_read(data: bytes) -> int:
    """The bytes that reading a WAV file will take. Raises :class:`BadField`."""
    wav = _opened(data)
    count = len(wav.data) // wav.frame_bytes
    grows = wav.coding == FLOATS or wav.width == 3  # before its channels are mixed
    read = count * wav.channels if grows else count
    return SAMPLE_BYTES * (read + count_at_16_khz(count, wav.rate))


def sound_of(data: bytes) -> NDArray[Any]:
    """float32 from -1 to 1, one channel at 16 kHz, of a WAV file. Raises :class:`BadField`."""
    wav = _opened(data)
    sound = one_channel(wav.data, wav.width, wav.channels, wav.coding)
    if not len(sound):
        raise BadField("file", ": it has no samples")
    return np.asarray(sound if wav.rate == RATE_HZ else resampled(sound, wav.rate), np.float32)


def _opened(data: bytes) -> Wav:
    try:
        return wav_of(data)
    except BadSound as error:
        raise BadField("file", f": expected a WAV file; it has {error}") from None


def _as_declared(sound: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype != "int16":
        return sound
    whole: NDArray[Any] = np.clip(np.round(sound * 32768), -32768, 32767).astype(np.int16)
    return whole


def answer_body(answer: Answer, form: str) -> Tuple[Any, bytes]:
    """An answer in the form that was asked for, and its content type."""
    outputs = answer.outputs
    text = text_of(outputs)
    if form == "text":
        return (text + "\n").encode(), b"text/plain; charset=utf-8"
    if form == "json":
        return to_json({"text": text, **_about(answer)}), b"application/json"
    if "segments" not in outputs:
        raise BadInput(f"response_format = {form!r}: the app answers no segments")
    try:
        return _with_times(answer, form)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise Failed(f"the app's segments, or its duration, are no times and texts: {error}") from None


def _with_times(answer: Answer, form: str) -> Tuple[Any, bytes]:
    outputs = answer.outputs
    segments = objects_of(outputs, "segments", "start", "end", "text")
    if form == "verbose_json":
        whole = {
            "task": "transcribe",
            "language": str(outputs.get("language", "")),
            "duration": float(outputs.get("duration", segments[-1]["end"] if segments else 0.0)),
            "text": text_of(outputs),
            "segments": [{"id": place, **segment} for place, segment in enumerate(segments)],
            **_about(answer),
        }
        return to_json(whole), b"application/json"
    return subtitles(segments, form).encode(), b"text/plain; charset=utf-8"


def subtitles(segments: List[Dict[str, Any]], form: str) -> str:
    """Segments as SubRip's (``srt``) or WebVTT's text."""
    mark = "," if form == "srt" else "."
    lines = [] if form == "srt" else ["WEBVTT", ""]
    for place, segment in enumerate(segments):
        times = [_clock(segment[key], mark) for key in ("start", "end")]
        text = "\n".join([line for line in segment["text"].splitlines() if line.strip()])  # an empty one ends a segment
        lines += [*([str(place + 1)] if form == "srt" else []), " --> ".join(times), text.replace("-->", "->"), ""]
    return "\n".join(lines) + "\n"


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(seconds * 1000)
    if milliseconds < 0:
        raise ValueError(f"{seconds} s")
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
