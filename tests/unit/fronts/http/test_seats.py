"""Places of viewers and satellites."""

from __future__ import annotations

import asyncio

import pytest

from edgeserve.front import Seats, seated


def test_a_newcomer_takes_the_place_of_its_origins_oldest():
    seats, ended = Seats(10, 2), []
    for number in range(4):
        seats.take("a", lambda number=number: ended.append(number))
    assert (ended, seats.count) == ([0, 1], 2)
    seats.take("b", lambda: ended.append("b"))
    assert (ended, seats.count) == ([0, 1], 3)


def test_without_room_the_origin_with_the_most_gives_one():
    seats, ended = Seats(4, 3), []
    for origin in ("a", "b", "b", "b"):
        seats.take(origin, lambda origin=origin: ended.append(origin))
    seat = seats.take("c", lambda: ended.append("c"))
    assert (ended, seats.count) == (["b"], 4)
    seats.leave("c", seat)
    seats.leave("c", seat)
    assert seats.count == 3


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_block_without_its_place_ends_early(is_cancelled):
    async def run():
        seats, ends = Seats(1, 1), []

        async def sit(name):
            async with seated(seats, name):
                await asyncio.Event().wait()
            ends.append(name)

        first = asyncio.ensure_future(sit("a"))
        await asyncio.sleep(0)
        if is_cancelled:
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        else:
            second = asyncio.ensure_future(sit("b"))
            await first
            assert seats.count == 1
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        assert (ends, seats.count) == ([] if is_cancelled else ["a"], 0)

    asyncio.run(asyncio.wait_for(run(), 10))
