"""The output of one replica as lines."""

import logging
import time
from collections.abc import Iterator
from datetime import datetime

import grpc

from muster.client import BlockingClient, failure, may_pass, retry_after, status_of
from muster.v1 import log_pb2

#: Seconds for which a daemon that has exited is looked for while its output is read.
PATIENCE_S = 60.0
#: A longer line comes in pieces, in bytes.
_MOST = 64 << 10

_log = logging.getLogger(__name__)


class LineSplitter:
    """Cuts bytes into lines, each with what ends it: a newline, or a carriage return, so that a progress bar is seen as
    it moves. Bytes that are no UTF-8 become U+FFFD."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are complete by now."""
        data = self._rest + data
        begin = 0
        while begin < len(data):
            end = _end(data, begin)
            if not end and len(data) - begin > _MOST:
                end = _whole(data, begin + _MOST)
            if not end:
                break
            yield data[begin:end].decode("utf-8", "replace")
            begin = end
        self._rest = data[begin:]

    def rest(self) -> Iterator[str]:
        """What has no end, once no more comes."""
        if self._rest:
            yield self._rest.decode("utf-8", "replace")
            self._rest = b""


def _end(data: bytes, begin: int) -> int:
    """Where the line that begins at `begin` ends; 0: it is not complete. A carriage return may be half of its end."""
    feed = data.find(b"\n", begin)
    back = data.find(b"\r", begin, feed if feed >= 0 else len(data))
    if back < 0 or back + 1 == feed:
        return feed + 1
    return back + 1 if back + 1 < len(data) else 0


def _whole(data: bytes, end: int) -> int:
    """`end`, or just before the character that it would cut in two."""
    begin = end
    while begin > end - 4 and data[begin] & 0xC0 == 0x80:
        begin -= 1
    return begin


def _never_reached(error: grpc.RpcError) -> bool:
    return failure(error).message.startswith("failed to connect")


def lines(
    client: BlockingClient, job_id: str, since: datetime | None, until: datetime | None, follow: bool
) -> Iterator[str]:
    """The output of a job from `since` to `until`, with `follow` until it has ended. Goes on over restarts of the
    daemon; raises grpc.RpcError if it does not answer for PATIENCE_S."""
    request = log_pb2.ReadLogsRequest(job_id=job_id, follow=follow)
    # A time without a zone is local time, as TorchX has them.
    if since is not None:
        request.since.FromNanoseconds(round(since.timestamp() * 1e9))
    if until is not None:
        request.until.FromNanoseconds(round(until.timestamp() * 1e9))
    splitters: dict[int, LineSplitter] = {}
    end = 0.0
    while True:
        began = time.monotonic()
        call = client.logs.ReadLogs(request)
        try:
            for message in call:
                if message.eof:
                    for lost in message.missing:
                        _log.warning("%s: %d bytes of output are missing: %s", job_id, lost.bytes, lost.reason)
                    for splitter in splitters.values():
                        yield from splitter.rest()
                    return
                request.offsets[message.rank] = message.offset + len(message.data)
                yield from splitters.setdefault(message.rank, LineSplitter()).feed(message.data)
        except grpc.RpcError as error:
            # The search begins when a stream breaks that was open: it may have been silent for hours.
            if not end or (time.monotonic() - began > 1.0 and not _never_reached(error)):
                end = time.monotonic() + PATIENCE_S
            known = failure(error)
            if not may_pass(status_of(error).name, known.reason, known.message) or time.monotonic() > end:
                raise
            _log.debug("%s: reading on: %s", job_id, known.message)
            time.sleep(retry_after(error) or 0.5)
        finally:
            call.cancel()
