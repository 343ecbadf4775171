"""The folder of a standalone run: where it is, and what is left in it; the report of one that has failed."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import note
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.paths import MAX_SOCKET, ROOT_VARIABLE, JobPaths, Root
from muster.supervisors.supervision_errors import SupervisionError, Untrusted
from muster.supervisors.system import trust

#: Seconds that a report may take.
REPORT_S = 30.0
#: Bytes that `Root.socket` and what is beside it need below the folder, and the limit for a socket's path.
_SOCKET_BYTES = len("/run/nursery-12345678.sock")
#: Where it is tried behind $TMPDIR: a container's /tmp may be everybody's, and not sticky.
_FOLDERS = ("/tmp", "/var/tmp")


def new_root() -> Path:
    """In the first of the usual folders that serves. Raises CommandFailed."""
    trouble = ""
    folders = list(_FOLDERS)
    try:
        folders.insert(0, tempfile.gettempdir())
    except FileNotFoundError:  # none of them takes a file, nor does this folder
        if root := os.environ.get(ROOT_VARIABLE):  # in a container it may be the only folder that does
            folders.insert(0, os.path.abspath(root))
    for folder in dict.fromkeys(folders):
        if len(os.fsencode(folder)) + len("/muster-12345678") + _SOCKET_BYTES > MAX_SOCKET:
            trouble = trouble or f"{folder}: the path is too long for a socket in it"
            continue
        try:
            trust.check(Path(folder))
            return Path(tempfile.mkdtemp(prefix="muster-", dir=folder))
        except Untrusted as error:
            trouble = trouble or str(error)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CommandFailed(
                f"cannot make a folder in {folder}: {error.strerror}: set TMPDIR to one with room",
                Exit.MUSTER_FAILED,
            ) from None
    raise CommandFailed(
        f"no usable folder for temporary files: {trouble}; or set TMPDIR to another folder", Exit.MUSTER_FAILED
    )


def make(root: Path, log_dir: str | None) -> None:
    """What the daemon's nursery needs, which starts before the daemon has looked at anything. Raises CommandFailed."""
    places = Root.under(root)
    for folder in (places.run, places.log):
        if folder == places.log and log_dir is not None:
            _link_logs(root, Path(log_dir))
            continue
        folder.mkdir()
        folder.chmod(0o755)  # as the daemon would


def _link_logs(root: Path, log_dir: Path) -> None:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        _try_file(log_dir)
        # Not resolved: ranks get paths below it, as the user wrote it.
        Root.under(root).log.symlink_to(log_dir.absolute(), target_is_directory=True)
    except OSError as error:
        raise CommandFailed(
            f"cannot use {log_dir} for logs: {error.strerror}: name another folder with --log-dir", Exit.USAGE
        ) from None


def _try_file(folder: Path) -> None:
    """Raises OSError on a read-only mount, and where the right to make a file is missing. A full disk may have room
    again: there a rank's output is counted, and the job runs."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise


def tidy_logs(root: Root) -> None:
    """Leaves what people read: the indices served the daemon alone. Best effort."""
    with contextlib.suppress(OSError, SupervisionError), contextlib.ExitStack() as stack:
        folder = trust.open_logs(root.log)
        stack.callback(os.close, folder)
        with contextlib.suppress(FileNotFoundError):
            if not os.stat(root.nursery_log.name, dir_fd=folder, follow_symlinks=False).st_size:
                os.unlink(root.nursery_log.name, dir_fd=folder)
        for entry in root.jobs.iterdir():
            job = replay(journal.read(JobPaths(entry).journal).records)
            indices = [root.job_index(entry.name, job.node_rank)]
            indices += [root.rank_index(entry.name, rank.rank, rank.device) for rank in job.ranks]
            for index in indices:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(index.name, dir_fd=folder)


def set_report_aside(root: Root, folder: Path) -> None:
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


def write_report(root: Root, folder: Path) -> Path | None:
    """Writes the report of the job that this root has into the folder, and returns its path. None where that does not
    work, after a note: the job's exit code is what counts."""
    import anyio

    from muster.agent.report import gathering, on_disk, writing

    root = Root(root.run, root.state, log=folder)  # where the logs lie once the command has ended

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
        note(f"cannot write the report of this job: {error}")
    except OSError as error:
        note(f"cannot write the report of this job into {folder}: {error.strerror}")
    except Exception as error:  # a defect here must not become the job's
        note(f"cannot make the report of this job: a defect of muster: {error!r}")
    else:
        return path
    return None
