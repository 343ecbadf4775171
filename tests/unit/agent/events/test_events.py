"""The event store: order, cursors, bounds, restarts, damage."""

import contextlib
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from muster.agent.errors import CursorTooOld, InvalidRequest
from muster.agent.events import event_store, segments
from muster.agent.events.event_store import Event, EventStore, RecordKey
from muster.agent.events.opening import BOOT_GAP
from muster.agent.host import state_file
from tests.unit.waiting import until


@asynccontextmanager
async def opened(folder: Path, keep: int = 1 << 20, boot: str = "one") -> AsyncIterator[EventStore]:
    store = await EventStore.open(folder, keep, boot_id=boot)
    try:
        yield store
    finally:
        await store.close()


def told(number: int, job: str = "a", accepted_at: float = 1.0) -> tuple[RecordKey, Event]:
    return RecordKey(job, accepted_at, number), Event(100.0 + number, "job.warning", job, message=f"event {number}")


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def on_disk(folder: Path) -> int:
    """Bytes, while the store removes files."""
    found = 0
    for path in files(folder):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


async def messages(store: EventStore, cursor: str | None = None) -> list[str]:
    found = []
    while batch := await store.read(cursor, 7):
        found += [event.message for event, _ in batch]
        cursor = batch[-1][1]
    return found


async def test_events_come_back_in_order_with_all_that_they_say(tmp_path: Path):
    event = Event(5.5, "rank.exited", "a", 3, "rank 3 exited with code 1", 2.5, {"exit_code": "1"})
    async with opened(tmp_path) as store:
        store.append([(RecordKey("a", 1.0, 7), event), (None, Event(6.0, "node.started"))])
        assert [e for e, _ in await store.read(None, 10)] == [event, Event(6.0, "node.started")]
    async with opened(tmp_path) as store:  # from disk now
        assert [e for e, _ in await store.read(None, 10)] == [event, Event(6.0, "node.started")]


async def test_a_cursor_goes_on_behind_its_event_over_a_restart(tmp_path: Path):
    async with opened(tmp_path) as store:
        store.append(told(i) for i in range(20))
        cursor = (await store.read(None, 5))[-1][1]
    async with opened(tmp_path) as store:
        store.append([told(20)])
        assert await messages(store, cursor) == [f"event {i}" for i in range(5, 21)]
        assert await messages(store, store.oldest_cursor()) == [f"event {i}" for i in range(21)]
        assert await store.read(store.newest_cursor(), 5) == []


async def test_a_waiting_watcher_is_woken(tmp_path: Path):
    async with opened(tmp_path) as store:
        cursor = store.newest_cursor()
        with anyio.move_on_after(0.05) as scope:
            await store.wait_beyond(cursor)
        assert scope.cancelled_caught
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.wait_beyond, cursor)
                await anyio.lowlevel.checkpoint()
                store.append([told(0)])
            await store.wait_beyond(cursor)


async def test_what_was_told_is_known_after_a_restart(tmp_path: Path):
    async with opened(tmp_path) as store:
        store.append([told(0), told(4)])
        assert store.last_record("a", 1.0) == 4
    async with opened(tmp_path) as store:
        assert store.last_record("a", 1.0) == 4
        # A later job of the same id has told nothing yet.
        assert store.last_record("a", 2.0) == -1
        assert store.last_record("b", 1.0) == -1
        store.append([told(0, accepted_at=2.0)])
    async with opened(tmp_path) as store:
        assert store.last_record("a", 2.0) == 0


async def test_a_torn_end_is_dropped_and_numbers_go_on(tmp_path: Path):
    async with opened(tmp_path) as store:
        store.append([told(0), told(1)])
        cursor = (await store.read(None, 1))[0][1]
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes() + b"0000")
    async with opened(tmp_path) as store:
        assert store.trouble == []
        store.append([told(2)])
        assert await messages(store, cursor) == ["event 1", "event 2"]
    async with opened(tmp_path) as store:
        assert await messages(store) == ["event 0", "event 1", "event 2"]


async def test_a_damaged_line_is_left_out_and_said(tmp_path: Path):
    async with opened(tmp_path) as store:
        store.append([told(0), told(1), told(2)])
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"event 1", b"event X"))
    async with opened(tmp_path) as store:
        assert await messages(store) == ["event 0", "event 2"]
        assert "1 damaged line" in store.trouble[0]


