"""The limit of descriptors: daemon, nursery and supervisors raise it as far as they may (each rank costs a supervisor
four descriptors); ranks get the original limit."""

import contextlib
import os
import resource

from muster.probes.kernel import open_files

#: The soft limit that this process was started with, and the hard one; None until it was raised.
_given: int | None = None
_hard: int | None = None


def raise_limit(given: int | None = None) -> None:
    """To the hard limit. Remembers the limit that ranks are to have: `given`, or our own before the first time."""
    global _given, _hard
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if given is None:
        given = soft if _given is None else _given
    _given, _hard = given, hard
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def given_limit() -> int:
    """The soft limit that ranks are to have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] if _given is None else _given


def raise_again() -> bool:
    """Takes back what somebody has lowered of our own limit since (prlimit), as far as this user may: a hard limit is
    raised with CAP_SYS_RESOURCE only. Returns whether it is higher now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard if _hard is None else _most(_hard, hard), hard):
        if not _is_below(soft, wanted):
            continue
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return True
    return False


def lowered_to() -> int | None:
    """The limit of descriptors, where somebody has lowered it and we may not raise it again; else None."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if _hard is not None and _is_below(soft, _hard) else None


def _is_below(limit: int, other: int) -> bool:
    return limit != resource.RLIM_INFINITY and (other == resource.RLIM_INFINITY or limit < other)


def _most(one: int, other: int) -> int:
    return other if _is_below(one, other) else one


def limit_for_ranks() -> tuple[int, int] | None:
    """The soft and the hard limit that a rank is to be given; None: it inherits the right one."""
    if _given is None:
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard if _is_below(hard, _given) else _given, hard


def close_all_but(kept: set[int]) -> None:
    """Closes every open descriptor that is not named. It lists the open ones: the limit may be a billion."""
    for number in open_files.numbers():
        if number not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)
