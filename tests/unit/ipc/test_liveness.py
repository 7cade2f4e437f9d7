"""Silence and unread answers, by times and numbers alone."""

from __future__ import annotations

from typing import Any, List

import pytest

from edgeserve.ipc.liveness import Liveness
from edgeserve.ipc.peer import Peer

S = 10**9


def peers_of(count: int) -> List[Peer]:
    return [Peer(bytes([0, number]), None) for number in range(count)]


def watching(silence_ns: int = 8 * S, unread: int = 100, all_unread: int = 250) -> Liveness:
    return Liveness(0, silence_ns, unread, all_unread)


def test_silence_counts_with_requests_in_flight_and_without_a_req_socket() -> None:
    silent, idle, patient = peers_of(3)
    silent.open = patient.open = {1: object()}
    patient.patient = True
    liveness = watching()
    assert liveness.silent(8 * S, [silent, idle, patient]) == []
    assert liveness.silent(9 * S, [silent, idle, patient]) == [silent]
    silent.seen_ns = 9 * S
    assert liveness.silent(17 * S, [silent]) == []


def test_a_server_that_was_away_gives_each_client_its_full_time_again() -> None:
    (peer,) = peers_of(1)
    peer.open = {1: object()}
    liveness = watching()
    assert 2 * S <= liveness.away_ns < 18 * S
    liveness.was_away(20 * S)
    assert liveness.silent(28 * S, [peer]) == []
    assert liveness.silent(29 * S, [peer]) == [peer]


def test_a_look_is_due_after_a_while_or_when_something_happened() -> None:
    liveness = watching()
    assert S // 1000 < liveness.look_at_ns < S // 10
    assert not liveness.must_look(S // 10, True), "the wait would have heard of it"
    assert S // 10 < liveness.look_at_ns < S // 5
    assert liveness.must_look(S // 5, False)
    liveness.stir()
    assert liveness.stirred and liveness.must_look(S // 5, True)
    assert not liveness.stirred
    assert liveness.must_look(S, True), "a check is due"
    liveness.silent(S, [])
    assert liveness.check_at_ns == 2 * S and S < liveness.look_at_ns < 2 * S


class Tracker:
    """Stands in for libzmq's: ``done`` when it has let go of a frame."""

    done = False


def lent(peer: Peer, size: int) -> Any:
    peer.unread.fresh += size
    tracker = Tracker()
    peer.unread.mark(tracker)
    return tracker


def test_one_that_leaves_too_much_unread_is_ended() -> None:
    peer, other = peers_of(2)
    liveness = watching()
    first, _ = lent(peer, 60), lent(peer, 60)
    found = liveness.reader_to_end(peer, [peer, other])
    assert found is not None and found[0] is peer and "120B unread" in found[1]
    first.done = True
    assert liveness.reader_to_end(peer, [peer, other]) is None


def test_of_all_that_leave_too_much_the_greediest_is_ended() -> None:
    peers = peers_of(3)
    liveness = watching()
    trackers = [lent(peer, size) for peer, size in zip(peers, (80, 95, 90))]
    found = liveness.reader_to_end(peers[0], peers)
    assert found is not None and found[0] is peers[1] and "of all clients" in found[1]
    trackers[2].done = True
    assert liveness.reader_to_end(peers[0], peers) is None, "what was read meanwhile counts no more"


@pytest.mark.parametrize("later", [False, True])
def test_marks_are_given_back_in_order(later: bool) -> None:
    (peer,) = peers_of(1)
    trackers = [lent(peer, 10), lent(peer, 20)]
    trackers[later].done = True
    assert peer.unread.look() == (30 if later else 20)
