"""Where a command finds a job: at the daemon that the options name, at one that shows a kept standalone run, or in the
folders on this node."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.agent.cli.client import kept_runs
from muster.agent.cli.client.address import Address
from muster.agent.cli.client.calls import connect, get_job
from muster.agent.cli.client.kept_runs import KeptRun
from muster.agent.cli.exits import CallFailed, CommandFailed, Exit, NoDaemon
from muster.agent.cli.printing import note
from muster.agent.text import local
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where a job's records lie; `node`: on which node it ran, if that is not this one."""

    root: Root
    job_id: str
    node: str = ""


def on_disk(address: Address, job: str) -> JobPlace | None:
    """The folders of a job: of the daemon's node, of a kept run, or those that `job` names as a path; None: only the
    daemon may look. Raises CommandFailed where there are none."""
    if os.sep in job:
        return _named(Path(job))
    if address.path is None:
        return None
    from muster.supervisors.model.spec_fields import JOB_ID

    root = address.root
    if not JOB_ID.fullmatch(job):
        raise CommandFailed(f"job {job!r}: no job can have this name", Exit.NO_SUCH_JOB)
    refused = False
    try:
        os.lstat(root.job(job).folder)
        return JobPlace(root, job)
    except PermissionError:
        refused = True
    except OSError:
        pass
    if not address.explicit and (past := kept_runs.find(job)) is not None:
        return _kept(past)
    if refused:
        return None
    raise CommandFailed(f"job {job}: no such job in {root.jobs}, and no kept standalone run", Exit.NO_SUCH_JOB)


def _named(folder: Path) -> JobPlace:
    """Of `<state>/jobs/<id>`, of a kept run, or of a kept job with runs of several nodes. Raises CommandFailed."""
    folder = Path(os.path.abspath(folder))
    try:
        if (folder / "journal").exists() and folder.parent.name == "jobs":
            state = folder.parent.parent
            if (state.parent / "log").exists():
                return _kept(KeptRun(state.parent, folder.name), here=True)
            return JobPlace(Root.system() if state == Root.system().state else Root.under(state.parent), folder.name)
        runs = (
            [folder]
            if (folder / "state" / "jobs").is_dir()
            else [one for one in folder.iterdir() if (one / "state").is_dir()]
        )
        if runs:
            run = max(runs, key=lambda one: one.stat().st_mtime)
            jobs = [one.name for one in (run / "state" / "jobs").iterdir() if not one.name.startswith(".")]
            if len(jobs) == 1:
                return _kept(KeptRun(run, jobs[0]))
            raise CommandFailed(
                f"{run}: has {len(jobs)} jobs: name the folder of one, below {run}/state/jobs", Exit.USAGE
            )
    except PermissionError as error:
        raise CommandFailed(f"{error.filename}: permission denied: run `muster report` as the folder's owner") from None
    except (FileNotFoundError, NotADirectoryError):
        raise CommandFailed(f"{folder}: no such folder", Exit.NO_SUCH_JOB) from None
    except OSError as error:
        raise CommandFailed(f"{folder}: cannot be read: {error.strerror}") from None
    what = "is not the folder of a job, nor of a kept run: name STATE/jobs/ID, or the folder of a run"
    raise CommandFailed(f"{folder}: {what}", Exit.NO_SUCH_JOB)


def _kept(run: KeptRun, *, here: bool = False) -> JobPlace:
    root = Root(run=run.folder / "run", state=run.state, log=run.log)
    return JobPlace(root, run.job_id, "" if here else run.host)


@contextmanager
def knowing(address: Address, job_id: str) -> Iterator[Address]:
    """The address of a daemon that knows the job, for the length of the `with`; `address` if none does. Raises
    CommandFailed where a kept run cannot be shown."""
    past = None if address.explicit else kept_runs.find(job_id)
    if past is None or _knows(address, job_id):
        yield address
        return
    from muster.agent.cli.client import standalone

    note(f"{job_id} was a standalone run on {past.host}, kept at {local(past.kept_at)} in {past.folder}")
    with standalone.bring_back(past) as own:
        yield own


def _knows(address: Address, job_id: str) -> bool:
    """False where there is no daemon, or none that knows the job; of whatever else is wrong the command tells."""
    try:
        address.probe()
        with connect(address) as connection:
            get_job(connection, job_id)
    except NoDaemon:
        return False
    except CallFailed as failure:
        return failure.status != "NOT_FOUND"
    return True
