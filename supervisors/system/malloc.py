"""The heap of the C library in processes that live as long as jobs. Another library than GNU's has no such calls."""

import contextlib
import ctypes

#: mallopt's parameter, from malloc.h, and its value: from so many bytes on, a buffer is a mapping of its own.
_M_MMAP_THRESHOLD, _OWN_MAPPING = -3, 128 << 10


def return_buffers() -> None:
    """Has large buffers go back to the system as soon as they are freed. By itself the library takes them from the heap
    once one of that size was freed, where what lies above keeps it. What this process forks does so, too."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING)


def trim() -> None:
    """Returns what is free now."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
