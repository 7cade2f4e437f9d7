"""Detectors on one connection's sound: an answer on an earlier sound says nothing of the next one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from edgeserve.answers import Answer
from edgeserve.front import ServedApp
from edgeserve.fronts.listening import VoiceActivity, WakeWords

APP = ServedApp("app", "x", {"x": {"dtype": "float32", "shape": [512]}}, False)
SOUND = np.ones(512, np.int16)


class Sink:
    """A connection whose app answers when it is told to."""

    def __init__(self):
        self.heard, self.asked = [], []

    async def ask(self, role, values):
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    def begin(self, work):
        return asyncio.ensure_future(work)

    async def word_heard(self, name, now_ms):
        self.heard.append(("word", now_ms))

    async def voice_began(self, now_ms):
        self.heard.append(("voice", now_ms))

    async def voice_ended(self, now_ms):
        self.heard.append(("silence", now_ms))


async def wake(sink):
    words = WakeWords(sink, APP, (), 1.0, True)
    return lambda now_ms: words.hear(SOUND, now_ms, True), lambda: words.begin(["app"])


async def voice(sink):
    voices = VoiceActivity(sink, APP)

    def hear(now_ms):
        asyncio.ensure_future(voices.hear(SOUND, now_ms))

    return hear, lambda: voices.begin(None)


@pytest.mark.parametrize("word", [np.int64(0), np.float32("nan"), np.zeros(0), np.array(["app"], object), False, ""])
def test_a_word_that_is_no_text_was_not_heard(word):
    async def run():
        sink = Sink()
        hear, _ = await wake(sink)
        hear(32)
        while not sink.asked:
            await asyncio.sleep(0)
        sink.asked[0].set_result(Answer({"word": word}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not sink.heard

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.parametrize("made", [wake, voice])
@pytest.mark.parametrize("begins_anew", [False, True])
def test_an_answer_on_an_earlier_sound_is_passed_over(made, begins_anew):
    async def run():
        sink = Sink()
        hear, begin = await made(sink)
        hear(32)
        while not sink.asked:
            await asyncio.sleep(0)
        if begins_anew:
            begin()
        sink.asked[0].set_result(Answer({"word": "app", "score": np.float32(1)}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert bool(sink.heard) != begins_anew
        hear(64)
        while len(sink.asked) < 2:
            await asyncio.sleep(0)
        sink.asked[1].set_result(Answer({"word": "app", "score": np.float32(1)}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sink.heard and sink.heard[-1][1] == (32 if made is voice and not begins_anew else 64)

    asyncio.run(asyncio.wait_for(run(), 20))
