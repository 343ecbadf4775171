"""The kernel's keyring of a job (keyrings(7)): each job has its own session keyring.

A process inherits the session keyring over every change of user, and may read and change it. Without this module the
jobs of all users would share the keyring of the daemon's unit, with each other's Kerberos tickets.
"""

import ctypes
import os

#: keyctl(2) has no function in the C library.
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1


def begin_own() -> None:
    """Creates a session keyring for this process and its future children. Best effort: a kernel may have no
    keyrings."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)
