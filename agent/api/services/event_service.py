"""EventService: what happened, from a cursor on."""

from typing import TYPE_CHECKING

import anyio

from muster.agent.api import access
from muster.agent.api.services import ServerContext
from muster.agent.host import turns
from muster.agent.messages import convert
from muster.v1 import event_pb2, event_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    _Context = aio.ServicerContext[event_pb2.WatchRequest, event_pb2.WatchResponse]

#: Seconds without an event after which a watcher gets a bookmark.
BOOKMARK_S = 15.0
_PAGE = 256


class EventService(event_pb2_grpc.EventServiceServicer):
    """Every watcher reads the store at its own pace; nothing is queued for a watcher that does not read."""

    def __init__(self, context: ServerContext, bookmark_s: float = BOOKMARK_S) -> None:
        """`bookmark_s`: seconds of silence after which a bookmark is sent."""
        self._server = context
        self._events = context.events
        self._bookmark_s = bookmark_s

    async def Watch(  # type: ignore[override]  # the generated base wants an iterator: those are finalised by grpc in another task
        self, request: event_pb2.WatchRequest, context: "_Context"
    ) -> None:
        """See event.proto. Raises CursorTooOld, InvalidRequest."""
        if not access.reach().is_everything:
            await self._server.registry.ended.indexed.wait()  # from here on it is known whose each job is
        cursor: str | None = request.cursor or None
        if cursor is None and not request.from_oldest:
            cursor = self._events.newest_cursor()
            if not request.no_follow:
                # At once: from here on nothing is missed, and the watcher can resume even if no event ever comes.
                await context.write(event_pb2.WatchResponse(cursor=cursor))
        quiet_since = anyio.current_time()
        while True:
            async with turns.sending():
                batch = await self._events.read(cursor, _PAGE)
                for event, cursor in batch:
                    asked = not request.job_id or event.job_id == request.job_id
                    if asked and self._server.may_see(event):
                        await context.write(event_pb2.WatchResponse(event=convert.event_to(event), cursor=cursor))
                        quiet_since = anyio.current_time()
            if batch:
                continue
            if cursor is None:
                cursor = self._events.newest_cursor()
            if request.no_follow:
                await context.write(event_pb2.WatchResponse(cursor=cursor))
                return
            with anyio.CancelScope(deadline=quiet_since + self._bookmark_s) as scope:
                await self._events.wait_beyond(cursor)
            if scope.cancelled_caught:
                await context.write(event_pb2.WatchResponse(cursor=cursor))
                quiet_since = anyio.current_time()
