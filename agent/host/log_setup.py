"""The daemon's own log: entries of systemd's journal, JSON lines on stderr, or readable ones on a terminal."""

import logging
import sys
from typing import Any, Literal, TextIO

import structlog

from muster.agent.host import journald

_TIME = structlog.processors.TimeStamper(fmt="iso", utc=True)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: str, form: Literal["auto", "json", "console"], stream: TextIO | None = None) -> None:
    """Sets level and form of all that is logged; may be called again, also by loggers that exist. `auto` is `console`
    on a terminal, entries with fields where stderr is systemd's journal, and `json` elsewhere."""
    out = stream or sys.stderr
    factory: Any = structlog.PrintLoggerFactory(out)
    console = form == "console" or (form == "auto" and out.isatty())
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
    ]
    if form == "auto" and journald.is_behind(out):
        factory = _to_journal
        processors += [structlog.processors.format_exc_info, journald.entry]
    elif console:
        # Not structlog's own choice, which shows the values of variables, secrets among them.
        plain = structlog.dev.plain_traceback
        processors += [_TIME, structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)]
    else:
        processors += [_TIME, structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
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


def _to_journal(*_: object) -> journald.Journal:
    return journald.journal()


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger(record.name)
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
