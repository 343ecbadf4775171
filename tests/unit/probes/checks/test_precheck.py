import os
import threading

import pytest

from muster.probes.calls.call_threads import in_turn
from muster.probes.cards.accelerator import Card, Reading
from muster.probes.cards.driver import Driver
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.cards.no_cards import NoCards
from muster.probes.checks import disk, precheck
from muster.probes.checks.precheck import CardsWanted, CheckRequest, CheckSettings, UnknownItem
from muster.probes.checks.result import Code, Status

BUILTIN = ["dns", "disk-size root", "disk-size shm", "disk-size cache", "ulimit", "gpu-check"]


async def run(settings=None, items=(), **request):
    return await precheck.run(settings or CheckSettings(host_files=""), CheckRequest(**request), items)


async def test_results_come_in_the_order_of_the_catalogue_with_seconds():
    results = await run()
    assert [r.item for r in results] == BUILTIN == [e.item for e in precheck.catalogue()][:-1]
    assert all(r.seconds >= 0 and r.reason for r in results)


async def test_every_code_is_in_the_catalogue():
    known = {code for entry in precheck.catalogue() for code in entry.codes}
    families = ("DNS", "DISK", "ULIMIT", "CARDS", "CUSTOM", "PROBE")
    assert known == {code for code in Code if code.partition("_")[0] in families}


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
            release.wait()
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    settings = CheckSettings(cache_path=str(tmp_path), host_files="", deadline_s=1.5, root_min_gb=0)
    try:
        results = {r.item: r for r in await run(settings)}
        hung = results["disk-size cache"]
        assert (hung.status, hung.code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
        assert hung.seconds > 1.0 and "1.5 s" in hung.threshold
        assert results["disk-size root"].status in (Status.OK, Status.WARN)
        assert precheck.worst(results.values()) is not Status.CRITICAL
        again = await run(settings, items=("disk-size cache",))
        assert again[0].code is Code.PROBE_TIMED_OUT and "still hangs" in again[0].reason
    finally:
        release.set()


async def test_a_broken_check_is_unknown(monkeypatch):
    def broken(need, stat, **_):
        raise KeyError("defect")

    monkeypatch.setattr(disk, "judge", broken)
    (result,) = await run(items=("disk-size root",))
    assert (result.status, result.code) == (Status.UNKNOWN, Code.PROBE_FAILED)
    assert "KeyError" in result.reason


async def test_a_missing_custom_folder_is_unknown(tmp_path):
    settings = CheckSettings(host_files="", custom_dir=str(tmp_path / "none"))
    (result,) = await run(settings, items=("custom",))
    assert (result.item, result.code) == ("custom", Code.CUSTOM_FOLDER_UNREADABLE)
    (result,) = await run(settings, items=("custom ib",))
    assert result.status is Status.UNKNOWN


async def test_what_is_asked_for_reaches_each_check(tmp_path):
    settings = CheckSettings(host_files="", ulimits="always")
    results = await run(
        settings,
        items=("dns", "ulimit", "gpu-check"),
        hosts=("localhost",),
        user="nobody",
        limits={"nofile": 17},
        cards=CardsWanted(count=2),
        driver=Driver(DriverSettings, [], dev=tmp_path),
    )
    dns, ulimit, gpu_check = results
    assert dns.observed == "1 of 1 names resolve"
    assert "ranks of user nobody" in ulimit.reason and "open files 17," in ulimit.observed
    assert (gpu_check.code, gpu_check.threshold) == (Code.CARDS_NONE_FOUND, "cards >= 2")


@pytest.mark.slow
async def test_a_check_that_is_cut_short_says_how_long_it_had(tmp_path):
    """Cards have a deadline of their own, a little before that of all, so that they can say which card hangs.

    "A little" is 0.3 s here, for busy machines."""
    release = threading.Event()

    class Hangs(NoCards):
        kind = "nvidia"

        def cards(self):
            return [Card(0, "nvidia"), Card(1, "nvidia")]

        def read(self, index):
            release.wait(60)
            return Reading()

    settings = CheckSettings(host_files="", deadline_s=6.0, root_min_gb=0)
    driver = Driver(lambda: DriverSettings(60.0), [Hangs(lambda: 0)], dev=tmp_path)
    await driver.open()  # what hangs is a card, not the opening on a busy machine
    try:
        results = await run(
            settings, items=("gpu-check", "disk-size root"), cards=CardsWanted(indices=(0, 1)), driver=driver
        )
    finally:
        release.set()
        await driver.close()
    found = {r.item: r for r in results}
    assert (found["gpu-check"].status, found["gpu-check"].code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
    assert found["gpu-check"].reason == "cards 0-1: no answer within 5.7 s"
    assert found["disk-size root"].status in (Status.OK, Status.WARN)


async def test_without_a_driver_one_is_opened_for_this(tmp_path, monkeypatch):
    opened = []

    class Cards(NoCards):
        kind = "nvidia"

        def open(self, ask=in_turn):
            opened.append(True)

        def close(self):
            opened.append(False)

        def cards(self):
            return [Card(0, "nvidia", uuid="GPU-0")]

    monkeypatch.setattr("muster.probes.cards.driver.vendors", lambda: [Cards(lambda: 0)])
    (result,) = await run(CheckSettings(), items=("gpu-check",), cards=CardsWanted(every=True))
    assert (result.code, opened) == (Code.CARDS_OK, [True, False])
