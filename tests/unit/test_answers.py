"""A client that waits no longer for an answer gets the part that is written, whole or in pieces, on threads and in
asyncio."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from edgeserve import answers
from edgeserve.answer_streams import AnswerStream, AsyncAnswerStream
from edgeserve.answers import Answer, PendingAnswer, answer_awaited, answer_within
from edgeserve.errors import Cancelled, Failed, TimedOut

WRITTEN = Answer({"text": "word word "}, late=True)


class Asked(PendingAnswer):
    """A request that ends only when it is cancelled. ``end``: what comes then, None for nothing."""

    id = 7

    def __init__(self, end=None):
        super().__init__()
        self.end = end
        self.asked = 0

    def end_early(self):
        self.asked += 1
        if isinstance(self.end, Answer):
            if self.stream is not None:
                self.stream.put({"text": "word "})
            self.set_result(self.end)
        elif self.end is not None:
            self.set_exception(self.end)


def within(pending):
    return answer_within(pending, np.float32(0.0), "app 'chat'")  # numpy's numbers are numbers


def awaited(pending):
    return asyncio.run(answer_awaited(pending, 0.0, "app 'chat'"))


def in_pieces(pending):
    stream = pending.stream = AnswerStream(0.0).follow(pending)
    stream.put({"text": "word "})
    assert "".join([piece["text"] for piece in stream]) == WRITTEN["text"]
    return stream.answer()


def in_awaited_pieces(pending):
    async def read():
        stream = pending.stream = AsyncAnswerStream(0.0).follow(pending)
        stream.put({"text": "word "})
        await asyncio.sleep(0)
        assert "".join([piece["text"] async for piece in stream]) == WRITTEN["text"]
        return await stream.answer()

    return asyncio.run(read())


WAYS = pytest.mark.parametrize("wait", [within, awaited, in_pieces, in_awaited_pieces], ids=lambda wait: wait.__name__)


@WAYS
def test_what_is_written_is_the_answer(wait):
    pending = Asked(WRITTEN)
    assert wait(pending) is WRITTEN and pending.asked == 1 and not pending.cancelled()


@WAYS
@pytest.mark.parametrize("end", [None, Cancelled("it is cancelled")], ids=["silence", "cancelled"])
def test_a_request_of_which_nothing_is_written_has_timed_out(wait, end, monkeypatch):
    monkeypatch.setattr(answers, "LAST_S", 0.0)
    pending = Asked(end)
    with pytest.raises(TimedOut, match="no answer within 0 ms") as caught:
        wait(pending)
    assert pending.asked == 1 and pending.cancelled() is (end is None)
    assert caught.value.id == 7


@WAYS
def test_an_error_of_its_own_is_told(wait):
    with pytest.raises(Failed, match="it broke"):
        wait(Asked(Failed("it broke")))
