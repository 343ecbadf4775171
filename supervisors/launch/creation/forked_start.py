"""Creates a process by a fork of the supervisor, and carries out its steps in Python: where there is no program
`muster-spawn`, or it cannot be used."""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import termios
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from muster.supervisors.launch import child
from muster.supervisors.launch.child import ProcessSpec
from muster.supervisors.launch.creation.start_steps import Op, StartStep
from muster.supervisors.system import lock

_SIGNALS = signal.valid_signals()
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 0x20, 0x1000, 0x4000, 0x80000
_CLONE_NEWNS = 0x20000
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 22, 24, 38, 47
_AMBIENT_CLEAR_ALL, _MODE_FILTER = 4, 2
#: Of capget(2): numbers of 64 bits, as two halves.
_VERSION_3 = 0x20080522


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """To fork in: a signal that comes before the child is a program of its own must wait, and not fall to our own
    disposition. The child unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(spec: ProcessSpec, steps: Sequence[StartStep], gate_read: int, gate_write: int, unborn: int) -> int:
    """Forks the child and returns its pid; to be called with `signals_blocked`. The child never returns.

    Raises OSError (EAGAIN: limit on processes).
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(gate_write)
        lock.close_inherited()
        signal.set_wakeup_fd(-1)
        _live(spec, steps, gate_read, unborn)
    except BaseException as error:
        child.give_up(spec, unborn, "defect", 0, "", f"{type(error).__name__}: {error}")


def _live(spec: ProcessSpec, steps: Sequence[StartStep], gate: int, unborn: int) -> NoReturn:
    for step in steps:
        try:
            if step.op is Op.GATE:
                if os.read(gate, 1) != b"1":
                    child.give_up(spec, unborn, child.GATE_CLOSED, 0, step.cannot)
            else:
                _ACTIONS[step.op](*step.values)
        except OSError as error:
            if step.cannot:
                reason = child.EXEC if step.op is Op.EXEC else child.PREPARE
                child.give_up(spec, unborn, reason, error.errno or 0, step.cannot)
        except ValueError as error:  # of a value that no call takes
            child.give_up(spec, unborn, child.PREPARE, 0, "", f"cannot {step.cannot}: {error}")
    raise AssertionError("the last step executes the command")


def _begin_session() -> None:
    os.setsid()
    for number in range(1, signal.NSIG):
        # What is ignored would stay so over the exec; what is handled would be lost on its way there.
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _open_output(fifo: str) -> None:
    out = os.open(fifo, os.O_RDWR)
    _take_streams(os.open("/dev/null", os.O_RDONLY), out, out)


def _take_streams(*fds: int) -> None:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)


def _enter_cgroup(cgroup: str) -> None:
    try:
        _write_into(f"{cgroup}/cgroup.procs", "0")
    except OSError:
        # A job of root that handed controllers down has processes in leaves only (EBUSY).
        with contextlib.suppress(OSError):
            os.mkdir(f"{cgroup}/beside")
        _write_into(f"{cgroup}/beside/cgroup.procs", "0")


def _write_into(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _become(uid: int, gid: int, *groups: int) -> None:
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)


def _make_folder(path: str) -> None:
    os.makedirs(path, exist_ok=True)


def _make_file(path: str, text: str) -> None:
    """Several ranks may do so at the same time: a file is there whole or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = f"{path}.{os.getpid()}"
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, path)


def _execute(candidates: tuple[str, ...], argv: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    """As a shell tries the folders of PATH: the first error counts that is not "there is none"."""
    first: OSError | None = None
    last: OSError | None = None
    for path in candidates:
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            last = error
        except OSError as error:
            first = first or error
    raise first or last or AssertionError("no candidate")


def _set_limit(number: int, soft: int, hard: int) -> None:
    try:
        resource.setrlimit(number, (soft, hard))
    except ValueError:  # what Python makes of EPERM
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None


# --- what Python has no function for: by the C library, as in muster-spawn.c; each raises OSError ---------------------


def _leave_mounts() -> None:
    """Mounts of its own, to which those of the node come, and from which none goes there."""
    _call("unshare", ctypes.c_int(_CLONE_NEWNS))
    _mount(None, "/", _MS_REC | _MS_SLAVE)


def _bind(source: str, target: str) -> None:
    """Shows one folder or file at the place of another, with all that is mounted below."""
    _mount(source, target, _MS_BIND | _MS_REC)


def _make_read_only(path: str, options: int, within: int) -> None:
    """`path` of a mount, which keeps its `options`. One `within` another may have been unmounted meanwhile."""
    try:
        _mount(None, path, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | options)
    except OSError as error:
        if not within or error.errno not in (errno.ENOENT, errno.EINVAL):
            raise


def _bound(*dropped: int) -> None:
    """Takes capabilities out of the bounding set, the inheritable and the ambient one; those in force stay."""
    for number in dropped:
        _prctl(_PR_CAPBSET_DROP, number)
    with contextlib.suppress(OSError):  # Linux before 4.3
        _prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; the same of the upper half
    _call("capget", header, sets)
    for number in dropped:
        sets[2 + 3 * (number // 32 % 2)] &= ~(1 << number % 32)
    _call("capset", header, sets)


def _forbid_privileges() -> None:
    """No program gains privileges by its file any more."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _filter_calls(code: bytes) -> None:
    """Classic BPF, an array of struct sock_filter."""
    program = ctypes.create_string_buffer(code, len(code))
    head = (ctypes.c_uint64 * 2)(len(code) // 8, ctypes.addressof(program))  # struct sock_fprog
    _prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(head))


def _mount(source: str | None, target: str, flags: int) -> None:
    what = None if source is None else os.fsencode(source)
    _call("mount", what, os.fsencode(target), None, ctypes.c_ulong(flags), None)


def _prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(number) for number in (*arguments, 0, 0, 0, 0)[:4]]
    _call("prctl", ctypes.c_int(option), *words)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_ACTIONS: dict[Op, Callable[..., Any]] = {
    Op.SESSION: _begin_session,
    Op.OUTPUT: _open_output,
    Op.STREAMS: _take_streams,
    Op.TERMINAL: lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    Op.CGROUP: _enter_cgroup,
    Op.WRITE: _write_into,
    Op.LIMIT: _set_limit,
    Op.CPUS: lambda *cpus: os.sched_setaffinity(0, cpus),
    Op.NICE: lambda nice: os.setpriority(os.PRIO_PROCESS, 0, nice),
    Op.UMASK: os.umask,
    Op.USER: _become,
    Op.FOLDER: _make_folder,
    Op.FILE: _make_file,
    Op.CHDIR: os.chdir,
    Op.EXEC: _execute,
    Op.OWN_MOUNTS: _leave_mounts,
    Op.BIND: _bind,
    Op.READ_ONLY: _make_read_only,
    Op.BOUNDING_SET: _bound,
    Op.NO_NEW_PRIVS: _forbid_privileges,
    Op.SECCOMP: _filter_calls,
}
