"""What runs beside the ranks of a job, from its spec: each service's name and its command line, for the record
`accepted`."""

import os
import shlex
import sys
from collections.abc import Sequence

from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.paths import JobPaths

#: Characters of a name at most.
_MAX_NAME = 40


#: The name of the sshd that muster starts for an MPI job.
SSHD = "sshd of muster"


def of(spec: JobSpec, paths: JobPaths, mpi_sshd: str) -> Record:
    """For the record `accepted`: name and words of each service, in the order of the spec; then, of an MPI job of
    several nodes, its sshd. `mpi_sshd`: the setting, "auto", "always" or "never"."""
    found = [[_name(text), ["/bin/sh", "-c", text]] for text in spec.services]
    wanted = mpi_sshd == "always" or (mpi_sshd == "auto" and modelarts.in_container(spec.env))
    if spec.boot == Boot.MPI and spec.node_count > 1 and wanted:
        program = (sys.executable, "-I", "-m", "muster.supervisors.launch.mpi.mpi_sshd", "--folder", str(paths.sshd))
        found.append([SSHD, list(program)])
    return {"services": found} if found else {}


def has_sshd(services: Sequence[Rank]) -> bool:
    """Whether muster starts one."""
    return any(service.role == SSHD for service in services)


def _name(text: str) -> str:
    """The program's: the first word that sets no variable, without its folder."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    program = next((word for word in words if "=" not in word and word != "exec"), "")
    return (os.path.basename(program) or "sh")[:_MAX_NAME]
