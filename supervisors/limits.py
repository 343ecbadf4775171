"""Descriptors: nursery and supervisors take all they may have (a rank costs a supervisor four); ranks get what was
given."""

import contextlib
import os
import resource

#: The soft limit that the nursery was started with; None until it was raised.
_given: int | None = None


def raise_descriptors() -> None:
    """To the hard limit. Remembers the limit that ranks are to have."""
    global _given  # noqa: PLW0603  (a property of the process, inherited by fork)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _given = soft
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_descriptors() -> None:
    """In a rank to be."""
    if _given is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_given, hard))


def close_all_but(kept: set[int]) -> None:
    """Closes every descriptor that is open and not named. By what is there: the limit may be a billion."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
