"""What muster keeps of standalone runs, so that you can look at them after their daemon has exited.

A run lies in `<folder>/<job id>/<host>-<node rank>/`: `state` without the values of the job's environment, and `log`, a
folder, or a link to logs that stay where they are. Nodes may share the folder (a home on NFS).
"""

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import OWN_LOGS, JobPaths, Root

#: So many jobs are kept, the newest; and so many bytes of logs of each, on all its nodes together.
JOBS, LOG_BYTES = 20, 32 << 20
#: Names the folder; empty: nothing is kept.
VARIABLE = "MUSTER_RUNS"
#: A run that nobody finished to write after so many seconds is left over.
_UNFINISHED_S = 3600.0
#: Of the state: what the ranks have made, the environment that a pre_start has left, undelivered notifications.
_LEFT_OUT = ("workspace", "packages", "exports", "notify.json")


@dataclass(frozen=True, slots=True)
class KeptRun:
    """One of them, of the job `job_id`."""

    folder: Path
    job_id: str

    @property
    def state(self) -> Path:
        """As the daemon's state folder."""
        return self.folder / "state"

    @property
    def log(self) -> Path:
        """The folder of the logs."""
        log = self.folder / "log"
        return Path(os.readlink(log)) if log.is_symlink() else log

    @property
    def host(self) -> str:
        """Where it ran."""
        return self.folder.name.rpartition("-")[0]

    @property
    def kept_at(self) -> float:
        """Seconds since the epoch."""
        return self.folder.stat().st_mtime


def folder() -> Path | None:
    """Where runs are kept: MUSTER_RUNS, else below the user's state folder ($XDG_STATE_HOME, ~/.local/state); None:
    nowhere."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named).absolute() if named else None
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    return Path(state, "muster", "runs") if os.path.isabs(state) else None


def find(job_id: str) -> KeptRun | None:
    """The run of this job on this node, or else the one on another that was kept last."""
    runs = folder()
    if runs is None or not job_id or job_id != os.path.basename(job_id) or job_id.startswith("."):
        return None
    here = socket.gethostname()
    try:
        found = [KeptRun(entry, job_id) for entry in (runs / job_id).iterdir() if (entry / "state").is_dir()]
        return max(found, key=lambda run: (run.host == here, run.kept_at), default=None)
    except OSError:
        return None


def keep(root: Root, *, logs_stay: bool, succeeded: bool) -> KeptRun | None:
    """Keeps the job of a daemon that has ended; None where none has ended, or there is no folder to keep it in. Raises
    OSError where it cannot be written (then nothing of it is left), SupervisionError for a damaged journal.

    `logs_stay`: the logs lie in a folder of the user's. Logs of more than this node's share of LOG_BYTES are only
    linked to, and not kept if the job `succeeded` and they do not stay. Raises ValueError or
    TypeError for a damaged spec.
    """
    # Those commands that only look for a run do without.
    from muster.supervisors.model import journal
    from muster.supervisors.model.replay import replay
    from muster.supervisors.model.spec import FIELDS, JobSpec

    runs = folder()
    entry = next((path for path in root.jobs.iterdir() if not path.name.startswith(".")), None)
    if runs is None or entry is None:
        return None
    paths = JobPaths(entry)
    if not replay(journal.read(paths.journal).records).state.final:
        return None  # its ranks may still run: who shows it would take it over
    spec = JobSpec.from_json(paths.spec.read_text("utf-8"))
    run = KeptRun(runs / entry.name / f"{socket.gethostname()}-{spec.node_rank}", entry.name)
    runs.mkdir(0o700, parents=True, exist_ok=True)
    new = runs / f".{entry.name}-{socket.gethostname()}-{os.getpid()}.new"
    try:
        new.mkdir(0o700)
        _copy(_files(root.state, _LEFT_OUT), root.state, new / "state")
        # The environment has the caller's secrets: its values do not outlive the run. And a daemon that shows the run
        # must post nothing.
        hidden = {f.name: f.hide(getattr(spec, f.name)) for f in FIELDS.values() if f.hide and getattr(spec, f.name)}
        hidden |= {"notify_webhook": "", "notify_events": (), "notify_secret": ""}
        JobPaths(new / "state" / "jobs" / entry.name).spec.write_text(replace(spec, **hidden).to_json(), "utf-8")
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(root.state.parent / "musterd.log", new)
        mine = list(logs_of(root.log, entry.name if logs_stay else ""))
        if sum(map(_size, mine)) <= LOG_BYTES // max(1, spec.node_count):
            _copy(mine, root.log, new / "log")
        elif logs_stay or not succeeded:
            (new / "log").symlink_to(root.log.resolve(), target_is_directory=True)
        shutil.rmtree(run.folder, ignore_errors=True)
        run.folder.parent.mkdir(0o700, exist_ok=True)
        new.rename(run.folder)
        os.utime(run.folder.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    _forget(runs, entry.name)
    return run


def _copy(files: Iterable[Path], beginning: Path, into: Path) -> None:
    into.mkdir(0o700)
    for path in files:
        to = into / path.relative_to(beginning)
        to.parent.mkdir(0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another node tidies the same log folder
            shutil.copy2(path, to, follow_symlinks=False)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def _files(folder: Path, left_out: Collection[str] = ()) -> Iterator[Path]:
    """The files and links below it, but for these names. Of the logs nothing is left out: they are removed then."""
    for within, names, files in os.walk(folder):
        links = [name for name in names if Path(within, name).is_symlink()]
        names[:] = [name for name in names if name not in left_out]
        for name in files + links:
            path = Path(within, name)
            if name not in left_out and (path.is_symlink() or path.is_file()):
                yield path


def logs_of(log: Path, job_id: str) -> Iterator[Path]:
    """The logs of this job, in a folder that others use, too; all with an empty id."""
    from muster.supervisors.output.log_names import parsed

    for path in _files(log):
        top = path.relative_to(log).parts[0]
        name = parsed(top)
        if not job_id or top in (job_id, job_id + OWN_LOGS) or (name is not None and name.job_id == job_id):
            yield path


def _forget(runs: Path, newest: str) -> None:
    """Removes the oldest jobs above JOBS, and what nobody finished to write. Best effort: others may do so, too."""
    ages: list[tuple[float, Path]] = []
    for path in runs.iterdir():
        with contextlib.suppress(OSError):
            at = path.stat().st_mtime
            if path.name.startswith("."):
                if time.time() - at > _UNFINISHED_S:
                    shutil.rmtree(path, ignore_errors=True)
            elif path.name != newest:
                ages.append((at, path))
    for _, path in sorted(ages, reverse=True)[JOBS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
