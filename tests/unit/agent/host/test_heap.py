"""The daemon's heap, as the C library itself counts it and the kernel sees it."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library is told such things")

_COUNT = """
import ctypes, sys, threading
from muster.agent.host import heap
if sys.argv[1] == "one":
    heap.keep_one()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
together = threading.Barrier(4)
def take():
    together.wait()
    libc.malloc(5000)
    together.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
out = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""
_TRIM = """
import ctypes
import anyio
from muster.agent.host import heap
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
taken = [libc.malloc(50_000) for _ in range(800)]
for each in taken:
    ctypes.memset(each, 1, 50_000)
for each in taken[:-1]:  # the last keeps the heap's end where it is
    libc.free(each)
heap.FIRST_S = heap.TRIM_S = 0.01
async def until_less():
    await anyio.to_thread.run_sync(resident)
    before = resident()  # not earlier: the loop and its first thread take 8 MB, which would count against what is freed
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heap.trim)
        with anyio.fail_after(60):
            while resident() > before - 30:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
anyio.run(until_less)
"""


def _heaps(how: str, told: Path) -> int:
    subprocess.run([sys.executable, "-c", _COUNT, how, told], check=True, timeout=60)
    return told.read_text().count("<heap nr=")


def test_threads_share_one_heap(tmp_path: Path) -> None:
    assert _heaps("one", tmp_path / "one") == 1
    assert _heaps("usual", tmp_path / "usual") > 1


def test_free_pages_in_its_middle_are_given_back() -> None:
    subprocess.run([sys.executable, "-c", _TRIM], check=True, timeout=120)
