"""A client of muster: a channel with the right options, calls that are repeated where that is safe, streams that go on
over restarts of the daemon, and errors as they are meant to be read.

    async with connect("unix:///run/muster/muster.sock") as muster:
        await muster.start(job_pb2.JobSpec(job_id="train-7", command=["python3", "train.py"], ranks=2))
        async for message in muster.read_logs("train-7", follow=True): ...
        print((await muster.wait("train-7")).job.verdict.summary)

`connect_blocking` gives the same without asyncio, for programs with threads. The attributes `jobs`, `logs`, `events`,
`node`, `execs`, `probes` and `telemetry` are the plain stubs. `ask_together` calls many daemons at once, and a `Gang`
is the job of several nodes: its parts start together or not at all, begin together, and end together. It needs `grpcio`
and `protobuf`, and nothing else of muster's. docs/guides/clients.md explains it.

The command line uses `places`, `exec_state`, `retries` and `own_token`: where a stream goes on, how a session is taken
up again, what is repeated, and who calls.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.client.async_client import Client
    from muster.client.async_exec import AsyncExec
    from muster.client.blocking_client import BlockingClient
    from muster.client.blocking_exec import BlockingExec
    from muster.client.daemon import connect, connect_blocking, target
    from muster.client.errors import CursorLost, Failure, MusterError, facts, failure, retry_after
    from muster.client.gang import Gang, GangNotStarted, GangPart
    from muster.client.retries import may_pass, may_repeat
    from muster.client.together import FailedAsk, ask_together, failures, status_of
else:
    #: A name is imported when it is asked for: a command that needs one module of this room does not pay for all.
    _HOMES = {
        **dict.fromkeys(("connect", "connect_blocking", "target"), "daemon"),
        **dict.fromkeys(("CursorLost", "Failure", "MusterError", "facts", "failure", "retry_after"), "errors"),
        **dict.fromkeys(("Gang", "GangNotStarted", "GangPart"), "gang"),
        **dict.fromkeys(("may_pass", "may_repeat"), "retries"),
        **dict.fromkeys(("FailedAsk", "ask_together", "failures", "status_of"), "together"),
        "Client": "async_client",
        "BlockingClient": "blocking_client",
        "AsyncExec": "async_exec",
        "BlockingExec": "blocking_exec",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


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
