"""One heap for all threads of the daemon, as the C library itself counts them."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

_HEAPS = """
import ctypes, sys, threading
from agent import musterd
if sys.argv[1] == "one":
    musterd._keep_one_heap()
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


def _heaps(how: str, told: Path) -> int:
    subprocess.run([sys.executable, "-c", _HEAPS, how, told], check=True, timeout=60)
    return told.read_text().count("<heap nr=")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library has a heap for each thread")
def test_threads_share_one_heap(tmp_path: Path) -> None:
    assert _heaps("one", tmp_path / "one") == 1
    assert _heaps("usual", tmp_path / "usual") > 1
