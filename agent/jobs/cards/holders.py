"""Identifies the processes that a card's driver names."""

import contextlib
import os
import pwd

from muster.probes.kernel import marks, process
from muster.probes.kernel.dataclass import dataclass

_JOB_VARIABLE = marks.mark(marks.JOB_ID)


@dataclass(frozen=True, slots=True)
class Who:
    """A process. `start` in clock ticks after boot; 0, and all else empty, if the pid is unknown here: it has exited,
    or is in another PID namespace. `command` is the program's name alone, because arguments may be secrets. `job_id`
    comes from its environment, if that is readable."""

    pid: int
    start: int = 0
    command: str = ""
    user: str = ""
    job_id: str = ""

    def __str__(self) -> str:
        if not self.start:
            return f"process {self.pid} (not visible from here: it has exited, or is in another PID namespace)"
        whose = f"of job {self.job_id}" if self.job_id else "of no job"
        return f"process {self.pid} ({self.command}) of user {self.user}, {whose}"


def who(pid: int) -> Who:
    """Looks a process up. Blocks for a moment, as reading /proc does."""
    stat = process.read_stat(pid)
    if stat is None:
        return Who(pid)
    user = ""
    with contextlib.suppress(OSError):
        uid = os.stat(f"/proc/{pid}").st_uid
        user = str(uid)
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(uid).pw_name
    return Who(pid, stat.start, stat.comm, user, _job_of(pid))


def _job_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        for variable in process.environ(pid):
            if variable.startswith(_JOB_VARIABLE):
                return variable[len(_JOB_VARIABLE) :].decode("ascii", "replace")
    return ""
