"""What a process is given at its start, and the line about one that never became a rank.

All processes of a gang wait at one gate, a pipe. The supervisor first writes their pids into the journal and then opens
the gate for all by one write. If it dies before that, the processes see the end of the pipe, note it in the `unborn`
file and exit. So everything that ran is in the journal, and what is not in the journal never ran. How they are created:
creation/.
"""

import contextlib
import json
import os
import pwd
import re
from pathlib import Path
from typing import Any, NoReturn

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.modes import boot
from muster.supervisors.model.journal import set_aside
from muster.supervisors.supervision_errors import NotStartable

#: Of a command that is not executable, and of one that is not found (docker, POSIX shells).
NOT_EXECUTABLE, NOT_FOUND = 126, 127
#: Of a child that never became a rank; never taken for a rank's own code, the `unborn` file tells them apart.
_UNBORN = 125
_NUMBER = re.compile(r"[0-9]{1,12}")
#: The last one, 2**32 - 1, means "unchanged" to setuid(2).
_MAX_ID = 2**32 - 2
#: Reasons of a process that gave up: the gate never opened, a step failed, the command could not be executed.
GATE_CLOSED, PREPARE, EXEC = "gate", "prepare", "exec"
#: Exit codes for which it is worth a look into the `unborn` file.
GIVEN_UP = (_UNBORN, NOT_EXECUTABLE, NOT_FOUND)


DEFAULT_UMASK = 0o022


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a job runs as."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str

    @classmethod
    def of(cls, user: str) -> "Account":
        """Looks `user` (a name, a number, or empty for our own) up. Raises NotStartable for an unknown user."""
        number = os.geteuid() if not user else int(user) if _NUMBER.fullmatch(user) else None
        if number is not None and number > _MAX_ID:
            raise NotStartable(f"user {user}: a user's number is at most {_MAX_ID}")
        try:
            entry = pwd.getpwnam(user) if number is None else pwd.getpwuid(number)
        except (KeyError, ValueError):
            if number is None:
                text = f"user {user!r} does not exist on this node: create it, or name another user"
                raise NotStartable(text) from None
            return cls(str(number), number, number if user else os.getegid(), "/", "/bin/sh")
        # Our own user is as it is, whatever its entry says of groups (a container's uid 1000, gid 0).
        gid = entry.pw_gid if user else os.getegid()
        return cls(entry.pw_name, entry.pw_uid, gid, entry.pw_dir, entry.pw_shell)


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a process may not do from its command on; see launch/hardening/.

    `binds`: what is mounted where; `read_only`: path of a mount, its options (MS_*), whether it is below another one;
    `dropped`: numbers of the capabilities that no program may have; `filter`: of system calls, classic BPF.
    """

    binds: tuple[tuple[str, str], ...] = ()
    read_only: tuple[tuple[str, int, int], ...] = ()
    dropped: tuple[int, ...] = ()
    no_new_privs: bool = False
    filter: bytes = b""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """All that a child needs to become a rank."""

    rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    fifo: Path
    cgroup: str
    account: Account
    #: Made as the job's user right before the command, each if it is not there: folders, and files with their text.
    folders: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    #: setrlimit(2)'s soft and hard value by name; see limits.py.
    limits: tuple[tuple[str, int], ...] = ()
    umask: int = DEFAULT_UMASK
    nice: int = 0
    #: CPUs to be bound to; empty: none.
    cpus: frozenset[int] = frozenset()
    #: Descriptors of stdin, stdout and stderr in the place of the FIFO; a terminal is to be the controlling one.
    stdio: tuple[int, int, int] | None = None
    tty: bool = False
    #: Folders of cgroup v1 to enter.
    v1_cgroups: tuple[str, ...] = ()
    confinement: Confinement = Confinement()
    #: Whether the program muster-spawn is to create it; else the supervisor forks.
    by_program: bool = True


def give_up(spec: ProcessSpec, unborn: int, reason: str, number: int, cannot: str, text: str = "") -> NoReturn:
    """Says why in one write of less than PIPE_BUF, so that lines of several processes do not mix (muster-spawn.c, too).
    `cannot`: see `StartStep`; `text`: a sentence in its place."""
    line: dict[str, Any] = {"rank": spec.rank, "pid": os.getpid(), "reason": reason, "errno": number}
    line |= {"text": text[:512]} if text else {"cannot": cannot[:512]}
    with contextlib.suppress(OSError):
        os.write(unborn, json.dumps(line).encode() + b"\n")
    os._exit({2: NOT_FOUND, 20: NOT_FOUND}.get(number, NOT_EXECUTABLE) if reason == EXEC else _UNBORN)


def open_unborn(path: Path, ranks: int) -> int:
    """The file for the lines of children that give up, emptied, with room for one line of each. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        set_aside(fd, ranks * 1024)
    except OSError:
        os.close(fd)
        raise
    return fd


def read_unborn(path: Path) -> dict[int, dict[str, Any]]:
    """Lines of the `unborn` file by pid. Skips a torn line; without the file, no child gave up."""
    found: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                found[int(entry["pid"])] = entry
    return found


def read_unborn_line(fd: int) -> dict[str, Any] | None:
    """The error that a failed child wrote into its pipe; None if it did not fail."""
    with contextlib.suppress(OSError, ValueError):
        entry = json.loads(os.read(fd, 4096))
        return entry if isinstance(entry, dict) else None
    return None


def explain_exec(argv0: str, entry: dict[str, Any]) -> str:
    """A sentence on why a command could not be executed."""
    number = entry.get("errno", 0)
    if entry.get("reason") == EXEC:
        if number in (2, 20):
            if os.path.isabs(argv0) and os.path.exists(argv0):
                return f"{argv0}: the file exists, but the interpreter or loader that it names does not"
            remedy = boot.package_of(os.path.basename(argv0))
            return (
                f"{argv0}: not found"
                + ("" if "/" in argv0 else " in the PATH of the job's environment")
                + (f": {remedy}" if remedy else "")
            )
        if number == 13:
            return f"{argv0}: not executable (permission denied)"
        if number == 8:
            return f"{argv0}: not executable (not a program, and no #! line)"
        return f"{argv0}: cannot be executed: {os.strerror(number)}"
    if entry.get("reason") == GATE_CLOSED:
        return "the supervisor died before it started the ranks"
    if "cannot" in entry:
        return f"cannot {entry['cannot']}: {os.strerror(number)}"
    return str(entry.get("text"))
