import resource

import pytest

from probes import ulimits
from probes.result import Action, Code, Status

LIMITS = (
    ulimits.Limit(resource.RLIMIT_MEMLOCK, "max locked memory", "l", 1024, 16000),
    ulimits.Limit(resource.RLIMIT_NOFILE, "open files", "n", 1, 1_000_000),
)
MANY = 1_048_576


def readings(memlock, nofile, hard_nofile=None):
    return [(LIMITS[0], memlock, memlock), (LIMITS[1], nofile, hard_nofile or nofile)]


@pytest.mark.parametrize(
    ("memlock", "nofile", "status"),
    [
        (resource.RLIM_INFINITY, MANY, Status.OK),
        (16001 * 1024, 1_000_001, Status.OK),
        (16000 * 1024, MANY, Status.CRITICAL),
        (resource.RLIM_INFINITY, 1_000_000, Status.CRITICAL),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, Status.OK),
    ],
)
def test_each_limit_must_be_exceeded(memlock, nofile, status):
    assert ulimits.judge(readings(memlock, nofile), "").status is status


def test_finding_names_limit_user_values_and_remedy():
    found = ulimits.judge(readings(64 * 1024, 1024, hard_nofile=MANY), "alice")
    assert (found.code, found.action) == (Code.ULIMIT_TOO_LOW, Action.DRAIN)
    assert "user alice" in found.reason
    assert "max locked memory (ulimit -l) 64 KB, more than 16000 KB needed" in found.reason
    assert "hard limit would allow 1048576" in found.reason
    assert found.observed == "max locked memory 64 KB, open files 1024"
    assert found.threshold == "max locked memory > 16000 KB, open files > 1000000"


async def check(when, path):
    return await ulimits.check(LIMITS, when=when, infiniband_path=str(path), user="", read=lambda number: (1024, 1024))


async def test_infiniband_decides_by_default(tmp_path):
    assert (await check("infiniband", tmp_path / "none")).code is Code.ULIMIT_NO_INFINIBAND
    assert (await check("infiniband", tmp_path)).code is Code.ULIMIT_NO_INFINIBAND
    (tmp_path / "mlx5_0").mkdir()
    assert (await check("infiniband", tmp_path)).code is Code.ULIMIT_TOO_LOW


async def test_always_and_never(tmp_path):
    assert (await check("always", tmp_path)).status is Status.CRITICAL
    (tmp_path / "mlx5_0").mkdir()
    assert (await check("never", tmp_path)).code is Code.ULIMIT_OFF
