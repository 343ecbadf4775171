"""The page as a file for node_exporter's textfile collector, instead of a port."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.supervisors.system.atomic_file import replace_file

#: World-readable: node_exporter runs as a user of its own.
MODE = 0o644
#: Seconds that a disk has for the file.
WRITE_S = 10.0

_log = structlog.get_logger(__name__)


class Textfile:
    """Keeps one file. Belongs to one event loop."""

    def __init__(self, path: Path, show: Callable[[], Awaitable[bytes]]) -> None:
        """`path` ends in .prom, or nobody reads it."""
        self._path = path
        self._show = show
        # At most one thread hangs on a disk that does not answer.
        self._threads = threads.Pool(1, abandon_on_cancel=True)
        #: A sentence for an operator; empty while all is well.
        self.trouble = ""

    async def run(self, period_s: Callable[[], float]) -> None:
        """Writes the file periodically until cancelled; then removes it, because its values would go stale."""
        try:
            while True:
                await self.write()
                await anyio.sleep(period_s())
        finally:
            with anyio.move_on_after(WRITE_S, shield=True), contextlib.suppress(OSError):
                await self._threads.run(_remove, self._path)

    async def write(self) -> None:
        """Writes the file once. Reports an error once, and tries again the next time."""
        try:
            page = await self._show()
            with anyio.fail_after(WRITE_S):
                await self._threads.run(replace_file, self._path, page, MODE)
        except TimeoutError:
            self._failed("the disk does not answer")
        except OSError as error:
            self._failed(error.strerror or str(error))
        except Exception as error:  # a defect in a metric: no file is written, and the daemon continues
            _log.exception("metrics.defect", error=repr(error))
            self._failed(f"a defect: {error!r}")
        else:
            self.trouble = ""

    def _failed(self, why: str) -> None:
        text = f"cannot write metrics to {self._path}: {why}; the daemon tries again; see textfile in [metrics]"
        if text != self.trouble:
            _log.warning("metrics.not_written", path=str(self._path), error=why)
        self.trouble = text


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
