"""The daemon's own log: entries of systemd's journal, JSON lines on stderr, or readable ones on a terminal.

It is best effort. A thread writes to stderr, which may be a full disk, or a pipe that nobody reads: lines that cannot
be written are dropped and counted, and nobody waits for one. When writing works again, a line (`log.lost`) says how
many.
"""

import functools
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TextIO

import structlog

from muster.agent import threads
from muster.agent.host import systemd
from muster.agent.text import time_of_day, utc

_TIME = structlog.processors.TimeStamper(fmt="iso", utc=True)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

STDERR = 2
#: gRPC's logger; and how it says that something could not be sent or received. An error that it calls otherwise is one
#: of ours.
_GRPC, _UNSENT = "grpc._cython.cygrpc", 'Failed "execute_batch"'
#: Bytes of lines that wait for the thread, at most.
MAX_WAITING = 4 << 20
#: Seconds after which a line that is being written counts as stuck; and that the last lines have when the daemon ends.
STUCK_S, END_S = 5.0, 1.0


class OwnLog:
    """Lines on their way to a descriptor, which may be shared with other processes: it stays as it is. For every
    thread."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread = threads.InOrder("log")
        self._lock = threading.Lock()
        #: Bytes that wait; lines for which there was no room and of which the thread does not know yet, since when.
        self._waiting, self._unknown, self._full_since = 0, 0, 0.0
        #: Of the thread: lines that are lost and not told of, since when; why; whether half a line was written.
        self._untold, self._since, self._refused, self._torn = 0, 0.0, "", False
        #: Renders a line about a number of lines that are lost since a time.
        self.lost_line: Callable[[int, float], str] = lambda lines, since: f"{lines} lines lost"

    @property
    def trouble(self) -> str:
        """Why lines are missing at this moment, a sentence; empty if none are."""
        stuck = self._thread.stuck_s >= STUCK_S
        if not stuck and not self._refused:
            return ""
        why = "nobody reads it, or its disk does not answer" if stuck else self._refused
        missing, since = self._untold + self._unknown, self._since or self._full_since
        when = time_of_day(since)
        lacks = f"the daemon's log lacks {missing} line(s) since {when}" if missing else "the daemon's log waits"
        return f"stderr: cannot be written: {why}; {lacks}"

    def msg(self, line: str) -> None:
        """Writes a line, best effort. Never waits."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._lock:
            if self._waiting + len(data) > MAX_WAITING:
                self._unknown, self._full_since = self._unknown + 1, self._full_since or time.time()
                return
            self._waiting += len(data)
            self._hand(data)

    debug = info = warning = warn = error = critical = exception = fatal = log = msg

    def try_again(self) -> None:
        """Tries to tell of lines that are lost. Never waits."""
        with self._lock:
            if self._thread.waiting:
                self._thread.poke()
            elif self._untold or self._unknown:
                self._hand(b"")

    def settle(self, limit_s: float) -> None:
        """Waits for the lines so far, for at most so many seconds."""
        self._thread.settle(limit_s)

    def _hand(self, data: bytes) -> None:
        missing, since, self._unknown, self._full_since = self._unknown, self._full_since, 0, 0.0
        self._thread.hand(partial(self._put, data, missing, since))

    def _put(self, data: bytes, missing: int, since: float) -> None:
        """`missing`: lines before this one for which there was no room, since `since`."""
        if missing:
            self._untold, self._since = self._untold + missing, self._since or since
        try:
            if self._torn:
                self._write(b"\n")
                self._torn = False
            if self._untold:
                self._write(self.lost_line(self._untold, self._since).encode() + b"\n")
                self._untold, self._since = 0, 0.0
            self._write(data)
            self._refused = ""
        except OSError as error:
            if data:
                self._untold, self._since = self._untold + 1, self._since or time.time()
            self._refused = error.strerror or str(error)
        with self._lock:
            self._waiting -= len(data)

    def _write(self, data: bytes) -> None:
        """Raises OSError."""
        written = 0
        while written < len(data):
            try:
                written += os.write(self._fd, data[written:])
                self._torn = written < len(data)
            except BlockingIOError:  # somebody who shares it has set it so
                ready = select.poll()
                ready.register(self._fd, select.POLLOUT)
                ready.poll()


@functools.cache
def own_log(fd: int) -> OwnLog:
    """One for each descriptor."""
    return OwnLog(fd)


def configure(level: str, form: Literal["auto", "json", "console"], stream: TextIO | None = None) -> None:
    """Sets level and form of all that is logged; may be called again, also by loggers that exist. `auto` is `console`
    on a terminal, entries with fields where stderr is systemd's journal, and `json` elsewhere."""
    out = stream or sys.stderr
    log = own_log(out.fileno())
    factory: Any = lambda *_: log  # noqa: E731  (one of two)
    console = form == "console" or (form == "auto" and out.isatty())
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
    ]
    if form == "auto" and systemd.journal_is_behind(out):
        factory = _to_journal
        processors += [structlog.processors.format_exc_info, systemd.journal_entry]
    elif console:
        # Not structlog's own choice, which shows the values of variables, secrets among them.
        plain = structlog.dev.plain_traceback
        processors += [_TIME, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]
    else:
        processors += [_TIME, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    log.lost_line = partial(_lost_line, processors)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=factory,
        # A cached logger would keep the level that a reload has changed.
        cache_logger_on_first_use=False,
    )
    # What libraries have to say through `logging` (gRPC, asyncio) goes the same way.
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


def _lost_line(processors: list[Any], lines: int, since: float) -> str:
    when = utc(since)
    told: Any = {"event": "log.lost", "lines": lines, "since": when}
    for processor in processors:
        told = processor(None, "warning", told)
    return str(told)


def _to_journal(*_: object) -> systemd.Journal:
    return systemd.journal()


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger(record.name)
        failed = record.exc_info[1] if record.exc_info and record.name == _GRPC else None
        if type(failed).__name__ == "ExecuteBatchError" and str(failed).startswith(_UNSENT):
            # A client went away while its answer was on its way, and gRPC heard of the answer's failure before it heard
            # of the client's end: the other way round, it says nothing.
            logger.debug("call.unanswered", why="the client has gone away", call=record.getMessage())
            return
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
