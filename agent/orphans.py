"""As PID 1, the daemon or `muster run --standalone` gets the orphans of the whole container and reaps them.

Most of them are the container's own. muster's processes come here only if somebody killed a nursery, which is a
subreaper: its supervisors, and ranks whose supervisor was killed too. Such a rank stays a zombie until a successor has
recorded how it ended, because the zombie is the only record of that (docs/concepts/recovery.md).
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.probes.calls import children
from muster.probes.kernel import process
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import SupervisionError

if TYPE_CHECKING:
    from muster.agent.jobs.registry import Registry
    from muster.supervisors.model.lifecycle import Job

#: Seconds between two looks.
LOOK_S = 0.5


class Orphans:
    """Those of this process."""

    def __init__(self, kept: Callable[[], set[int]]) -> None:
        """`kept`: the pids that are not reaped here; called only after a child has ended. Where it raises OSError or
        SupervisionError, nobody is waited for."""
        self._kept = kept
        self._seen: set[int] = set()

    def look(self) -> None:
        """To be called each LOOK_S."""
        if not children.any_ended():
            return
        try:
            ended = {s.pid for s in process.all_stats().values() if s.ppid == os.getpid() and s.ended}
            # At the second look: the journal that tells of a rank may be read behind its end.
            children.reap((ended & self._seen) - self._kept())
            self._seen = ended
        except (OSError, SupervisionError):
            return


def of_jobs(root: Root) -> set[int]:
    """Ranks and steps of a node whose ends are not recorded yet, by pid, as the journals tell. Blocks. Raises OSError,
    SupervisionError."""
    paths = (root.job(folder.name).journal for folder in root.jobs.iterdir())
    return {pid for path in paths for pid in _unrecorded(replay(journal.read(path).records))}


def _unrecorded(job: "Job") -> set[int]:
    return {rank.pid for rank in job.processes() if rank.outcome is None}


async def reap(registry: "Registry") -> None:
    """Reaps orphans of the daemon until cancelled."""

    from muster.probes.calls.heartbeat import tick

    orphans = Orphans(lambda: {pid for entry in registry.live() for pid in _unrecorded(entry.job)})
    while True:
        await tick(LOOK_S)
        orphans.look()
