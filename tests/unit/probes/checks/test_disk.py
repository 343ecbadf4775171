import dataclasses
import os
import subprocess
import sys

import pytest

from muster.probes.checks import disk
from muster.probes.checks.result import Action, Code, Status

GB = disk.GB


def need(**changes):
    return dataclasses.replace(disk.Need("disk-size cache", "/cache", 32.0, False, 10.0, True), **changes)


def stat(size, free=None, files=1000, free_files=900, flags=0):
    """A file system of `size` bytes in blocks of one byte."""
    free = size if free is None else free
    return os.statvfs_result((4096, 1, size, free, free, files, free_files, free_files, flags, 255))


@pytest.mark.parametrize(
    ("size", "status"), [(32 * GB + 1, Status.OK), (32 * GB, Status.CRITICAL), (31 * GB, Status.CRITICAL)]
)
def test_size_must_exceed_the_threshold(size, status):
    assert disk.judge(need(), stat(size)).status is status


def test_too_small_tells_reading_threshold_and_what_to_do():
    found = disk.judge(need(), stat(8 << 20))
    assert (found.code, found.action) == (Code.DISK_SIZE_TOO_SMALL, Action.DRAIN)
    assert found.observed == "size 8.0 MB, available 8.0 MB"
    assert found.threshold == "size > 32 GB"
    assert "/cache" in found.reason


def test_just_under_does_not_read_as_met():
    assert "31.9 GB" in disk.judge(need(), stat(32 * GB - 1)).reason


def test_little_free_space_only_warns():
    found = disk.judge(need(), stat(100 * GB, free=GB))
    assert (found.status, found.code) == (Status.WARN, Code.DISK_SPACE_LOW)
    assert disk.judge(need(min_free_percent=0), stat(100 * GB, free=0)).status is Status.OK


def test_few_inodes_warn_and_a_file_system_without_inodes_does_not():
    assert disk.judge(need(), stat(100 * GB, files=1000, free_files=5)).code is Code.DISK_INODES_LOW
    assert disk.judge(need(), stat(100 * GB, files=0, free_files=0)).status is Status.OK


def test_read_only_matters_where_training_writes():
    assert disk.judge(need(), stat(100 * GB, flags=os.ST_RDONLY)).code is Code.DISK_READ_ONLY
    assert disk.judge(need(writable=False), stat(100 * GB, flags=os.ST_RDONLY)).status is Status.OK


def test_unlimited_tmpfs_is_unknown():
    assert disk.judge(need(), stat(0)).code is Code.DISK_SIZE_NOT_TOLD


@pytest.mark.parametrize(("required", "status"), [(False, Status.NOT_APPLICABLE), (True, Status.CRITICAL)])
async def test_absent_path(tmp_path, required, status):
    for path in (tmp_path / "none", tmp_path / "file" / "below"):
        (tmp_path / "file").touch()
        assert (await disk.check(need(path=str(path), required=required))).status is status


async def test_empty_path_is_off():
    assert (await disk.check(need(path=""))).code is Code.DISK_OFF


async def test_an_unreadable_file_system_is_unknown(monkeypatch):
    def broken(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", broken)
    found = await disk.check(need())
    assert (found.status, found.code) == (Status.UNKNOWN, Code.DISK_UNREADABLE)
    assert "Input/output error" in found.reason


_LOOKS = """
import asyncio, sys
from muster.probes.checks import disk
found = asyncio.run(disk.check(disk.Need("disk-size shm", sys.argv[1], 1.0, False, 10.0, True)))
print(found.status.name, found.action.name, "--shm-size" in found.reason)
"""


@pytest.mark.parametrize("own", [True, False], ids=["container", "host"])
def test_too_little_shared_memory_of_a_container_is_not_the_nodes_fault(own):
    """`docker run` gives 64 MB by itself: another node would give as much."""
    if subprocess.run(["unshare", "--mount", "--ipc", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs namespaces of its own")
    if not own and os.stat("/proc/self/ns/ipc").st_ino != 0xEFFFFFFF:
        pytest.skip("this is a container")
    mounts = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    namespaces = ["--mount", *(["--ipc"] if own else [])]
    command = ["unshare", *namespaces, "sh", "-c", mounts, "sh", sys.executable, "-c", _LOOKS, "/dev/shm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    expected = "CRITICAL INVESTIGATE True" if own else "CRITICAL DRAIN False"
    assert done.stdout.strip() == expected, done.stderr
