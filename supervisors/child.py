"""The birth of a rank: fork, wait at the gate, become the job's user, execute.

All children of a gang wait at one gate, a pipe. The supervisor first writes their pids into the journal and then opens
the gate for all by one write. Should it die before that, the children see the pipe's end, say so in the `unborn` file
and leave: what ran is in the journal, and what is not in the journal never ran.
"""

import contextlib
import json
import os
import pwd
import re
import signal
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from supervisors import limits
from supervisors.errors import NotStartable
from supervisors.journal import set_aside
from supervisors.lifecycle import Job, Rank
from supervisors.paths import Root
from supervisors.spec import JobSpec

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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
        """Looks `user` (a name, a number, or empty for our own) up. Raises NotStartable for one that does not exist."""
        number = os.geteuid() if not user else int(user) if _NUMBER.fullmatch(user) else None
        if number is not None and number > _MAX_ID:
            raise NotStartable(f"user {user}: the largest number of a user is {_MAX_ID}")
        try:
            entry = pwd.getpwnam(user) if number is None else pwd.getpwuid(number)
        except (KeyError, ValueError):
            if number is None:
                raise NotStartable(f"user {user!r} does not exist on this node") from None
            return cls(str(number), number, number if user else os.getegid(), "/", "/bin/sh")
        # Our own user is as it is, whatever its entry says of groups (a container's uid 1000, gid 0).
        gid = entry.pw_gid if user else os.getegid()
        return cls(entry.pw_name, entry.pw_uid, gid, entry.pw_dir, entry.pw_shell)


def nonce(root: Root, job_id: str, job: Job) -> str:
    """Tells this very job from one of the same name, of another daemon or another time, in a process' environment."""
    return f"{zlib.crc32(os.fsencode(root.state)):08x}-{zlib.crc32(job_id.encode()):08x}-{job.accepted_at!r}"


