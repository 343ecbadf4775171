"""A client of muster: a channel with the right options, calls that are repeated where that is safe, streams that go on
over restarts of the daemon, and errors as they are meant to be read.

    async with connect("unix:///run/muster/muster.sock") as muster:
        await muster.start(job_pb2.JobSpec(job_id="train-7", command=["python3", "train.py"], ranks=2))
        async for message in muster.read_logs("train-7", follow=True): ...
        print((await muster.wait("train-7")).job.verdict.summary)

`connect_blocking` gives the same without asyncio, for programs with threads. The attributes `jobs`, `logs`, `events`,
`node` and `execs` are the plain stubs. `ask_together` calls many daemons at once, and a `Gang` is the job of
several nodes: its parts start together or not at all, begin together, and end together. It needs `grpcio`, `protobuf`
and `googleapis-common-protos`, and nothing else of muster's. docs/guides/clients.md explains it.
"""

from muster.client.async_client import Client
from muster.client.async_exec import AsyncExec
from muster.client.blocking_client import BlockingClient
from muster.client.blocking_exec import BlockingExec
from muster.client.daemon import connect, connect_blocking, target
from muster.client.errors import CursorLost, Failure, MusterError, facts, failure, retry_after
from muster.client.gang import Gang, GangNotStarted, GangPart
from muster.client.retries import may_pass, may_repeat
from muster.client.together import FailedAsk, ask_together, failures, status_of

__all__ = [
    "AsyncExec",
    "BlockingClient",
    "BlockingExec",
    "Client",
    "CursorLost",
    "FailedAsk",
    "Failure",
    "Gang",
    "GangNotStarted",
    "GangPart",
    "MusterError",
    "ask_together",
    "connect",
    "connect_blocking",
    "facts",
    "failure",
    "failures",
    "may_pass",
    "may_repeat",
    "retry_after",
    "status_of",
    "target",
]
