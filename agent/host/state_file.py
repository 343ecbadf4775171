"""Small files of the daemon: JSON, replaced as a whole, read in one way.

`read`, `write` and `set_aside` are for all of them, a job's as well. `StateFile` is one that the daemon keeps all the
time: it is written soon after a change, and what could not be read or written is a sentence for an operator.
"""

import functools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import msgspec
import structlog
from anyio.abc import TaskStatus

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.errors import NoRoom, StartupError
from muster.probes import typed
from muster.probes.calls import watched
from muster.supervisors.supervision_errors import remedy
from muster.supervisors.system import trust
from muster.supervisors.system.atomic_file import replace_file

#: Seconds that somebody waits for a write, and that the end of the daemon waits for the last one.
WAIT_S = 10.0

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class Damaged(ValueError):
    """Raised for a file that cannot be understood."""


def read(path: Path, type: type[_T], version: int | None = None) -> _T:
    """What the file holds. `version`: what its key of this name must be; None: it has none. Blocks.

    Raises OSError, Damaged, and StartupError for a version that a newer musterd wrote.
    """
    data = trust.read(path)
    try:
        found = typed.decode(data, _VersionOnly).version if version is not None else None
        if version is not None and found not in (None, version):
            if found > version:
                raise newer(path, found, version, "move the file away: muster then forgets its content")
            raise Damaged(f"it is of version {found}, and this musterd reads {version}")
        return typed.decode(data, type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(str(error)) from None


def newer(path: Path, found: object, known: object, otherwise: str) -> StartupError:
    """For a file of a newer musterd: what is in it is not to be forgotten, and not to be guessed."""
    return StartupError(
        f"{path}: was written by a newer musterd (version {found}, and this one reads {known}); nothing was changed: "
        f"use the newer musterd, or {otherwise}"
    )


def write(path: Path, value: Any, *, indent: int = 0, synced: bool = True) -> None:
    """Replaces the file by `value` as JSON. `indent`: for people, in columns. `synced`: after a crash of the node it is
    the old or the new one; else that holds for a kill. Blocks. Raises OSError."""
    data = msgspec.json.encode(value)
    write_text(path, (msgspec.json.format(data, indent=indent) if indent else data).decode(), synced=synced)


def write_text(path: Path, text: str, *, synced: bool = True) -> None:
    """As `write`, of a file that is no JSON."""
    replace_file(path, text.encode(), synced=synced)


def set_aside(path: Path) -> Path:
    """Gives a damaged file another name and keeps its content for a later look. Raises OSError."""
    aside = name_aside(path)
    path.rename(aside)
    return aside


def name_aside(path: Path) -> Path:
    """The name that a file gets which is damaged now."""
    return path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")


class _VersionOnly(msgspec.Struct):
    version: int | None = None


class StateFile(Generic[_T]):
    """A file that is kept all the time. Belongs to one event loop."""

    def __init__(
        self,
        path: Path,
        type: type[_T],
        snapshot: Callable[[], _T],
        *,
        version: int,
        forgotten: str,
        unwritten: str = "",
        save_s: float = 1.0,
        indent: int = 0,
        after: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`snapshot` gives what is to be written; it is called on the loop. `forgotten`: what is lost with a file that
        cannot be understood; `unwritten`: with one that cannot be written, if the daemon ends. `save_s`: seconds
        between two writes, unless somebody waits for one, and between two tries where it does not work. `after`: is
        waited for between the snapshot and the write."""
        self._path, self._type, self._snapshot = path, type, snapshot
        self._version, self._forgotten, self._lost, self._indent = version, forgotten, unwritten, indent
        self._save_s, self._after = save_s, after
        self._changes, self._urgent, self._tried = Changes(), Changes(), Changes()
        #: The changes that are on the disk.
        self._saved = 0
        self._aside = self._unwritten = ""

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [text for text in (self._aside, self._unwritten) if text]

    async def load(self) -> _T | None:
        """What the file holds; None where there is none, or none that can be understood: that one is set aside. Raises
        OSError, and StartupError for one that a newer musterd wrote."""
        try:
            return await threads.run(read, self._path, self._type, self._version)
        except FileNotFoundError:
            return None
        except Damaged as error:
            aside = await threads.run(set_aside, self._path)
            self._aside = (
                f"{self._path}: cannot be understood ({error}) and was set aside as {aside.name}: {self._forgotten}"
            )
            _log.error("state_file.damaged", path=str(self._path), aside=aside.name, error=str(error))
            return None

    def changed(self) -> None:
        """What `snapshot` gives has changed: it will be written soon."""
        self._changes.tell()

    async def written(self) -> None:
        """Returns when all changes so far are on the disk. Raises NoRoom where they cannot be, or not in time; they are
        in force all the same, and will be written as soon as that works."""
        wanted = self._changes.count
        why = f"the disk did not answer within {WAIT_S:g} s"
        with anyio.move_on_after(WAIT_S):
            while self._saved < wanted:
                self._urgent.tell()
                await self._tried.next()
                if self._saved < wanted and self._unwritten:
                    why = self._unwritten
                    break
        if self._saved < wanted:
            raise NoRoom(
                f"{why}: it is in force, but a restart of musterd would lose it; musterd writes it to the disk as soon "
                "as it can"
            )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Writes changes until cancelled, and once more at the end."""
        task_status.started()
        try:
            while True:
                await self._changes.beyond(self._saved)
                urgent = self._urgent.count
                await self._save()
                with anyio.move_on_after(self._save_s):
                    await self._urgent.beyond(urgent)
        finally:
            await self.save()

    async def save(self) -> None:
        """Writes what has changed and is not written, now, also where the caller is cancelled: at most WAIT_S."""
        if self._changes.count != self._saved:
            with anyio.CancelScope(shield=True):
                await self._save()

    async def _save(self) -> None:
        number = self._changes.count
        job = functools.partial(write, self._path, self._snapshot(), indent=self._indent)
        why = f"the disk did not take it within {WAIT_S:g} s"
        try:
            if self._after is not None:
                await self._after()
            with anyio.move_on_after(WAIT_S):
                # One that is being written when the daemon ends is waited for: the last one comes behind it.
                await watched.call(f"write {self._path}", job, on_cancel=_wait, linger_s=WAIT_S / 2)
                self._saved, why = number, ""
        except OSError as error:
            what = remedy(error)
            why = f"cannot be written: {error.strerror or error}" + (what and f": {what}")
        except watched.StillHanging as error:
            why = str(error)
        if why and not self._unwritten:
            _log.warning("state_file.unwritten", path=str(self._path), error=why)
        self._unwritten = f"{self._path}: {why}" + (f"; {self._lost}" if self._lost else "") if why else ""
        self._tried.tell()


def _wait() -> None:
    """There is nothing that would make a write return early."""
