import os
import threading
import time

import pytest

from probes import disk, precheck
from probes.precheck import Settings, UnknownItem
from probes.result import Code, Status

BUILTIN = ["dns", "disk-size root", "disk-size shm", "disk-size cache", "ulimit", "gpu-check"]


async def run(settings=None, items=(), hosts=(), wanted=0, found=0):
    settings = settings or Settings(host_files="")
    return await precheck.run(settings, cards_wanted=wanted, cards_found=found, hosts=hosts, user="", items=items)


async def test_results_come_in_the_order_of_the_catalogue_with_seconds():
    results = await run()
    assert [r.item for r in results] == BUILTIN == [e.item for e in precheck.catalogue()][:-1]
    assert all(r.seconds >= 0 and r.reason for r in results)


async def test_every_code_is_in_the_catalogue():
    known = {code for entry in precheck.catalogue() for code in entry.codes}
    assert known == set(Code)


async def test_items_by_name_and_by_first_word():
    assert [r.item for r in await run(items=("gpu-check", "dns"))] == ["dns", "gpu-check"]
    assert [r.item for r in await run(items=("disk-size",))] == BUILTIN[1:4]
    assert [r.item for r in await run(items=("disk-size shm", "disk-size"))] == BUILTIN[1:4]
    assert await run(items=("custom",)) == []


@pytest.mark.parametrize(("item", "hint"), [("dsn", "did you mean 'dns'"), ("custom ib", "no check named 'custom ib'")])
async def test_an_unknown_item_is_named_with_the_nearest(item, hint):
    with pytest.raises(UnknownItem, match=hint):
        await run(items=("dns", item))


async def test_a_check_that_hangs_is_unknown_and_stops_nobody(monkeypatch, tmp_path):
    release, real = threading.Event(), os.statvfs

    def statvfs(path):
        if path == str(tmp_path):
            release.wait(30)
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    settings = Settings(cache_path=str(tmp_path), host_files="", deadline_s=0.3, root_min_gb=0)
    try:
        began = time.monotonic()
        results = {r.item: r for r in await run(settings)}
        assert time.monotonic() - began < 25
        hung = results["disk-size cache"]
        assert (hung.status, hung.code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
        assert hung.seconds > 0.2 and "0.3 s" in hung.threshold
        assert results["disk-size root"].status in (Status.OK, Status.WARN)
        assert precheck.worst(results.values()) is not Status.CRITICAL
        again = await run(settings, items=("disk-size cache",))
        assert again[0].code is Code.PROBE_TIMED_OUT and "still hangs" in again[0].reason
    finally:
        release.set()


async def test_a_broken_check_is_unknown(monkeypatch):
    def broken(need, stat):
        raise KeyError("defect")

    monkeypatch.setattr(disk, "judge", broken)
    (result,) = await run(items=("disk-size root",))
    assert (result.status, result.code) == (Status.UNKNOWN, Code.PROBE_FAILED)
    assert "KeyError" in result.reason


async def test_a_missing_custom_folder_is_unknown(tmp_path):
    settings = Settings(host_files="", custom_dir=str(tmp_path / "none"))
    (result,) = await run(settings, items=("custom",))
    assert (result.item, result.code) == ("custom", Code.CUSTOM_FOLDER_UNREADABLE)
    (result,) = await run(settings, items=("custom ib",))
    assert result.status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline_s", 0),
        ("deadline_s", float("nan")),
        ("deadline_s", 4000),
        ("root_min_gb", -1),
        ("root_min_gb", float("inf")),
        ("disk_free_percent", 101),
        ("ulimits", "sometimes"),
        ("cache_path", "cache"),
        ("shm_path", "/dev\0/shm"),
    ],
)
def test_settings_that_cannot_be_meant(field, value):
    with pytest.raises(ValueError, match=field):
        Settings(**{field: value})