async def test_after_another_boot_no_cursor_names_two_events(tmp_path: Path):
    async with opened(tmp_path) as store:
        store.append([told(0), told(1)])
        first, second = [cursor for _, cursor in await store.read(None, 5)]
    # The machine crashed: the second event, which a watcher had seen, was not on disk yet.
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    async with opened(tmp_path, boot="two") as store:
        store.append([told(2)])
        ((_, cursor),) = await store.read(second, 5)
        assert int(cursor.split("-")[1]) > BOOT_GAP
        assert await messages(store, first) == ["event 2"]
    async with opened(tmp_path, boot="two") as store:
        assert await messages(store) == ["event 0", "event 2"]


async def test_the_bound_on_disk_holds_and_an_old_cursor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_store, "SYNC_S", 0.001)
    keep = 16384
    async with opened(tmp_path, keep) as store, anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        oldest = store.oldest_cursor()
        for i in range(400):
            store.append([told(i, job=f"job-{i % 3}")])
            await anyio.sleep(0.001)
        await until(lambda: store.oldest_cursor() != oldest and on_disk(tmp_path) <= keep)
        with pytest.raises(CursorTooOld) as caught:
            await store.read(oldest, 1)
        assert caught.value.oldest == store.oldest_cursor()
        kept = await messages(store)
        assert kept == [f"event {i}" for i in range(400 - len(kept), 400)]
        tasks.cancel_scope.cancel()
    async with opened(tmp_path, keep) as store:
        assert await messages(store) == kept
        assert [store.last_record(f"job-{i}", 1.0) for i in range(3)] == [399, 397, 398]


async def test_marks_outlive_the_segments_that_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_store, "SYNC_S", 0.001)
    async with opened(tmp_path, 16384) as store, anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        oldest = store.oldest_cursor()
        store.append([told(9, job="long-ago")])
        store.tell(Event(5.5, "job.explained", "long-ago"))
        store.tell(Event(6.5, "node.reset"))
        for i in range(400):
            store.append([told(i)])
            await anyio.sleep(0.001)
        await until(lambda: store.oldest_cursor() != oldest)
        tasks.cancel_scope.cancel()
    async with opened(tmp_path, 16384) as store:
        assert (await messages(store))[0] != "event 9"
        assert store.last_record("long-ago", 1.0) == 9
        assert store.last_told("job.explained", "long-ago") == 5.5
        store.keep_only({"a"})
        assert store.last_record("long-ago", 1.0) == -1
        assert (store.last_told("job.explained", "long-ago"), store.last_told("node.reset")) == (0, 6.5)


async def test_what_is_stored_is_on_the_disk_also_behind_the_begin_of_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A crash of the machine leaves what was synced."""
    monkeypatch.setattr(event_store, "SYNC_S", 0.001)
    synced: dict[str, int] = {}

    def sync(fd: int) -> None:
        os.fsync(fd)
        synced[Path(os.readlink(f"/proc/self/fd/{fd}")).name] = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fdatasync", sync)
    async with opened(tmp_path, 8192) as store, anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        for i in range(100):
            store.append([told(i)])
            await store.stored()
            assert not [path for path in files(tmp_path) if path.stat().st_size > synced.get(path.name, 0)]
        assert len(synced) > 2
        tasks.cancel_scope.cancel()


async def test_a_disk_that_does_not_sync_keeps_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_store, "SHOW_S", 0.01)
    answers = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: answers.wait(60))
    async with opened(tmp_path) as store:
        for i in range(3):
            store.append([told(i)])
            with anyio.fail_after(30):
                await store.stored()
        assert await messages(store) == [f"event {i}" for i in range(3)]
        answers.set()


async def test_readers_of_history_and_of_the_present_see_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_store, "RECENT", 16)
    monkeypatch.setattr(segments, "STEP", 512)
    async with opened(tmp_path) as store:
        for i in range(300):
            store.append([told(i)])
        assert await messages(store) == [f"event {i}" for i in range(300)]
        for start in (0, 1, 150, 283, 284, 298, 299):
            found = await store.read(f"{store.newest_cursor().split('-')[0]}-{start}", 3)
            assert [e.message for e, _ in found] == [f"event {i}" for i in range(start, min(start + 3, 300))]


@pytest.mark.parametrize("cursor", ["", "x", "0123456789abcdef", "0123456789abcdef-", "0123456789abcdef-1x", "-1"])
async def test_garbage_is_no_cursor(cursor: str, tmp_path: Path):
    async with opened(tmp_path) as store:
        with pytest.raises(InvalidRequest, match="cursor"):
            await store.read(cursor, 1)
        with pytest.raises(InvalidRequest):
            await store.wait_beyond(cursor)


async def test_cursors_of_another_history_and_of_the_future_are_refused(tmp_path: Path):
    async with opened(tmp_path) as store:
        with pytest.raises(CursorTooOld):
            await store.read("0123456789abcdef-0", 1)
        epoch = store.newest_cursor().split("-")[0]
        with pytest.raises(InvalidRequest, match="not happened"):
            await store.read(f"{epoch}-1000", 1)


async def test_a_full_disk_hides_no_event_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_store, "SYNC_S", 0.001)
    full = True
    write = os.pwrite

    def failing(fd: int, data: bytes, offset: int) -> int:
        if full:
            raise OSError(28, "No space left on device")
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    async with opened(tmp_path) as store, anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        cursor = store.newest_cursor()
        store.append([told(0)])
        store.append([told(1)])
        assert [event.message for event, _ in await store.read(cursor, 5)] == ["event 0", "event 1"]
        assert await messages(store) == ["event 0", "event 1"]
        assert "No space left" in store.trouble[0]
        full = False
        await until(lambda: not store.trouble)
        tasks.cancel_scope.cancel()
    async with opened(tmp_path) as store:
        assert await messages(store) == ["event 0", "event 1"]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that takes events only once this is set."""
    answers, write = threading.Event(), os.pwrite

    def waiting(fd: int, data: bytes, offset: int) -> int:
        assert answers.wait(60)
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", waiting)
    return answers


