"""Status lines where there is a terminal for them: of a job, of other work that takes a while. Elsewhere nothing is
drawn, and nothing is imported for it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from muster.agent.cli.printing import on_terminal

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.agent.cli.live.job_line import JobLine
    from muster.v1 import job_pb2

#: Seconds until the first drawing: short work has none; between two drawings; for the last one.
_SOON_S, _DRAW_S, _LAST_S = 0.4, 0.5, 5.0


def job_line(connection: "DaemonConnection", job: "job_pb2.Job") -> "AbstractContextManager[JobLine | None]":
    """That of a job, for the length of a `with` in the main thread."""
    if not _wanted():
        return nullcontext()
    from muster.agent.cli.live.job_line import JobLine

    return JobLine(connection, job)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Inside, in the main thread, the line says what the work is, for how long it has gone on, and how far it is: what
    the function that it gives was told last, in any thread."""
    far = [""]

    def say(text: str) -> None:
        far[0] = text

    if not _wanted():
        yield say
        return
    from muster.agent.cli.live.status_line import Part, StatusLine, clock

    begun, over = time.monotonic(), threading.Event()

    def serve() -> None:
        pause = _SOON_S
        while not over.wait(pause):
            pause = _DRAW_S
            more = [Part(far[0], cut=True)] if far[0] else []
            line.show([Part(what), Part(clock(time.monotonic() - begun)), *more])

    thread = threading.Thread(target=serve, name="status line", daemon=True)
    with StatusLine() as line:
        thread.start()
        try:
            yield say
        finally:
            over.set()
            thread.join(_LAST_S)


def _wanted() -> bool:
    if not on_terminal():
        return False
    from muster.agent.cli.live import status_line

    return status_line.wanted()
