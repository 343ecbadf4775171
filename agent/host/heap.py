"""The heap of the C library in a daemon that runs for months. Python's own objects do not come from there; what gRPC,
SQLite and large buffers take does."""

import contextlib
import ctypes
import gc

import anyio

from muster.agent import threads

#: Seconds between two times that free pages are given back. It takes a few ms, in which who allocates waits.
TRIM_S = 60.0
#: Seconds until the first time: the imports have left pages, too.
FIRST_S = 10.0
#: mallopt's parameter, from malloc.h.
_M_ARENA_MAX = -8


def keep_one() -> None:
    """Has all threads served from one heap; to be called before the first of them.

    The C library would make one for each of up to eight threads per core, and what one thread takes and another gives
    back leaves holes in all of them: under `make soak` the daemon grew by half a MB a minute, of which it used nothing.
    Threads that hold the interpreter's lock do not contend for it.
    """
    with contextlib.suppress(AttributeError):  # another C library than GNU's has no such heaps
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def collect() -> None:
    """Has Python look for garbage from now on, but not in what was imported: that stays."""
    gc.freeze()
    gc.enable()


async def trim() -> None:
    """Returns free pages to the system, forever: by itself the library returns only pages at the heap's end."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    pause = FIRST_S
    while release is not None:
        await anyio.sleep(pause)
        await threads.run(release, 0)
        pause = TRIM_S