async def test_an_event_is_seen_when_it_is_written(tmp_path: Path, silent: threading.Event):
    async with opened(tmp_path) as store, anyio.create_task_group() as tasks:
        cursor = store.newest_cursor()
        store.append([told(0)])
        with anyio.move_on_after(0.05) as seen:
            await store.wait_beyond(cursor)
        assert seen.cancelled_caught
        tasks.start_soon(store.wait_beyond, cursor)
        silent.set()
    assert (await messages(store)) == ["event 0"]


async def test_a_silent_disk_hides_no_event_and_has_them_in_order_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: threading.Event
):
    monkeypatch.setattr(event_store, "SHOW_S", 0.01)
    monkeypatch.setattr(event_store, "SYNC_S", 0.001)
    async with opened(tmp_path) as store, anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        store.append([told(0)])
        assert await messages(store) == ["event 0"]
        store.append([told(1), told(2)])
        assert await messages(store) == ["event 0", "event 1", "event 2"]
        assert "does not answer; 3 wait in memory" in store.trouble[0]
        silent.set()
        await until(lambda: not store.trouble)
        tasks.cancel_scope.cancel()
    async with opened(tmp_path) as store:
        assert await messages(store) == ["event 0", "event 1", "event 2"]


async def test_events_for_which_there_is_no_room_are_counted_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: threading.Event
):
    monkeypatch.setattr(event_store, "SHOW_S", 0.01)
    monkeypatch.setattr(event_store, "MAX_PENDING", 3)
    async with opened(tmp_path) as store:
        store.append([told(0)])
        await store.read(None, 1)
        for i in range(1, 6):
            store.append([told(i)])
        assert "3 wait in memory, 3 older ones are lost" in store.trouble[0]
        silent.set()
        await until(lambda: not store.trouble)
    async with opened(tmp_path) as store:
        *kept, lost = [event for event, _ in await store.read(None, 9)]
        assert [event.message for event in kept] == ["event 0", "event 4", "event 5"]
        assert (lost.kind, lost.attributes) == ("node.events_lost", {"events": "3"})


async def test_a_folder_that_cannot_be_written_is_read_and_taken_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_store, "SYNC_S", 0.001)
    async with opened(tmp_path) as store:
        store.append([told(0)])
    create, broken = segments.create, True

    def refused(*args: Any) -> Any:
        if broken:
            raise OSError(30, "Read-only file system")
        return create(*args)

    monkeypatch.setattr(segments, "create", refused)
    write = state_file.write_text
    monkeypatch.setattr(state_file, "write_text", lambda *args, **more: refused() if broken else write(*args, **more))
    async with opened(tmp_path, boot="another") as store, anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        assert await messages(store) == ["event 0"]
        store.append([told(1)])
        assert await messages(store) == ["event 0", "event 1"]
        assert "Read-only file system" in store.trouble[0]
        broken = False
        await until(lambda: not store.trouble)
        tasks.cancel_scope.cancel()
    async with opened(tmp_path) as store:
        assert await messages(store) == ["event 0", "event 1"]
