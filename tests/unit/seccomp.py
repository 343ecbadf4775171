"""System calls that fail: a seccomp filter for this process and all that it starts, from now on."""

import ctypes
import errno
import os
import platform
import struct

import pytest

#: Numbers on x86-64.
CALLS = {
    "dup2": 33, "clone": 56, "chdir": 80, "rename": 82, "mkdir": 83, "setuid": 105, "setgid": 106, "setsid": 112,
    "setgroups": 116, "setpriority": 141, "sched_setaffinity": 203, "openat": 257, "mkdirat": 258, "renameat": 264,
    "dup3": 292, "prlimit64": 302, "setrlimit": 160, "clone3": 435, "close_range": 436, "memfd_create": 319,
    "pidfd_open": 434, "ioctl": 16, "capset": 126, "prctl": 157, "mount": 165, "unshare": 272,
}  # fmt: skip
CLONE_PARENT = 0x8000
needs_seccomp = pytest.mark.skipif(platform.machine() != "x86_64", reason="its numbers are those of x86-64")

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def refuse(number: int, *calls: str, argument: int = 0, bits: int = 0) -> None:
    """They fail with errno `number`; `bits`: only if that argument has one of them. Not to be undone."""
    code = []
    for call in calls:
        if bits:
            code += [
                (_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 3, CALLS[call]),
                (_LOAD, 0, 0, 16 + 8 * argument), (_JUMP_IF_ANY, 0, 1, bits), (_RETURN, 0, 0, _ERRNO | number),
            ]  # fmt: skip
        else:
            code += [(_LOAD, 0, 0, 0), (_JUMP_IF_EQUAL, 0, 1, CALLS[call]), (_RETURN, 0, 0, _ERRNO | number)]
    code.append((_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    # With privileges it needs no PR_SET_NO_NEW_PRIVS, which would outlast a change of user.
    if os.geteuid() != 0 and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(head), 0, 0) != 0:
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.EACCES):
            pytest.skip("this kernel has no seccomp filters")
        raise OSError(number, "prctl(PR_SET_SECCOMP)")
