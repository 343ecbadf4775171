"""Waits for a job's rank table, which the platform completes when all nodes are present."""

import errno
from pathlib import Path

import anyio

from muster.probes.calls import watched
from muster.supervisors.launch.modes import ranktable
from muster.supervisors.launch.modes.ranktable import RankTable
from muster.supervisors.launch.modes.ranktable_json import RankTableError
from muster.supervisors.model.spec import DEFAULT_READY_S, JobSpec
from muster.supervisors.system.atomic_file import replace_file

#: Seconds between two looks at the file; ModelArts' launcher uses the same period.
LOOK_S = 1.0
#: Of a daemon that is short of threads, descriptors or memory, and of a network file system whose server was restarted.
_PASSING = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})


async def wait(spec: JobSpec) -> RankTable:
    """The completed table. Raises RankTableError if it is damaged, contradictory, unreadable, or still missing after
    the spec's `ready_timeout`, with the last reason."""
    limit = DEFAULT_READY_S if spec.ready_timeout is None else spec.ready_timeout
    missing = ""
    with anyio.move_on_after(limit):
        while True:
            found = await _look(spec.rank_table)
            if isinstance(found, RankTable):
                return found
            missing = found
            await anyio.sleep(LOOK_S)
    raise RankTableError(spec.rank_table, "", f"is not completed after {limit:g} s ({missing or 'no answer'})")


async def _look(given: str) -> RankTable | str:
    """The table, or why there is none yet. Raises RankTableError."""

    def look() -> RankTable | str:
        path = ranktable.path_of(given)
        table = ranktable.read(path)
        return table if table is not None else ranktable.pending(path) or "it was just completed"

    try:
        # Not in the daemon's own threads: the file system may hang.
        return await watched.call(f"read {given}", look)
    except watched.StillHanging as error:
        return str(error)
    except RankTableError as error:
        if error.torn:  # the platform is writing it
            return str(error)
        raise
    except OSError as error:
        if error.errno in _PASSING:
            return f"{given}: cannot be read at the moment: {error.strerror}"
        raise RankTableError(given, "", f"cannot be read: {error.strerror}") from error


def write(path: Path, table: RankTable) -> None:
    """Writes the table as HCCL reads it (template 1), readable for the job's user. Leaves a table of template 1 as it
    is. Blocks. Raises OSError."""
    if table.template == 1:
        return
    replace_file(path, ranktable.to_template1(table).encode(), 0o644)
