"""Steps of a process for which Python has no function: mounts, capabilities, the filter of system calls. As in
muster-spawn.c, by the C library. Each raises OSError.
"""

import contextlib
import ctypes
import errno
import os

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 0x20, 0x1000, 0x4000, 0x80000
_CLONE_NEWNS = 0x20000
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 22, 24, 38, 47
_AMBIENT_CLEAR_ALL, _MODE_FILTER = 4, 2
#: Of capget(2): numbers of 64 bits, as two halves.
_VERSION_3 = 0x20080522


def leave_mounts() -> None:
    """Mounts of its own, to which those of the node come, and from which none goes there."""
    _call("unshare", ctypes.c_int(_CLONE_NEWNS))
    _mount(None, "/", _MS_REC | _MS_SLAVE)


def bind(source: str, target: str) -> None:
    """Shows one folder or file at the place of another, with all that is mounted below."""
    _mount(source, target, _MS_BIND | _MS_REC)


def make_read_only(path: str, options: int, within: int) -> None:
    """`path` of a mount, which keeps its `options`. One `within` another may have been unmounted meanwhile."""
    try:
        _mount(None, path, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | options)
    except OSError as error:
        if not within or error.errno not in (errno.ENOENT, errno.EINVAL):
            raise


def bound(*dropped: int) -> None:
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


def forbid_privileges() -> None:
    """No program gains privileges by its file any more."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def filter_calls(code: bytes) -> None:
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
