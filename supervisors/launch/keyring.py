"""The kernel's keys of a job (keyrings(7)): a session keyring of its own.

Whoever is started inherits the session keyring, over every change of user, and may read and change what is in it: the
jobs of all users would share the one of the daemon's unit, and a Kerberos ticket of one would be everybody's.
"""

import ctypes
import os

#: keyctl(2) has no function in the C library.
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1


def begin_own() -> None:
    """A new one, for this process and all that it starts from now on. Best effort: a kernel may have no keys."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)
