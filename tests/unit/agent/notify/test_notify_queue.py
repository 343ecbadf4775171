"""What waits: its bounds, and the file that it outlives the daemon in."""

import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from muster.agent.host import state_file
from muster.agent.host.state_file import write_text
from muster.agent.notify import backlog
from muster.agent.notify.backlog import COMMAND, WEBHOOK, Outbox
from muster.agent.notify.notification import Item
from tests.unit.waiting import until

URL = "https://h/letmein"


def item(number: int, at: float = 1000.0) -> Item:
    return Item(f"x-{number}", "failed", "job.ended", at, "job-1", f"message {number}", {"state": "FAILED"})


def ids(outbox: Outbox, key: str) -> list[int]:
    return [int(item.id.removeprefix("x-")) for item in outbox.queue(key)]


@asynccontextmanager
async def kept(path: Path) -> AsyncIterator[Outbox]:
    """What is in the file, kept up while the block runs."""
    outbox = Outbox(path)
    await outbox.load()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run)
        yield outbox
        tasks.cancel_scope.cancel()


async def read(path: Path) -> Outbox:
    outbox = Outbox(path)
    await outbox.load()
    return outbox


def test_first_come_first_served(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "notify.json")
    for number in (1, 2, 3):
        outbox.put(WEBHOOK, item(number), 10)
    assert outbox.take(WEBHOOK, 1000.0, 60.0) == item(1)
    outbox.put_back(WEBHOOK)
    assert outbox.take(WEBHOOK, 1000.0, 60.0) == item(1)
    outbox.done(WEBHOOK)
    assert outbox.take(WEBHOOK, 1000.0, 60.0) == item(2)
    outbox.refused(WEBHOOK, "answered 400 Bad Request")
    assert ids(outbox, WEBHOOK) == [3]
    assert outbox.trouble == [
        "notify: 1 event(s) for the webhook were dropped: the receiver refused them: answered 400 Bad Request"
    ]
    assert outbox.take(COMMAND, 1000.0, 60.0) is None


def test_the_oldest_go_first_but_not_the_one_on_its_way(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "notify.json")
    for number in range(1, 4):
        outbox.put(WEBHOOK, item(number), 3)
    assert outbox.take(WEBHOOK, 1000.0, 60.0) == item(1)
    for number in range(4, 7):
        outbox.put(WEBHOOK, item(number), 3)
    assert ids(outbox, WEBHOOK) == [1, 5, 6]
    outbox.put_back(WEBHOOK)
    outbox.put(WEBHOOK, item(7), 3)
    assert ids(outbox, WEBHOOK) == [5, 6, 7]
    assert outbox.trouble == [
        "notify: 4 event(s) for the webhook were dropped: over 3 waited (keep in [notify]); the oldest were dropped"
    ]


def test_each_receiver_has_its_own_room(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "notify.json")
    outbox.put(COMMAND, item(1), 2)
    outbox.put(URL, item(1), 2)
    for number in range(2, 10):
        outbox.put(WEBHOOK, item(number), 2)
    assert (ids(outbox, COMMAND), ids(outbox, URL), ids(outbox, WEBHOOK)) == ([1], [1], [8, 9])


def test_of_the_webhooks_of_jobs_the_longest_queue_pays(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "notify.json")
    outbox.put("http://alive/", item(1), 5)
    for number in range(2, 10):
        outbox.put("http://dead/", item(number), 5)
    assert (ids(outbox, "http://alive/"), ids(outbox, "http://dead/")) == ([1], [6, 7, 8, 9])
    assert "webhooks of jobs" in outbox.trouble[0] and "dead" not in outbox.trouble[0]


