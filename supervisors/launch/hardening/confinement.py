"""What each process of a job is given to make it what the daemon decided."""

import sys

from muster.supervisors.launch.child import Confinement
from muster.supervisors.launch.hardening import mounts, private_tmp
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.rules import capabilities
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.system import trust

#: As much of a job's id as is in the names of its folders in /tmp.
_ID = 64


def tmp_name(job_id: str, job: Job) -> str:
    """What the folders of a job's own /tmp are called."""
    return f"muster-{job_id[:_ID]}-{job.hardening.private_tmp}"


def of(root: Root, job_id: str, job: Job, workdir: str) -> Confinement:
    """For processes of this job with this working folder; makes what they need. Raises OSError, NotStartable."""
    hardening = job.hardening
    paths = root.job(job_id)
    binds, read_only = _mounts(root, paths, job_id, job, workdir) if hardening.has_mounts else ((), ())
    return Confinement(
        binds=binds,
        read_only=read_only,
        dropped=() if hardening.capabilities is None else capabilities.dropped(hardening.capabilities),
        no_new_privs=hardening.no_new_privs,
        filter=trust.read(paths.seccomp) if hardening.seccomp else b"",
    )


def _mounts(
    root: Root, paths: JobPaths, job_id: str, job: Job, workdir: str
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, int, int], ...]]:
    """The job writes into its own folder (the ranks' working folders, packages, exports) and into that of logs,
    whatever is private or read-only. Behind a private /tmp it also sees the working folder that its spec names, and the
    interpreter of launchers."""
    writable = [str(paths.folder), str(root.log)]
    binds: list[tuple[str, str]] = []
    own: list[str] = []
    if job.hardening.private_tmp:
        seen = dict.fromkeys([*writable, *([workdir] if workdir else []), sys.prefix])
        binds = private_tmp.make(tmp_name(job_id, job), _outermost(seen))
        own = private_tmp.places()
    more, read_only = mounts.read_only(job.hardening.read_only, writable, own, mounts.read())
    return (*binds, *more), tuple(read_only)


def _outermost(paths: dict[str, None]) -> list[str]:
    """Without those that are in another one of them."""
    return [path for path in paths if not any(path != other and mounts.is_below(path, other) for other in paths)]
