"""Which replica gets a call, and what happens when that replica refuses it or dies. Knows handles, but not Ray.

A call goes to the replica that would end it first, by what each replica expects of the app and what this dispatcher has
given it already. A replica that refuses costs a question to the others: the one that says it could still make the
deadline gets the call, once. A replica that died gets no call until it answers again; the calls that it had are tried
once elsewhere. So a call ends once for its asker, but may have run twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import (
    Any,
    AsyncGenerator,
    Awaitable,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Set,
    Tuple,
    Type,
    TypeVar,
)

from edgeserve.errors import BadInput, Dropped, Rejected, RequestError, ServerGone, with_nearest
from edgeserve.fronts.ray.calls import Outlook, Outlooks, RayCall, RayReply, Told
from edgeserve.waits import await_within

log = logging.getLogger("edgeserve")

T = TypeVar("T")

STREAMS_MAX = 65536
"""Streams whose replica is remembered; the longest unused is forgotten, and begins anew where it then goes."""

ASK_S_MAX = 1.0
"""The time that a replica may take to say what it expects; one that takes longer is not asked for this call."""

OUTLOOK_S = 0.5
"""The period at which the replicas are asked what they expect, for the choice among them."""

SILENT_S_MAX = 1.0
"""A replica that does not answer that question for so long counts as lost: Ray holds back what is sent to a process
that has ended, until another has started."""

AGAIN_S = 0.2
"""The time for which a replica that did not answer is left alone before it is asked again."""

NOWHERE_ELSE = ("superseded", "quality_too_low", "expired")
"""Reasons of a refusal that another replica would give as well."""


class Handle(Protocol):
    """One replica, from afar. Each call may raise one of the dispatcher's ``lost`` errors."""

    def infer(self, call: RayCall) -> Awaitable[RayReply]:
        """See :meth:`Replica.infer`."""

    def stream(self, call: RayCall) -> AsyncGenerator[Any, None]:
        """See :meth:`Replica.stream`."""

    def outlook(self) -> Awaitable[Outlooks]:
        """See :meth:`Replica.outlook`. While the replica starts, this may wait for it."""

    def stats(self) -> Awaitable[Dict[str, Any]]:
        """See :meth:`Replica.stats`."""

    def story(self, request_id: int) -> Awaitable[List[str]]:
        """See :meth:`Replica.story`."""


class ReplicaState:
    """One replica as the dispatcher knows it. ``backlog_ms``: the expected time of the calls that it has."""

    __slots__ = ("name", "handle", "outlooks", "backlog_ms", "in_flight", "gone", "returns", "failed")

    def __init__(self, name: str, handle: Handle) -> None:
        self.name = name
        self.handle = handle
        self.outlooks: Outlooks = {}
        self.backlog_ms = 0.0
        self.in_flight = 0
        self.gone: Optional[asyncio.Event] = None  # set when it is lost; None until it has answered
        self.returns = 0
        self.failed = False  # the last question to it ended by a fault

    @property
    def is_up(self) -> bool:
        """True if it has answered, and was not lost since."""
        return self.gone is not None and not self.gone.is_set()

    def expected_ms(self, app: str) -> float:
        """The expected time of a call to ``app`` there; 1 ms where nothing is known."""
        outlook = self.outlooks.get(app)
        return outlook.expected_ms or 1.0 if outlook is not None else 1.0


class Lost(Exception):
    """The replica ended, or cannot be reached, before it replied."""