def test_what_is_too_old_is_dropped_and_told_for_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = Outbox(tmp_path / "notify.json")
    for number, at in ((1, 100.0), (2, 939.0), (3, 940.0)):
        outbox.put(WEBHOOK, item(number, at), 10)
    assert outbox.take(WEBHOOK, 1000.0, 60.0) == item(3, 940.0)
    assert outbox.trouble == [
        "notify: 2 event(s) for the webhook were dropped: they were older than 60 s (max_age_s in [notify])"
    ]
    monkeypatch.setattr(backlog, "LOSS_SHOWN_S", 0.0)
    assert outbox.trouble == []


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_what_waits_and_the_cursor_come_back(tmp_path: Path) -> None:
    path = tmp_path / "notify.json"
    async with kept(path) as outbox:
        assert outbox.cursor == "" and outbox.keys == []
        for number in (1, 2, 3):
            outbox.put(WEBHOOK, item(number), 10)
        outbox.put(URL, item(9), 10)
        outbox.cursor = "x-9"
        outbox.take(WEBHOOK, 1000.0, 60.0)
        outbox.done(WEBHOOK)
        outbox.take(WEBHOOK, 1000.0, 60.0)  # on its way as the daemon ends: it may not have arrived
    again = await read(path)
    assert again.cursor == "x-9"
    assert (ids(again, WEBHOOK), ids(again, URL)) == ([2, 3], [9])
    assert path.stat().st_mode & 0o777 == 0o600  # URLs may be passwords


async def test_a_change_is_written_at_once_and_not_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "notify.json"
    async with kept(path) as outbox:
        outbox.put(WEBHOOK, item(1), 10)
        outbox.cursor = "x-1"
        await until(lambda: path.exists() and b"message 1" in path.read_bytes())
        outbox.take(WEBHOOK, 1000.0, 60.0)
        outbox.done(WEBHOOK)
        await until(lambda: b"message 1" not in path.read_bytes())


async def test_a_cursor_that_moved_over_nothing_of_interest_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "IDLE_SAVE_S", 0.01)
    path = tmp_path / "notify.json"
    async with kept(path) as outbox:
        outbox.cursor = "x-5"
        await until(lambda: path.exists() and b"x-5" in path.read_bytes())


@pytest.mark.parametrize("text", ["{", '{"version": "2"}', '{"version": 1, "waiting": 3}', "\udcff"])
async def test_a_file_that_cannot_be_understood_is_set_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notify.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    outbox = await read(path)
    assert outbox.cursor == "" and outbox.keys == []
    (aside,) = os.listdir(tmp_path)
    assert aside.startswith("notify.json.damaged-")
    assert outbox.trouble[0].startswith(f"{path}: cannot be understood")


async def test_a_file_that_cannot_be_written_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "SAVE_S", 0.01)
    path = tmp_path / "notify.json"
    in_the_way = tmp_path / ".notify.json.new"
    in_the_way.mkdir()
    async with kept(path) as outbox:
        outbox.put(WEBHOOK, item(1), 10)
        await until(lambda: outbox.trouble)
        assert outbox.trouble[0].startswith(f"{path}: cannot be written: Is a directory")
        in_the_way.rmdir()
        await until(lambda: not outbox.trouble)
    assert ids(await read(path), WEBHOOK) == [1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(ballast: Path) -> None:
    """Writes until there is no room."""
    with open(ballast, "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))


async def test_a_full_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "SAVE_S", 0.01)
    path, ballast = small_disk / "notify.json", small_disk / "ballast"
    async with kept(path) as outbox:
        outbox.put(WEBHOOK, item(1), 10)
        await until(path.exists)
        before = path.read_bytes()
        fill(ballast)
        outbox.put(WEBHOOK, item(2), 10)
        await until(lambda: outbox.trouble)
        assert outbox.trouble[0].startswith(f"{path}: cannot be written: No space left on device")
        assert path.read_bytes() == before  # the one before is whole
        assert ids(outbox, WEBHOOK) == [1, 2]  # and both can be sent
        ballast.unlink()
        await until(lambda: not outbox.trouble)
    assert ids(await read(path), WEBHOOK) == [1, 2]


async def test_a_disk_that_hangs_is_reported_and_keeps_nothing_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "SAVE_S", 0.01)
    monkeypatch.setattr(state_file, "WAIT_S", 0.05)
    let_go, real = threading.Event(), write_text

    def hang(path: Path, text: str, synced: bool) -> None:
        let_go.wait(60)
        real(path, text, synced=synced)

    monkeypatch.setattr(state_file, "write_text", hang)
    path = tmp_path / "notify.json"
    try:
        async with kept(path) as outbox:
            outbox.put(WEBHOOK, item(1), 10)
            await until(lambda: outbox.trouble)
            assert outbox.take(WEBHOOK, 1000.0, 60.0) == item(1)
            outbox.put(WEBHOOK, item(2), 10)
            let_go.set()
            await until(lambda: not outbox.trouble)
        assert ids(await read(path), WEBHOOK) == [1, 2]
    finally:
        let_go.set()
