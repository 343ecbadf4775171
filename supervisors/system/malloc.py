"""The heap of the C library in processes that live as long as jobs. Another library than GNU's has no such calls."""

import contextlib
import ctypes
from typing import ClassVar

#: mallopt's parameter, from malloc.h, and its value: from so many bytes on, a buffer is a mapping of its own.
_M_MMAP_THRESHOLD, _OWN_MAPPING = -3, 128 << 10


class _Mallinfo(ctypes.Structure):
    """As in malloc.h."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_: ClassVar = [(name, ctypes.c_int) for name in _names]


def return_buffers() -> None:
    """Has large buffers go back to the system as soon as they are freed. By itself the library takes them from the heap
    once one of that size was freed, where what lies above keeps it. What this process forks does so, too."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING)


def mapped() -> int:
    """Bytes in buffers that are mappings of their own."""
    with contextlib.suppress(AttributeError):
        mallinfo = ctypes.CDLL(None).mallinfo
        mallinfo.restype = _Mallinfo
        return int(mallinfo().hblkhd)
    return 0


def trim() -> None:
    """Returns what is free now."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
