"""A server that speaks the protocol of NCCL's RAS, or fails to; and answers as NCCL writes them."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"

Answer = Callable[[anyio.abc.SocketStream], Awaitable[None]]


def rank(number: int, pid: int, counts: Mapping[str, int] | int = 0, *, host: str = HERE, dev: int = 0, **status):
    """`counts` as a number: of AllReduce."""
    counts = {"AllReduce": counts} if isinstance(counts, int) else counts
    well = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": number,
        "host": host,
        "pid": pid,
        "cuda_dev": dev,
        "nvml_dev": dev,
        "status": well | status,
        "collective_counts": dict.fromkeys(KINDS, 0) | dict(counts),
    }


def missing(number: int, pid: int, *, host: str = HERE):
    status = {"unresponsive": True, "considered_dead": False}
    return {"rank": number, "host": host, "pid": pid, "cuda_dev": 0, "nvml_dev": 0, "status": status}


def communicator(ranks: Sequence[object], lost: Sequence[object] = (), name: str = "0x7cbcd4b24fb45306"):
    return {
        "hash": name,
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(lost),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(lost),
        "ranks": list(ranks),
        **({"missing_ranks": list(lost)} if lost else {}),
    }


def report(*communicators: object) -> bytes:
    top = {
        "nccl_version": "2.29.2",
        "cuda_runtime_version": 12090,
        "timestamp": "2026-06-19 06:56:24",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    return json.dumps(top, indent=2).encode() + b"\n"


def without_comma(data: bytes) -> bytes:
    """As 2.28.7 and 2.28.9 write it."""
    head, _, tail = data.partition(b'"missing_ranks": [')
    return head + b'"missing_ranks": [' + tail.replace(b'"nvml_dev": 0,', b'"nvml_dev": 0')


@dataclass
class RasServer:
    """Answers `VERBOSE STATUS` with `body`, or by `answer`. `commands`: what it was sent."""

    body: bytes = field(default_factory=lambda: report(communicator([rank(0, os.getpid(), 7)])))
    greeting: bytes = b"SERVER PROTOCOL 2\n"
    format_set: bytes = b"OK\n"
    answer: Answer | None = None
    commands: list[str] = field(default_factory=list)

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            try:
                while True:
                    command = (await reader.receive_until(b"\n", 1000)).decode()
                    self.commands.append(command)
                    if command.startswith("CLIENT PROTOCOL"):
                        await stream.send(self.greeting)
                    elif command == "SET FORMAT json":
                        await stream.send(self.format_set)
                    elif self.answer is not None:
                        return await self.answer(stream)
                    else:
                        return await stream.send(self.body)
            except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
                pass  # the client has had enough

    @asynccontextmanager
    async def listening(self, host: str = HERE) -> AsyncIterator[int]:
        """Yields the port."""
        listener = await anyio.create_tcp_listener(local_host=host)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self.serve)
            yield listener.extra(anyio.abc.SocketAttribute.local_port)
            group.cancel_scope.cancel()
