"""Folders for a private /tmp that are left behind: the supervisor, or `rm` that it started, was killed in the middle.

Nobody waits for their removal, as there may be a million files in them. What stays is a condition of the node.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.probes.calls.script import ENV, Script
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status
from muster.supervisors.launch.hardening import private_tmp
from muster.supervisors.model import hardening, journal
from muster.supervisors.model.replay import replay
from muster.supervisors.model.spec_fields import JOB_ID
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import SupervisionError, explain

#: Seconds between two looks, and for the removal of one folder.
LOOK_S, LIMIT_S = 300.0, 600.0
ITEM = "private_tmp"
_NAME = re.compile(r"muster-(.+)-[0-9a-f]{16}")

_log = structlog.get_logger(__name__)


class PrivateTmps:
    """Belongs to one event loop."""

    def __init__(self, root: Root, found: Callable[[CheckResult], None]) -> None:
        """`found` latches a condition of the node."""
        self._root, self._found = root, found
        self._threads = threads.Pool(2, abandon_on_cancel=True)
        #: Those of the look before: their supervisor's own removal had its time.
        self._before: set[Path] = set()

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            try:
                there = await self._threads.run(left_behind, self._root)
                for folder in there:
                    await self._remove(folder)
                self._before = set(there)
            except OSError as error:
                _log.warning("private_tmp.not_looked_at", error=explain(error))
            await anyio.sleep(LOOK_S)

    async def _remove(self, folder: Path) -> None:
        _log.info("private_tmp.left_behind", path=str(folder))
        removal = Script("/bin/rm", ENV, private_tmp.arguments([str(folder)]), patient=True)
        with anyio.move_on_after(LIMIT_S):
            try:
                ended = await self._threads.run(removal.run)
                why = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2][-200:]
            except OSError as error:
                why = explain(error)
            if why and folder in self._before:
                self._stays(folder, why)
            return
        removal.kill()
        self._stays(folder, f"it takes longer than {LIMIT_S:g} s")

    def _stays(self, folder: Path, why: str) -> None:
        action = EXPLANATIONS[Code.PRIVATE_TMP_LEFT].action
        reason = f"the /tmp of a job that has ended cannot be removed: {why}"
        self._found(CheckResult(ITEM, Status.WARN, Code.PRIVATE_TMP_LEFT, reason, action=action, device=str(folder)))


def left_behind(root: Root) -> list[Path]:
    """Those of jobs of this daemon that have ended. Blocks. Raises OSError."""
    found: dict[tuple[int, int], Path] = {}
    for place in hardening.TMP_PLACES:
        for name in os.listdir(place) if os.path.isdir(place) else ():
            if (match := _NAME.fullmatch(name)) is None or not JOB_ID.fullmatch(match[1]):
                continue
            path = Path(place, name)
            there = path.lstat()
            if there.st_uid == os.geteuid() and _is_over(root, match[1], name):  # others' may have such names, too
                found.setdefault((there.st_dev, there.st_ino), path)
    return list(found.values())


def _is_over(root: Root, beginning: str, name: str) -> bool:
    """Whether the folder of this name is one of a job whose id begins so, which has ended, and needs it no more."""
    for folder in root.jobs.glob(f"{beginning}*" if len(beginning) == hardening.ID_PART else beginning):
        try:
            job = replay(journal.read(root.job(folder.name).journal).records)
        except (OSError, SupervisionError):
            continue
        if job.hardening.private_tmp and job.hardening.tmp_name(folder.name) == name:
            return job.state.final and not job.outputs_kept
    return False
