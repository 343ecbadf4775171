"""Makes this process the subreaper of its orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER)."""

import ctypes

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Not inherited by children. Raises OSError on a kernel that refuses."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(0, "prctl(PR_SET_CHILD_SUBREAPER) was refused")