def environment(root: Root, spec: JobSpec, job: Job, rank: Rank, account: Account) -> dict[str, str]:
    """What a rank is given: a small default, the spec's variables, then those that say which rank it is.

    The names are PyTorch's (env:// rendezvous), CUDA's, CANN's and, on Ascend, those of ModelArts' launcher.
    """
    local = len(job.ranks)
    env = {
        "PATH": DEFAULT_PATH,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell or "/bin/sh",
        "LANG": "C.UTF-8",
    }
    env |= spec.env
    env |= {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(spec.node_count * local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(spec.node_rank),
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(job.master_port),
        "TORCHELASTIC_RUN_ID": spec.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(job.attempt),
        "MUSTER_JOB_ID": spec.job_id,
        "MUSTER_ATTEMPT": str(job.attempt),
        "MUSTER_NONCE": nonce(root, spec.job_id, job),
    }
    if spec.wants_cards:
        cards = ",".join(str(r.device) for r in job.ranks)
        if job.card_kind == "nvidia":
            env["CUDA_VISIBLE_DEVICES"] = cards
        elif job.card_kind == "ascend":
            env["ASCEND_RT_VISIBLE_DEVICES"] = cards
            env |= _ascend(root, spec, job, rank, env)
    return env


def _ascend(root: Root, spec: JobSpec, job: Job, rank: Rank, env: dict[str, str]) -> dict[str, str]:
    """The variables that ModelArts' launcher sets per process."""
    plog = root.log / spec.job_id / "ascend" / "process_log" / f"rank_{rank.rank}"
    return {
        "JOB_ID": env.get("MA_VJ_NAME", spec.job_id).replace("ma-job", "modelarts-job", 1),
        "ASCEND_DEVICE_ID": str(rank.local_rank),
        "DEVICE_ID": str(rank.local_rank),
        "RANK_ID": str(rank.rank),
        "RANK_SIZE": str(spec.node_count * len(job.ranks)),
        "HCCL_CONNECT_TIMEOUT": env.get("HCCL_CONNECT_TIMEOUT", "1800"),
        "ASCEND_PROCESS_LOG_PATH": env.get("ASCEND_PROCESS_LOG_PATH", str(plog)),
    }


@dataclass(frozen=True, slots=True)
class Birth:
    """All that a child needs to become a rank."""

    rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    fifo: Path
    cgroup: str
    account: Account


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """To fork in: a signal that comes before the child is a program of its own must wait, and not fall to our own
    disposition. The child unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(birth: Birth, gate_read: int, gate_write: int, unborn: int) -> int:
    """Forks the child and returns its pid; to be called with `signals_blocked`. The child never returns.

    Raises OSError (EAGAIN: limit on processes).
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        _live(birth, gate_read, gate_write, unborn)
    except BaseException as error:
        _give_up(birth, unborn, "defect", 0, f"{type(error).__name__}: {error}")


def _live(birth: Birth, gate_read: int, gate_write: int, unborn: int) -> NoReturn:
    os.close(gate_write)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        # What is handled falls back to its default with the exec; what is ignored would stay so.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open("/dev/null", os.O_RDONLY)
    out = os.open(birth.fifo, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    _write_into(f"{birth.cgroup}/cgroup.procs" if birth.cgroup else "", "0")
    _write_into("/proc/self/oom_score_adj", "0")
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:  # what lets muster answer on a busy node is not for the ranks
        os.setpriority(os.PRIO_PROCESS, 0, 0)

    if os.read(gate_read, 1) != b"1":
        _give_up(birth, unborn, GATE_CLOSED, 0, "the supervisor died before the ranks were let go")

    step: Callable[[], Any]
    for name, step in (
        (f"become user {birth.account.name}", lambda: _become(birth.account)),
        (f"enter the working folder {birth.workdir}", lambda: os.chdir(birth.workdir)),
    ):
        try:
            step()
        except OSError as error:
            _give_up(birth, unborn, "prepare", error.errno or 0, f"cannot {name}: {error.strerror}")
    limits.restore_descriptors()
    try:
        os.execvpe(birth.argv[0], birth.argv, birth.env)
    except OSError as error:
        _give_up(birth, unborn, "exec", error.errno or 0, error.strerror or str(error))


def _become(account: Account) -> None:
    os.umask(0o022)
    if account.uid != os.geteuid() or account.gid != os.getegid():
        os.initgroups(account.name, account.gid)
        os.setgid(account.gid)
        os.setuid(account.uid)


def _write_into(path: str, text: str) -> None:
    """Best effort: without a cgroup there are the process groups, and oom_score_adj may not be ours to lower."""
    if not path:
        return
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, text.encode())
        os.close(fd)


def _give_up(birth: Birth, unborn: int, reason: str, number: int, text: str) -> NoReturn:
    """Says why in one write of less than PIPE_BUF, so that lines of several children do not mix."""
    line = {"rank": birth.rank, "pid": os.getpid(), "reason": reason, "errno": number, "text": text[:512]}
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
    """Lines of the `unborn` file by pid. A torn line is passed over; no file means nobody was unborn."""
    found: dict[int, dict[str, Any]] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                found[int(entry["pid"])] = entry
    return found


def explain_exec(argv0: str, entry: dict[str, Any]) -> str:
    """A sentence on why a command could not be executed."""
    number = entry.get("errno", 0)
    if entry.get("reason") == "exec":
        if number in (2, 20):
            if os.path.isabs(argv0) and os.path.exists(argv0):
                return f"{argv0}: the file is there, but the interpreter or loader that it names is not"
            return f"{argv0}: not found" + ("" if "/" in argv0 else " in the PATH of the job's environment")
        if number == 13:
            return f"{argv0}: not executable (permission denied)"
        if number == 8:
            return f"{argv0}: not executable (no program, and no #! line)"
        return f"{argv0}: cannot be executed: {entry.get('text')}"
    return str(entry.get("text"))
