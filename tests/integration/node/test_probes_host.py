"""Pre-checks against the real thing: a small file system, low limits, names that do not resolve."""

import dataclasses
import os
import resource
import subprocess
import sys

import anyio
import pytest

from muster.probes.checks import precheck
from muster.probes.checks.precheck import CheckRequest, CheckSettings
from muster.probes.checks.result import Code, Status


async def one(item, settings, hosts=()):
    settings = dataclasses.replace(settings, deadline_s=60.0)  # the machine may be busy
    (result,) = await precheck.run(settings, CheckRequest(hosts=hosts), (item,))
    return result


@pytest.fixture
def small(tmp_path):
    """A tmpfs of 8 MB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


async def test_a_small_disk_is_critical(small):
    found = await one("disk-size cache", CheckSettings(cache_path=str(small)))
    assert (found.status, found.code) == (Status.CRITICAL, Code.DISK_SIZE_TOO_SMALL)
    assert "8.0 MB" in found.observed


async def test_a_threshold_by_setting_and_a_disk_that_fills_up(small):
    settings = CheckSettings(shm_path=str(small), shm_min_gb=0.001)
    assert (await one("disk-size shm", settings)).status is Status.OK
    (small / "left-over").write_bytes(b"\0" * (7900 << 10))
    assert (await one("disk-size shm", settings)).code is Code.DISK_SPACE_LOW


async def test_a_disk_mounted_read_only(small):
    await anyio.run_process(["mount", "-o", "remount,ro", small])
    settings = CheckSettings(cache_path=str(small), cache_min_gb=0.001)
    assert (await one("disk-size cache", settings)).code is Code.DISK_READ_ONLY


async def test_a_name_that_does_not_resolve():
    # .invalid is reserved (RFC 2606); without any name server the answer is "try again", which is as bad.
    found = await one("dns", CheckSettings(host_files=""), hosts=("localhost", "worker-1.muster.invalid"))
    if found.code is Code.PROBE_TIMED_OUT:
        pytest.skip("the name server of this host lets questions go unanswered")
    assert found.status is Status.CRITICAL
    assert found.code in (Code.DNS_NAME_UNRESOLVED, Code.DNS_SERVER_FAILED)
    assert "worker-1.muster.invalid" in found.reason


def test_low_limits_are_those_that_the_process_really_has():
    """In a process of its own, since a limit once lowered may not go up again."""
    program = """
import anyio
from muster.probes.checks import precheck
settings = precheck.CheckSettings(ulimits="always")
async def main():
    (r,) = await precheck.run(settings, precheck.CheckRequest(), ("ulimit",))
    print(r.code, r.observed)
anyio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)),
    )
    assert done.stdout.startswith("ULIMIT_TOO_LOW")
    assert "open files 512" in done.stdout
