"""The report of a standalone run that has failed, beside its logs."""

import contextlib
import os
import stat
from pathlib import Path

from muster.agent.cli.printing import note
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.supervision_errors import SupervisionError, Untrusted
from muster.supervisors.system import trust

#: Seconds that it may take.
REPORT_S = 30.0


def set_aside(root: Root, folder: Path) -> None:
    """The report of an earlier run of this job in the same folder gets the time of its end into its name, as its logs
    did: nobody takes it for that of the run that has just ended. Best effort."""
    with contextlib.suppress(OSError, SupervisionError):
        os.close(trust.open_logs(folder))
        for job in [path for path in root.jobs.iterdir() if not path.name.startswith(".")]:
            node_rank = replay(journal.read(JobPaths(job).journal).records).node_rank
            path = folder / root.report(job.name, node_rank).name
            there = path.lstat()
            if stat.S_ISREG(there.st_mode):
                path.rename(path.with_name(f"{path.stem}.{int(there.st_mtime)}{path.suffix}"))


def write(root: Root, folder: Path) -> Path | None:
    """Writes the report of the job that this root has into the folder, and returns its path. None where that does not
    work, after a note: the job's exit code is what counts."""
    import anyio

    from muster.agent.report import gathering, on_disk, writing

    async def text(job_id: str) -> str | None:
        entry = on_disk.job(root, job_id)
        with anyio.move_on_after(REPORT_S):
            if entry is not None:
                return writing.text(await gathering.collect(on_disk.sources(root, job_id), entry), writing.HTML)
        return None

    try:
        found = next((path.name for path in root.jobs.iterdir() if not path.name.startswith(".")), "")
        made = anyio.run(text, found) if found else None
        if made is None:
            return None
        entry = on_disk.job(root, found)
        path = folder / root.report(found, entry.job.node_rank if entry is not None else 0).name
        os.close(trust.open_logs(folder))  # as the logs beside it: nobody else may choose where it goes
        writing.put(path, made.encode("utf-8", "replace"), 0o640)
    except Untrusted as error:
        note(f"the report of this job is not written: {error}")
    except OSError as error:
        note(f"the report of this job cannot be written into {folder}: {error.strerror}")
    except Exception as error:  # a defect here must not become the job's
        note(f"the report of this job could not be made: {error!r}")
    else:
        return path
    return None
