"""The configuration in force: read at the start, and again on SIGHUP."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.agent.config import loading, schema
from muster.agent.config.schema import CardsTable, Config
from muster.agent.errors import StartupError
from muster.supervisors.paths import Root

#: Seconds that a reload waits for the file: a network file system may hang.
ANSWER_S = 5.0

_log = structlog.get_logger(__name__)


class LiveConfig:
    """The present configuration; SIGHUP reads it again."""

    def __init__(
        self, root: Root, path: Path | None, record: str = "", refuse: Callable[[Config], None] = lambda _: None
    ) -> None:
        """Raises StartupError. A file that is named must exist, the default one need not. `record`: in the place of
        what the file says of telemetry.record. `refuse` raises StartupError for what cannot be used on this node."""
        self._record, self._refuse = record, refuse
        self._path = path or root.config
        self._named = path is not None
        self._threads = threads.Pool(abandon_on_cancel=True)
        self.now = self._read()
        #: Why the last reload did not work, for an operator.
        self.trouble = ""

    def __call__(self) -> Config:
        return self.now

    def cards(self) -> CardsTable:
        """The present settings of the cards, for their driver."""
        return self.now.cards

    @property
    def origin(self) -> str:
        """A sentence about the file."""
        return f"{self._path}: " + (
            "good" if self._path.exists() else "there is no such file: every key has its default"
        )

    async def reload(self) -> None:
        """Reads the file again; a bad one, or one that does not answer, is reported and changes nothing."""
        error = f"cannot read {self._path}: its disk did not answer within {ANSWER_S:g} s"
        new = None
        with anyio.move_on_after(ANSWER_S):
            try:
                new = await self._threads.run(self._read)
            except StartupError as refused:
                error = str(refused)
        if new is None:
            self.trouble = f"the configuration was not reloaded, the previous one stays in force: {error}"
            _log.error("config.refused", error=error)
            return
        late = schema.restart_needed(self.now, new)
        self.now, self.trouble = new, ""
        if late:
            self.trouble = f"{', '.join(late)}: the new value takes effect when musterd is started again"
            _log.warning("config.needs_restart", keys=late)
        _log.info("config.loaded", path=str(self._path))

    def _read(self) -> Config:
        there = self._named or self._path.exists()
        read = loading.load(self._path, own=True) if there else Config()
        self._refuse(read)
        if not self._record:
            return read
        return replace(read, telemetry=replace(read.telemetry, record=self._record))