class Dispatcher:
    """Chooses replicas and carries calls to them. Lives on one event loop. ``lost``: what a handle raises when its
    replica is gone; anything else is a fault and goes to the asker. ``retried`` hears (from, to, why) of every second
    try."""

    def __init__(
        self,
        handles: Mapping[str, Handle],
        lost: Tuple[Type[BaseException], ...],
        retried: Callable[[str, str, str], None] = lambda first, second, why: None,
    ) -> None:
        self._members = {name: ReplicaState(name, handles[name]) for name in sorted(handles)}
        self._lost = lost
        self._silent_or_lost: Tuple[Type[BaseException], ...] = (asyncio.TimeoutError, *lost)
        self._retried = retried
        self._streams: OrderedDict[Tuple[str, str], str] = OrderedDict()
        self._watchers: Set[asyncio.Task[None]] = set()
        self._answered: Optional[asyncio.Event] = None

    async def start(self) -> None:
        """Begin to watch the replicas, unless that was done. Returns when one of them has answered."""
        if self._answered is None:
            self._answered = asyncio.Event()
            for member in self._members.values():
                watcher = asyncio.ensure_future(self._watch(member))
                self._watchers.add(watcher)
                watcher.add_done_callback(self._watchers.discard)
        await self._answered.wait()

    def close(self) -> None:
        """Watch no more."""
        for watcher in list(self._watchers):
            watcher.cancel()

    def table(self) -> Dict[str, Dict[str, Any]]:
        """Per replica: whether it answers, the calls that it has, how often it came back, which apps it serves."""
        return {
            member.name: {
                "up": member.is_up,
                "in_flight": member.in_flight,
                "returns": member.returns,
                "apps": sorted(member.outlooks),
            }
            for member in self._members.values()
        }

    async def stats(self) -> Dict[str, Any]:
        """``dispatcher``: the table. ``replicas``: the statistics of each replica that answers."""
        up = [member for member in self._members.values() if member.is_up]
        found = await asyncio.gather(*(self._stats(member) for member in up))
        replicas = {member.name: stats for member, stats in zip(up, found) if stats is not None}
        return {"dispatcher": self.table(), "replicas": replicas}

    async def _stats(self, member: ReplicaState) -> Optional[Dict[str, Any]]:
        try:
            return await self._unless_lost(member, member.handle.stats())
        except Lost:
            return None

    async def story(self, replica: str, request_id: int) -> Told:
        """A request's story at a replica, or the error of a replica that is not known or does not answer."""
        member = self._members.get(replica)
        if member is None:
            return with_nearest(BadInput(f"story: there is no replica {replica!r}"), str(replica), self._members)
        if not member.is_up:
            return ServerGone(f"story: replica {replica!r} does not answer now")
        try:
            return await self._unless_lost(member, member.handle.story(request_id))
        except Lost as error:
            return ServerGone(f"story: {error}")

    # --- one call -----------------------------------------------------------------------------------------------------

    async def infer(self, call: RayCall) -> RayReply:
        """Carry a call to its end. Every end is a reply; only faults raise."""
        first = self._choose(call)
        if first is None:
            return self._no_replica(call)
        try:
            reply = await self._ask(first, call)
            why = refused_here(reply)
        except Lost as error:
            reply = RayReply(error=ServerGone(f"app {call.app!r}: {error}"), tried=(first.name,))
            why = "lost"
        second = await self._other(first, call, why) if why else None
        if second is None:
            return reply
        self._retried(first.name, second.name, why)
        try:
            again = await self._ask(second, call)
        except Lost as error:
            again = RayReply(
                error=ServerGone(
                    f"app {call.app!r}: {error}, after replica {first.name!r} "
                    f"{'was lost' if why == 'lost' else 'had refused it'}"
                )
            )
        again.tried = (first.name, second.name)
        if again.answer is not None:
            self._remember(call, second)
        return again

    async def stream(self, call: RayCall) -> AsyncGenerator[Any, None]:
        """Carry a call whose answer comes in pieces: yields each piece as a table of values, and last the reply. It is
        tried a second time only while no piece has come."""
        member = self._choose(call)
        if member is None:
            yield self._no_replica(call)
            return
        tried: Tuple[str, ...] = (member.name,)
        begun = False
        while True:
            reply, why = RayReply(), ""
            items = self._follow(member, call)
            try:
                async for item in items:
                    if isinstance(item, RayReply):
                        reply, why = item, refused_here(item)
                    else:
                        begun = True
                        yield item
            except Lost as error:
                reply, why = RayReply(error=ServerGone(f"app {call.app!r}: {error}")), "lost"
            finally:
                await items.aclose()
            second = await self._other(member, call, why) if why and not begun and len(tried) == 1 else None
            if second is None:
                break
            self._retried(member.name, second.name, why)
            member, tried = second, (*tried, second.name)
        reply.tried = tried
        if reply.answer is not None:
            self._remember(call, member)
        yield reply

    def _no_replica(self, call: RayCall) -> RayReply:
        return RayReply(
            error=ServerGone(f"no replica of app {call.app!r} answers now (replicas: {', '.join(self._members)})")
        )

    async def _follow(self, member: ReplicaState, call: RayCall) -> AsyncGenerator[Any, None]:
        """The pieces of a call's answer that a replica sends. Raises :class:`Lost`."""
        gone, expected_ms = self._given(member, call)
        items = member.handle.stream(call)
        lost = asyncio.ensure_future(gone.wait())
        coming: Optional[asyncio.Future[Any]] = None
        try:
            while True:
                coming = asyncio.ensure_future(self._guarded(member, gone, _next(items)))
                await asyncio.wait({coming, lost}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise Lost(f"replica {member.name!r} was lost while it had the request")
                item = coming.result()
                if item is None:
                    raise Lost(f"replica {member.name!r} ended its pieces without a reply")
                yield item
                if isinstance(item, RayReply):
                    return
        finally:
            lost.cancel()
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.wait({coming})
            self._returned(member, expected_ms)
            await items.aclose()

    async def _ask(self, member: ReplicaState, call: RayCall) -> RayReply:
        """Give a call to a replica and wait for its reply. Raises :class:`Lost`."""
        _, expected_ms = self._given(member, call)
        try:
            reply: RayReply = await self._unless_lost(member, member.handle.infer(call))
            reply.tried = (member.name,)
            return reply
        finally:
            self._returned(member, expected_ms)

    async def _unless_lost(self, member: ReplicaState, reply: Awaitable[T]) -> T:
        """What a replica that is up replies. Raises :class:`Lost`, also while it waits at one that is gone."""
        gone = member.gone
        assert gone is not None, "a replica that has not answered yet is not asked"
        asked = asyncio.ensure_future(self._guarded(member, gone, reply))
        lost = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({asked, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise Lost(f"replica {member.name!r} was lost while it had the request")
            return asked.result()
        finally:
            asked.cancel()
            lost.cancel()

    @staticmethod
    def _given(member: ReplicaState, call: RayCall) -> Tuple[asyncio.Event, float]:
        """A replica gets a call. Its event that is set when it is lost, and how long the call is expected to take."""
        assert member.gone is not None, "a replica that has not answered yet is not chosen"
        expected_ms = member.expected_ms(call.app)
        member.in_flight += 1
        member.backlog_ms += expected_ms
        return member.gone, expected_ms

    @staticmethod
    def _returned(member: ReplicaState, expected_ms: float) -> None:
        member.in_flight -= 1
        member.backlog_ms = member.backlog_ms - expected_ms if member.in_flight else 0.0

    async def _guarded(self, member: ReplicaState, gone: asyncio.Event, reply: Awaitable[T]) -> T:
        try:
            return await reply
        except self._lost as error:
            self._lose(member, gone, error)
            raise Lost(f"replica {member.name!r} was lost while it had the request") from None

    # --- the choice ---------------------------------------------------------------------------------------------------

    def _choose(self, call: RayCall) -> ReplicaState | None:
        """The replica that would end a call first; the one that has the call's stream, while it lives. An app that no
        replica knows goes to any: its runtime says what is wrong."""
        up = [member for member in self._members.values() if member.is_up]
        able = [member for member in up if call.app in member.outlooks] or up
        if not able:
            return None
        key = stream_of(call)
        kept = self._streams.get(key) if key is not None else None
        chosen = next((member for member in able if member.name == kept), None)
        if chosen is None:
            chosen = min(able, key=lambda member: (member.backlog_ms + member.expected_ms(call.app), member.name))
        self._remember(call, chosen)
        return chosen

    def _remember(self, call: RayCall, member: ReplicaState) -> None:
        key = stream_of(call)
        if key is not None:
            self._streams[key] = member.name
            self._streams.move_to_end(key)
            if len(self._streams) > STREAMS_MAX:
                self._streams.popitem(last=False)

    async def _other(self, first: ReplicaState, call: RayCall, why: str) -> ReplicaState | None:
        """The replica for a call's second try: the one with the most time to spare among the ones that say that they
        could make its deadline. A stream that still has its state stays where that is."""
        if stream_of(call) is not None and first.is_up:
            return None
        others = [
            member
            for member in self._members.values()
            if member is not first and member.is_up and call.app in member.outlooks
        ]
        found = await asyncio.gather(*(self._fresh(member) for member in others))
        able: List[Tuple[float, str, ReplicaState]] = []
        for member, outlooks in zip(others, found):
            spare_ms = spare(outlooks.get(call.app), call) if outlooks is not None else None
            if spare_ms is not None and spare_ms >= 0 and member.is_up:
                able.append((member.backlog_ms - spare_ms, member.name, member))
        return min(able)[2] if able else None

    async def _fresh(self, member: ReplicaState) -> Outlooks | None:
        """The times that a replica expects at this moment; None when it does not say."""
        gone = member.gone
        try:
            member.outlooks = await await_within(self._outlook(member), ASK_S_MAX)
            return member.outlooks
        except asyncio.TimeoutError:
            return None
        except self._lost as error:
            self._lose(member, gone, error)
            return None
        except Exception as error:  # noqa: BLE001 a fault of that replica is no reason to end this call
            self._fail(member, gone, error)
            return None

    @staticmethod
    async def _outlook(member: ReplicaState) -> Outlooks:
        return dict(await member.handle.outlook())

    # --- who is there -------------------------------------------------------------------------------------------------

    def _lose(self, member: ReplicaState, gone: asyncio.Event | None, error: BaseException) -> None:
        """A call failed that was given while ``gone`` was the replica's event."""
        if gone is not None and not gone.is_set():
            log.warning("replica %s is lost (%s); its calls are tried elsewhere", member.name, type(error).__name__)
            gone.set()

    def _fail(self, member: ReplicaState, gone: asyncio.Event | None, error: BaseException) -> None:
        """The question what a replica expects failed, and no request was lost: a fault, logged once in a row."""
        if not member.failed:
            log.error(
                "asking replica %s what it expects failed; it gets no call until it answers",
                member.name,
                exc_info=error,
            )
        member.failed = True
        self._lose(member, gone, error)

    async def _watch(self, member: ReplicaState) -> None:
        """Keep what is known of a replica fresh, and notice when it comes back. Ends by cancellation alone."""
        while True:
            gone = member.gone
            try:
                outlooks = await await_within(self._outlook(member), SILENT_S_MAX)
            except self._silent_or_lost as error:
                self._lose(member, gone, error)
                await asyncio.sleep(AGAIN_S)
                continue
            except Exception as error:  # noqa: BLE001 a watcher that ended would never see the replica again
                self._fail(member, gone, error)
                await asyncio.sleep(AGAIN_S)
                continue
            member.outlooks, member.failed = outlooks, False
            if not member.is_up:
                member.returns += member.gone is not None
                member.gone = asyncio.Event()
                assert self._answered is not None, "start() was called"
                self._answered.set()
                log.info("replica %s answers: apps %s", member.name, ", ".join(sorted(outlooks)))
            assert member.gone is not None, "set above"
            lost = asyncio.ensure_future(member.gone.wait())
            await asyncio.wait({lost}, timeout=OUTLOOK_S)
            lost.cancel()


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    """The next item; None when there is none."""
    async for item in items:
        return item
    return None


def refused_here(reply: RayReply) -> str:
    """The reason why another replica may do what this one did not; empty where it would not."""
    error: Optional[RequestError] = reply.error
    if isinstance(error, (Rejected, Dropped)) and error.reason not in NOWHERE_ELSE:
        return error.reason or error.code
    return ""


def spare(outlook: Outlook | None, call: RayCall) -> float | None:
    """Milliseconds between what is left of a call's deadline and what a replica needs; None where it cannot run it."""
    if outlook is None or outlook.slo_ms_min is None:
        return None
    if call.options.get("on_late") == "answer":
        return 0.0  # a late answer is welcome
    slo_ms = outlook.slo_ms if call.slo_ms is None else call.slo_ms
    return slo_ms - call.sent.age_ms() - outlook.slo_ms_min


def stream_of(call: RayCall) -> Tuple[str, str] | None:
    """The stream that a call continues, which has its state at one replica."""
    stream = call.options.get("stream")
    return (call.app, stream) if isinstance(stream, str) and stream else None
