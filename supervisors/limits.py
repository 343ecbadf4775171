"""Descriptors: nursery and supervisors take all they may have (a rank costs a supervisor four); ranks get what was
given."""

import contextlib
import os
import resource

from supervisors.spec import UNLIMITED

#: The soft limit that the nursery was started with, and the hard one; None until it was raised.
_given: int | None = None
_hard: int | None = None


def raise_descriptors(given: int | None = None) -> None:
    """To the hard limit. Remembers the limit that ranks are to have: `given`, or our own of before."""
    global _given, _hard
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _given, _hard = soft if given is None else given, hard
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def raise_again() -> None:
    """In a supervisor to be: what somebody has lowered of the nursery since (prlimit) is not for its supervisors. As
    far as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard if _hard is None else _hard, hard):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return


def restore_descriptors() -> None:
    """In a rank to be."""
    if _given is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_given, hard))


#: Limits of a process by their names in a spec; bytes, but for counts of files and processes.
RESOURCES = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
    "nproc": resource.RLIMIT_NPROC,
}


def apply(limits: tuple[tuple[str, int], ...]) -> None:
    """In a rank to be, as the daemon's user. Raises ValueError that names the limit which this user may not set."""
    for name, value in limits:
        number = RESOURCES[name]
        wanted = resource.RLIM_INFINITY if value == UNLIMITED else value
        try:
            resource.setrlimit(number, (wanted, wanted))
        except (ValueError, OSError) as error:
            _, hard = resource.getrlimit(number)
            allowed = "unlimited" if hard == resource.RLIM_INFINITY else hard
            raise ValueError(f"{name} {value}: {error}; the daemon's own hard limit is {allowed}") from None


def close_all_but(kept: set[int]) -> None:
    """Closes every descriptor that is open and not named. By what is there: the limit may be a billion."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
