"""The restrictions that each process of a job gets, as the daemon decided them."""

import os

from muster.supervisors.launch.child import Confinement
from muster.supervisors.launch.hardening import mounts, private_tmp
from muster.supervisors.model.hardening import is_below
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.rules import capabilities
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.system import trust


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
    interpreter of launchers. All paths are without links, as those of mounts are."""
    hardening = job.hardening
    writable = [os.path.realpath(paths.folder), os.path.realpath(root.log)]
    binds: list[tuple[str, str]] = []
    view = mounts.MountView(writable)
    named = list(hardening.read_only)
    if hardening.private_tmp:
        shown = private_tmp.shown(workdir)
        places = private_tmp.places()
        binds = private_tmp.make(hardening.tmp_name(job_id), places, _outermost([*writable, *shown]), [workdir])
        named = private_tmp.in_view(named, shown)
        view = mounts.MountView(writable, places, [path for path in shown if private_tmp.place_of(path, places)])
    more, read_only = mounts.read_only(named, view, mounts.read())
    return (*binds, *more), tuple(read_only)


def _outermost(paths: list[str]) -> list[str]:
    """Each once, without those that are in another one of them."""
    once = dict.fromkeys(paths)
    return [path for path in once if not any(path != other and is_below(path, other) for other in once)]
