"""The start of a rank: fork, wait at the gate, become the job's user, execute.

All children of a gang wait at one gate, a pipe. The supervisor first writes their pids into the journal and then opens
the gate for all by one write. If it dies before that, the children see the end of the pipe, note it in the `unborn`
file and exit. So everything that ran is in the journal, and what is not in the journal never ran.
"""

import contextlib
import fcntl
import json
import os
import pwd
import re
import signal
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from muster.supervisors.launch import limits
from muster.supervisors.launch.modes import boot
from muster.supervisors.model.journal import set_aside
from muster.supervisors.supervision_errors import NotStartable
from muster.supervisors.system import descriptors, lock

#: Of a command that is not executable, and of one that is not found (docker, POSIX shells).
NOT_EXECUTABLE, NOT_FOUND = 126, 127
#: Of a child that never became a rank; never taken for a rank's own code, the `unborn` file tells them apart.
_UNBORN = 125
_SIGNALS = signal.valid_signals()
_NUMBER = re.compile(r"[0-9]{1,12}")
#: The last one, 2**32 - 1, means "unchanged" to setuid(2).
_MAX_ID = 2**32 - 2
GATE_CLOSED = "gate"
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
                raise NotStartable(f"user {user!r} does not exist on this node") from None
            return cls(str(number), number, number if user else os.getegid(), "/", "/bin/sh")
        # Our own user is as it is, whatever its entry says of groups (a container's uid 1000, gid 0).
        gid = entry.pw_gid if user else os.getegid()
        return cls(entry.pw_name, entry.pw_uid, gid, entry.pw_dir, entry.pw_shell)


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


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """To fork in: a signal that comes before the child is a program of its own must wait, and not fall to our own
    disposition. The child unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(spec: ProcessSpec, gate_read: int, gate_write: int, unborn: int) -> int:
    """Forks the child and returns its pid; to be called with `signals_blocked`. The child never returns.

    Raises OSError (EAGAIN: limit on processes).
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        _live(spec, gate_read, gate_write, unborn)
    except BaseException as error:
        _give_up(spec, unborn, "defect", 0, f"{type(error).__name__}: {error}")


def _live(spec: ProcessSpec, gate_read: int, gate_write: int, unborn: int) -> NoReturn:
    os.close(gate_write)
    lock.close_inherited()
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        # What is ignored would stay so over the exec; what is handled would be lost on its way there.
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number, fd in enumerate(spec.stdio or _rank_stdio(spec.fifo)):
        os.dup2(fd, number)
    if spec.tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if spec.cgroup and not _write_into(f"{spec.cgroup}/cgroup.procs", "0"):
        # A job of root that handed controllers down has processes in leaves only (EBUSY).
        with contextlib.suppress(OSError):
            os.mkdir(f"{spec.cgroup}/beside")
        _write_into(f"{spec.cgroup}/beside/cgroup.procs", "0")
    _write_into("/proc/self/oom_score_adj", "0")
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:  # what lets muster answer on a busy node is not for the ranks
        os.setpriority(os.PRIO_PROCESS, 0, 0)

    if os.read(gate_read, 1) != b"1":
        _give_up(spec, unborn, GATE_CLOSED, 0, "the supervisor died before it started the ranks")

    step: Callable[[], Any]
    descriptors.restore_limit()
    # Only what this job needs: each line here is run by every rank, on pages that it shares with us until then.
    for name, needed, step in (
        ("set its limits", spec.limits, lambda: limits.apply(spec.limits)),
        ("be bound to its CPUs", spec.cpus, lambda: os.sched_setaffinity(0, spec.cpus)),
        (f"take the priority {spec.nice}", spec.nice, lambda: os.setpriority(os.PRIO_PROCESS, 0, spec.nice)),
        (f"become user {spec.account.name}", True, lambda: _become(spec.account, spec.umask)),
        ("make its folders and files", spec.folders or spec.files, lambda: _furnish(spec.folders, spec.files)),
        (f"enter the working folder {spec.workdir}", True, lambda: os.chdir(spec.workdir)),
    ):
        try:
            if needed:
                step()
        except (OSError, ValueError) as error:
            number = error.errno or 0 if isinstance(error, OSError) else 0
            text = error.strerror if isinstance(error, OSError) else str(error)
            where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
            _give_up(spec, unborn, "prepare", number, f"cannot {name}{where}: {text}")
    try:
        os.execvpe(spec.argv[0], spec.argv, spec.env)
    except OSError as error:
        _give_up(spec, unborn, "exec", error.errno or 0, error.strerror or str(error))


def _rank_stdio(fifo: Path) -> tuple[int, int, int]:
    out = os.open(fifo, os.O_RDWR)
    return os.open("/dev/null", os.O_RDONLY), out, out


def _furnish(folders: tuple[str, ...], files: tuple[tuple[str, str], ...]) -> None:
    """Several ranks may do so at the same time: a file is there whole or not at all."""
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    for path, text in files:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        new = f"{path}.{os.getpid()}"
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, path)


def _become(account: Account, umask: int) -> None:
    os.umask(umask)
    if account.uid != os.geteuid() or account.gid != os.getegid():
        os.initgroups(account.name, account.gid)
        os.setgid(account.gid)
        os.setuid(account.uid)


def _write_into(path: str, text: str) -> bool:
    """Best effort: without a cgroup there are the process groups, and oom_score_adj may not be ours to lower."""
    try:
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError:
        return False
    return True


def _give_up(spec: ProcessSpec, unborn: int, reason: str, number: int, text: str) -> NoReturn:
    """Says why in one write of less than PIPE_BUF, so that lines of several children do not mix."""
    line = {"rank": spec.rank, "pid": os.getpid(), "reason": reason, "errno": number, "text": text[:512]}
    with contextlib.suppress(OSError):
        os.write(unborn, json.dumps(line).encode() + b"\n")
    os._exit({2: NOT_FOUND, 20: NOT_FOUND}.get(number, NOT_EXECUTABLE) if reason == "exec" else _UNBORN)


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
    if entry.get("reason") == "exec":
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
        return f"{argv0}: cannot be executed: {entry.get('text')}"
    return str(entry.get("text"))
