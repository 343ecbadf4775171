"""A thin client of muster: a channel with the right options, the stubs, and errors as they are meant to be read.

    async with connect("unix:///run/muster/muster.sock") as muster:
        answer = await muster.jobs.Start(job_pb2.StartRequest(spec=spec))

`connect_blocking` gives the same services without asyncio, for programs with threads of their own. `ask_together` calls
many daemons at once, and a `Gang` is the job of several nodes: its parts start together or not at all, begin together,
and end together. It needs `grpcio`, `protobuf` and `googleapis-common-protos`, and nothing else of muster's.
"""

from muster.client.daemon import (
    BlockingClient,
    Client,
    Failure,
    connect,
    connect_blocking,
    facts,
    failure,
    retry_after,
    target,
)
from muster.client.gang import Gang, GangNotStarted, GangPart
from muster.client.together import FailedAsk, ask_together, failures, status_of

__all__ = [
    "BlockingClient",
    "Client",
    "FailedAsk",
    "Failure",
    "Gang",
    "GangNotStarted",
    "GangPart",
    "ask_together",
    "connect",
    "connect_blocking",
    "facts",
    "failure",
    "failures",
    "retry_after",
    "status_of",
    "target",
]
