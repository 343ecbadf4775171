"""A status line for work that takes a while: what it is, and for how long it has gone on."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from muster.agent.cli.live import status_line
from muster.agent.cli.live.status_line import Part, StatusLine, clock

#: Seconds between two drawings, and for the last one.
_DRAW_S, _LAST_S = 0.5, 5.0


@contextmanager
def working(what: str) -> Iterator[None]:
    """Inside, the line stands on the terminal; without one nothing happens. In the main thread."""
    if not status_line.wanted():
        yield
        return
    begun, over = time.monotonic(), threading.Event()

    def serve() -> None:
        while not over.is_set():
            line.show([Part(what), Part(clock(time.monotonic() - begun))])
            over.wait(_DRAW_S)

    thread = threading.Thread(target=serve, name="status line", daemon=True)
    with StatusLine() as line:
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_LAST_S)
