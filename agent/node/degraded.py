"""What the daemon cannot do at this moment: write to a folder, or open more descriptors.

It keeps running: it answers, shows, explains and stops. What it cannot do is a condition of the node (DAEMON_DEGRADED)
and a warning of `muster node` for as long as it lasts, and is retried. Descriptors are kept in reserve and closed when
the limit is reached, so that a client that wants to stop a job can connect.
"""

import errno
import functools
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.errors import StartupError
from muster.agent.host.state_folder import MOVED, OTHER_ROOT, writable, writable_for_job
from muster.probes.calls.heartbeat import tick
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.kernel import open_files
from muster.probes.kernel.process import FULL
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import remedy
from muster.supervisors.system import descriptors
from muster.supervisors.system.spare import Spare

#: Seconds between two looks at descriptors, and at folders; time limit for a folder's disk to answer.
FDS_S, FOLDERS_S, ANSWER_S = 1.0, 10.0, 5.0
#: Seconds of one look after which a disk is silent: a busy one may take some. With FOLDERS_S before it and
#: job_work.LOOK_S behind it less than the 30 s that a command waits, so that it learns what its call waits for.
SILENT_S = 15.0
#: Descriptors in reserve; how many more must be free before the reserve is opened again.
SPARE, HEADROOM = 32, 16
#: What the daemon itself opens from the time when it takes the reserve until it serves, and some more.
STARTING = 32
#: musterd does not start with fewer: an idle one has 33 to 36 (docs/concepts/performance.md); 12 are the reserve of the
#: ladder (climbing.py); 16 are for a client, the start of a nursery, checks, and a job or two.
NEEDED = 64
#: If fewer than these are free, the reserve is closed.
LOW = 8
ITEM = "daemon"

_log = structlog.get_logger(__name__)


def trouble_of(error: OSError) -> str:
    """Why a folder that could be written when the daemon started cannot be written now, and what to do."""
    return f"{error.strerror}; {remedy(error, MOVED if error.errno == errno.ENOENT else OTHER_ROOT)}"


def take_descriptors() -> None:
    """Raises the daemon's own limit as far as possible. Raises StartupError if that is too low to serve."""
    descriptors.raise_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < NEEDED:
        what = remedy(OSError(errno.EMFILE, ""))
        raise StartupError(f"the limit of open files is {limit}, but musterd needs at least {NEEDED}: {what}")


class Degraded:
    """Belongs to one event loop."""

    def __init__(self, root: Root, found: Callable[[CheckResult], None]) -> None:
        """`found` latches a condition, which clears when it is not found again for a while."""
        self._root, self._found = root, found
        self._spare = Spare(SPARE)
        self._folders: dict[Path, str] = {}
        self._jobs = threads.InOrder("folder")
        self._fds = ""
        self._told = 0.0
        #: Ranks of the largest job that was refused since the last look that found room for it.
        self._ranks = 1
        self._refused = Changes()
        if not _are_free(STARTING):
            self._use_reserve()

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [*self._folders.values(), *([self._fds] if self._fds else [])]

    def refused(self, ranks: int) -> None:
        """A job with so many ranks could not be recorded: looks at once, with this size."""
        self._ranks = max(ranks, self._ranks)
        self._refused.tell()

    @property
    def silent_s(self) -> float:
        """For how many seconds the disk of the job records has not answered; 0 if it is not silent."""
        stuck_s = self._jobs.stuck_s
        return stuck_s if stuck_s >= SILENT_S else 0.0

    async def run(self) -> None:
        """Looks until cancelled."""
        async with anyio.create_task_group() as tasks:
            root = self._root
            for folder, lost in (
                (root.jobs, "musterd accepts no job, and writes records later"),
                (root.log, "output of jobs is being counted, not stored"),
                (root.run, "musterd can start no nursery, and loses a stop without a supervisor if it ends"),
            ):
                tasks.start_soon(self._watch, folder, lost)
            while True:
                self.look()
                await tick(FDS_S)

    def look(self) -> None:
        """Closes the reserve at the limit, and opens it again when enough descriptors are free."""
        if descriptors.raise_again():
            _log.warning("daemon.descriptors_raised", text="somebody had lowered the limit of open files (prlimit)")
        if self._spare.full:
            if not _are_free(LOW):  # not just one: the work between two looks needs some
                self._use_reserve()
        elif _are_free(SPARE + HEADROOM):
            self._spare.fill()
            self._fds = ""
            _log.info("daemon.descriptors_again")
        if self._fds and time.monotonic() - self._told > FOLDERS_S:
            self._told = time.monotonic()
            self._condition("descriptors", self._fds)

    def _use_reserve(self) -> None:
        error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._spare.release()
        self._fds = f"no file descriptor is left ({error.strerror}): {remedy(error)}; musterd uses {SPARE} in reserve"
        _log.error("daemon.degraded", what="descriptors", error=error.strerror)

    async def _watch(self, folder: Path, lost: str) -> None:
        # One, however long the disk hangs.
        thread = self._jobs if folder == self._root.jobs else threads.InOrder("folder")
        while True:
            ranks, refused = self._ranks, self._refused.count
            look, told = functools.partial(writable, folder), lost
            if folder == self._root.jobs:
                look = functools.partial(writable_for_job, folder, ranks)
                if ranks > 1:
                    told = f"musterd accepts no job with {ranks} ranks, and may write records later"
            why = await _refusal(thread, look)
            if not why and folder == self._root.jobs and ranks == self._ranks:
                self._ranks = 1
            before = self._folders.pop(folder, "")
            if why:
                self._folders[folder] = f"cannot write {folder}: {why}; {told}"
                if not before:
                    _log.error("daemon.degraded", what=str(folder), error=why)
                self._condition(str(folder), f"cannot be written: {why}; {told}")
            elif before:
                _log.info("daemon.folder_again", folder=str(folder))
            with anyio.move_on_after(FOLDERS_S):
                await self._refused.beyond(refused)

    def _condition(self, device: str, reason: str) -> None:
        action = EXPLANATIONS[Code.DAEMON_DEGRADED].action
        self._found(CheckResult(ITEM, Status.WARN, Code.DAEMON_DEGRADED, reason, device=device, action=action))


async def _refusal(thread: threads.InOrder, look: Callable[[], None]) -> str:
    """Why a look failed, or has not ended in time; empty where it succeeded. None is taken where the last one hangs."""
    errors: list[OSError] = []

    def looked() -> None:
        try:
            look()
        except OSError as error:
            errors.append(error)

    if not thread.waiting:
        thread.hand(looked)
    if not await thread.settled(ANSWER_S):
        return f"does not answer within {ANSWER_S:g} s"
    return trouble_of(errors[0]) if errors and errors[0].errno not in FULL else ""


def _are_free(count: int) -> bool:
    """Whether this process can open so many descriptors."""
    have, (limit, _) = open_files.count(), resource.getrlimit(resource.RLIMIT_NOFILE)
    if have is not None and (limit == resource.RLIM_INFINITY or limit - have >= count):
        count = 1  # as many numbers are free: now whether the node has files left (ENFILE)
    taken = Spare(count)
    free = taken.full
    taken.release()
    return free
