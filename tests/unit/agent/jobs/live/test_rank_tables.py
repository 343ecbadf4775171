"""Waiting for a job's rank table."""

import errno
import json
import os
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from muster.agent.jobs.live import rank_tables
from muster.supervisors.launch.modes import ranktable
from muster.supervisors.launch.modes.ranktable import RankTable
from muster.supervisors.launch.modes.ranktable_json import RankTableError
from muster.supervisors.model.spec import JobSpec
from tests.tables import parse

DEVICES = [{"device_id": "0", "device_ip": ""}]
INSTANCE = {"pod_name": "job-0", "server_id": "10.0.0.1", "devices": DEVICES}
GROUP = {"group_name": "g", "device_count": "1", "instance_count": "1", "instance_list": [INSTANCE]}
COMPLETED = {"status": "completed", "group_count": "1", "group_list": [GROUP]}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(rank_tables, "LOOK_S", 0.001)


def spec(path: Path, seconds: float = 60.0) -> JobSpec:
    return JobSpec("j", ("x",), rank_table=str(path), ready_timeout=seconds)


def put(path: Path, what: Any) -> None:
    """As a platform that is careful does it."""
    new = path.with_name("new")
    new.write_text(what if isinstance(what, str) else json.dumps(what))
    new.replace(path)


class Looks:
    """What is found at each look, one after the other; the last stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
        self.count = 0
        self._found = list(found)
        monkeypatch.setattr(ranktable, "read", self._read)
        monkeypatch.setattr(ranktable, "pending", lambda path: f"{path}: status: is 'initializing'")

    def _read(self, _: Path) -> RankTable | None:
        self.count += 1
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if isinstance(found, Exception):
            raise found
        assert found is None or isinstance(found, RankTable)
        return found


def table() -> RankTable:
    made = parse(json.dumps(COMPLETED).encode(), "/t")
    assert made is not None
    return made


@pytest.mark.parametrize("given", ["file", "folder"])
async def test_a_table_that_is_completed_is_taken_at_once(tmp_path, given):
    put(tmp_path / "jobstart_hccl.json", COMPLETED)
    found = await rank_tables.wait(spec(tmp_path / "jobstart_hccl.json" if given == "file" else tmp_path))
    assert (found.size, found.servers[0].server_id) == (1, "10.0.0.1")


async def test_a_table_is_waited_for_until_the_platform_completes_it(monkeypatch, tmp_path):
    """No folder, no file, an empty one, one that is not completed: all are on the way to it."""
    folder = tmp_path / "config"
    found: list[RankTable] = []
    # The pause behind each look: we let it go on when we have done the next thing.
    looked, told = anyio.create_memory_object_stream[None](0)
    monkeypatch.setattr(
        rank_tables, "anyio", SimpleNamespace(move_on_after=anyio.move_on_after, sleep=lambda _: looked.send(None))
    )

    async def wait() -> None:
        with looked:
            found.append(await rank_tables.wait(spec(folder)))

    with anyio.fail_after(60), told:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for stage in (None, "", {"status": "initializing"}):
                if stage is not None:
                    folder.mkdir(exist_ok=True)
                    put(folder / "jobstart_hccl.json", stage)
                await told.receive()
                await told.receive()  # of a look that began behind what was done
            assert not found
            put(folder / "jobstart_hccl.json", COMPLETED)
            async for _ in told:
                pass
    assert found[0].size == 1


async def test_each_look_is_a_new_one(monkeypatch, tmp_path):
    torn = RankTableError("/t", "", "ends too early", torn=True)
    looks = Looks(monkeypatch, None, None, torn, None, OSError(errno.EAGAIN, "no thread"), table())
    assert (await rank_tables.wait(spec(tmp_path))).size == 1
    assert looks.count == 6


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "status: is 'initializing'"),
        (RankTableError("/t", "", "ends too early", torn=True), "ends too early"),
        (OSError(errno.ESTALE, "Stale file handle"), "cannot be read at the moment: Stale file handle"),
    ],
)
async def test_at_the_end_of_its_time_the_obstacle_is_reported(monkeypatch, tmp_path, found, why):
    looks = Looks(monkeypatch, found)
    scopes: list[anyio.CancelScope] = []

    def move_on_after(seconds: float) -> anyio.CancelScope:
        assert seconds == 0.05
        scopes.append(anyio.CancelScope())
        return scopes[0]

    async def sleep(_: float) -> None:  # the time is over behind the third look, however slow this machine is
        if looks.count == 3:
            scopes[0].cancel()
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(rank_tables, "anyio", SimpleNamespace(move_on_after=move_on_after, sleep=sleep))
    with pytest.raises(RankTableError) as caught:
        await rank_tables.wait(spec(tmp_path / "t.json", 0.05))
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/t.json: is not completed after 0.05 s (")
    assert why in text


async def test_what_is_no_rank_table_is_not_waited_for(tmp_path):
    for wrong, said in (("[]", "must be|object"), ('{"status": "completed"}', "group_list"), ("x", "not JSON")):
        put(tmp_path / "t.json", wrong)
        with pytest.raises(RankTableError, match=said) as caught:
            await rank_tables.wait(spec(tmp_path / "t.json"))
        assert str(tmp_path / "t.json") in str(caught.value)


async def test_what_cannot_be_read_is_not_waited_for(monkeypatch, tmp_path):
    looks = Looks(monkeypatch, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(RankTableError, match="cannot be read: Permission denied"):
        await rank_tables.wait(spec(tmp_path))
    assert looks.count == 1


async def test_a_file_system_that_hangs_hangs_nobody(monkeypatch, tmp_path):
    """The deadline holds, and the next job that looks there is told at once that an earlier look still hangs."""
    release = threading.Event()
    monkeypatch.setattr(ranktable, "read", lambda _: release.wait(60) and None)
    monkeypatch.setattr(ranktable, "pending", lambda _: "late")
    try:
        with pytest.raises(RankTableError, match=r"is not completed after 0\.05 s \(no answer\)"):
            await rank_tables.wait(spec(tmp_path / "hangs", 0.05))
        with pytest.raises(RankTableError, match=r"still hangs"):
            await rank_tables.wait(spec(tmp_path / "hangs", 0.05))
    finally:
        release.set()


async def test_a_wait_can_be_cancelled(tmp_path):
    """By a stop of the job."""
    with anyio.move_on_after(0.02) as scope:
        await rank_tables.wait(spec(tmp_path / "never"))
    assert scope.cancelled_caught


# --- the converted table ----------------------------------------------------------------------------------------------


def test_a_table_is_converted_for_the_jobs_user_to_read(tmp_path):
    path = tmp_path / "rank_table.json"
    before = os.umask(0o077)
    try:
        rank_tables.write(path, table())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    again = parse(path.read_bytes(), "again")
    assert again is not None
    assert (again.template, again.servers) == (1, table().servers)
    assert os.listdir(tmp_path) == ["rank_table.json"]


def test_a_table_that_hccl_can_read_is_not_touched(tmp_path):
    made = parse(ranktable.to_template1(table()).encode(), "/t")
    assert made is not None
    rank_tables.write(tmp_path / "rank_table.json", made)
    assert os.listdir(tmp_path) == []


def test_a_table_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "rank_table.json").mkdir()
    with pytest.raises(OSError):
        rank_tables.write(tmp_path / "rank_table.json", table())
    assert os.listdir(tmp_path) == ["rank_table.json"]
