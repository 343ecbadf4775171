"""Telemetry records: the keys that they have, slow readers, and the file."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from muster.agent.telemetry import records
from muster.agent.telemetry.records import (
    CardRecord,
    Lost,
    ProcRecord,
    RecordFile,
    Records,
    TelemetryRecord,
    append,
    encoded,
)
from muster.probes.kernel.trees import ProcessRole
from tests.unit.waiting import until

PROC = ProcRecord(10, 55, 3, ProcessRole.WORKER, 1.5, 1, 2, None, 4, "S", None)
CARD = CardRecord(4, "nvidia", 99.0, 40.0, 600.5, None, 12345, 3)


def made(number: int, job: str = "a") -> TelemetryRecord:
    return TelemetryRecord(1000.0 + number, job, (PROC,), (CARD,), {"3": 77}, 888)


async def test_a_record_has_the_keys_that_are_promised():
    shown = json.loads(encoded(made(0)))
    assert shown == {
        "t": 1000.0,
        "job": "a",
        "procs": [
            {
                "pid": 10, "start": 55, "rank": 3, "role": "worker", "cpu_s": 1.5, "rchar": 1, "wchar": 2,
                "read_bytes": None, "write_bytes": 4, "state": "S", "wchan": None,
            }
        ],
        "cards": [
            {
                "index": 4, "kind": "nvidia", "util": 99.0, "mem_util": 40.0, "power_w": 600.5, "power_limit_w": None,
                "fabric_bytes": 12345, "rank": 3,
            }
        ],
        "log_bytes": {"3": 77},
        "net_bytes": 888,
    }  # fmt: skip
    assert list(shown) == ["t", "job", "procs", "cards", "log_bytes", "net_bytes"]


async def test_a_card_that_does_not_answer_says_why():
    lost = replace(CARD, util=None, trouble="LOST")
    shown = json.loads(encoded(replace(made(0), cards=(lost,), driver="HANG")))
    assert (shown["cards"][0]["trouble"], shown["cards"][0]["util"], shown["driver"]) == ("LOST", None, "HANG")


async def test_each_subscriber_gets_what_it_wants():
    hub = Records()
    assert not hub.wanted
    with hub.subscribed() as everything, hub.subscribed("b") as one:
        assert hub.wanted
        hub.publish(made(0))
        hub.publish(made(1, "b"))
        assert await everything.some() == [made(0), made(1, "b")]
        assert await one.some() == [made(1, "b")]
    assert not hub.wanted


async def test_who_waits_is_woken():
    hub = Records()
    got: list[Any] = []
    with anyio.fail_after(60), hub.subscribed() as subscription:
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                got.extend(await subscription.some())

            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            hub.publish(made(0))
    assert got == [made(0)]


async def test_a_slow_reader_loses_records_and_learns_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "MAX_BEHIND", 3)
    monkeypatch.setattr(records, "OF_EACH", 1)
    hub = Records()
    with hub.subscribed() as slow, hub.subscribed() as quick:
        for number in range(8):
            hub.publish(made(number))
            assert await quick.some() == [made(number)]
        assert await slow.some() == [made(0), made(1), made(2), Lost(1003.0, 5)]
        hub.publish(made(8))
        assert await slow.some() == [made(8)]
    assert json.loads(encoded(Lost(1003.0, 5))) == {"t": 1003.0, "lost": 5}


async def test_of_more_jobs_than_there_is_room_for_none_is_left_out():
    """All records of a look come at once."""
    hub = Records()
    jobs = [f"job-{number}" for number in range(3 * records.MAX_BEHIND)]
    with hub.subscribed() as slow:
        for look in range(2):
            for job in jobs:
                hub.publish(made(look, job))
        assert [r.job for r in await slow.some() if isinstance(r, TelemetryRecord)] == jobs * 2
        for look in range(records.OF_EACH + 1):
            for job in jobs:
                hub.publish(made(look, job))
        assert (await slow.some())[-1] == Lost(1000.0 + records.OF_EACH, len(jobs))


async def follow(hub: Records, file: RecordFile, path: str, work: Any) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(file.follow, path)
            await anyio.wait_all_tasks_blocked()
            await work()
            tasks.cancel_scope.cancel()


async def test_a_file_gets_a_line_each_and_may_be_moved_away(tmp_path: Path):
    hub, path = Records(), tmp_path / "records.jsonl"
    path.write_text('{"t": 0}\n')
    file = RecordFile(hub)

    async def work() -> None:
        hub.publish(made(0))
        hub.publish(made(1))
        await until(lambda: path.read_text().count("\n") == 3)
        os.rename(path, tmp_path / "old")
        hub.publish(made(2))
        await until(lambda: path.exists() and path.read_text().endswith("\n"))

    await follow(hub, file, str(path), work)
    assert [json.loads(line)["t"] for line in path.read_text().splitlines()] == [1002.0]
    assert [json.loads(line)["t"] for line in (tmp_path / "old").read_text().splitlines()] == [0, 1000.0, 1001.0]
    assert file.trouble == ""


async def test_a_file_that_cannot_be_written_is_reported_and_tried_again(tmp_path: Path):
    hub, path = Records(), tmp_path / "no" / "records.jsonl"
    file = RecordFile(hub)

    async def work() -> None:
        hub.publish(made(0))
        await until(lambda: "No such file" in file.trouble)
        assert str(path) in file.trouble
        path.parent.mkdir()
        hub.publish(made(1))
        await until(lambda: not file.trouble)

    await follow(hub, file, str(path), work)
    assert path.read_bytes() == encoded(made(1)) + b"\n"


async def test_a_file_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(records, "FILE_S", 0.05)
    hub, path = Records(), tmp_path / "fifo"
    os.mkfifo(path)  # opening it for writing waits for a reader
    file = RecordFile(hub)

    async def work() -> None:
        hub.publish(made(0))
        await until(lambda: "did not take them" in file.trouble)
        hub.publish(made(1))
        await until(lambda: "still hangs" in file.trouble)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            number = 2
            while file.trouble:
                hub.publish(made(number))
                number += 1
                await anyio.sleep(0.01)
        finally:
            os.close(reader)

    await follow(hub, file, str(path), work)


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x"
    append(str(path), b"first\n")
    real = os.write

    def short(fd: int, data: bytes) -> int:
        if len(data) <= 3:
            raise OSError(28, "No space left on device")
        return real(fd, data[:3])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError):
        append(str(path), b"second\n")
    monkeypatch.undo()
    append(str(path), b"third\n")
    assert path.read_bytes() == b"first\nthird\n"
