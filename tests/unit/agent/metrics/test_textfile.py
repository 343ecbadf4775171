"""The page in a file."""

import os
import stat
import threading
from pathlib import Path

import anyio
import pytest

from muster.agent.metrics import textfile
from muster.agent.metrics.textfile import Textfile


async def page() -> bytes:
    return b"up 1\n"


async def test_it_is_written_for_everybody_and_taken_away_at_the_end(tmp_path: Path):
    path = tmp_path / "muster.prom"
    written = anyio.Event()

    def period() -> float:
        written.set()
        return 3600

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Textfile(path, page).run, period)
        with anyio.fail_after(60):
            await written.wait()
        assert path.read_bytes() == b"up 1\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert os.listdir(tmp_path) == ["muster.prom"]
        tasks.cancel_scope.cancel()
    assert os.listdir(tmp_path) == []


async def test_it_is_written_again_and_again(tmp_path: Path):
    path, count = tmp_path / "muster.prom", 0

    async def counting() -> bytes:
        nonlocal count
        count += 1
        return str(count).encode()

    seen: list[bytes] = []

    def period() -> float:
        seen.append(path.read_bytes())
        if len(seen) == 3:
            scope.cancel()
        return 0.0

    with anyio.fail_after(60), anyio.CancelScope() as scope:
        await Textfile(path, counting).run(period)
    assert seen == [b"1", b"2", b"3"]


async def test_a_folder_that_is_not_there_is_reported_and_tried_again(tmp_path: Path):
    path = tmp_path / "later" / "muster.prom"
    file = Textfile(path, page)
    await file.write()
    assert file.trouble.startswith(f"cannot write metrics to {path}: No such file or directory")
    path.parent.mkdir()
    await file.write()
    assert file.trouble == "" and path.read_bytes() == b"up 1\n"


async def test_what_cannot_be_replaced_stays_whole(tmp_path: Path):
    path = tmp_path / "muster.prom"
    path.mkdir()
    file = Textfile(path, page)
    await file.write()
    assert "Is a directory" in file.trouble
    assert os.listdir(tmp_path) == ["muster.prom"]


async def test_a_link_is_not_followed(tmp_path: Path):
    """The folder is often one that others may write to."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".muster.prom.new").symlink_to(victim)
    file = Textfile(tmp_path / "muster.prom", page)
    await file.write()
    assert file.trouble and victim.read_text() == "mine"


async def test_a_defect_in_a_metric_ends_nothing(tmp_path: Path):
    async def broken() -> bytes:
        raise ZeroDivisionError

    file = Textfile(tmp_path / "muster.prom", broken)
    await file.write()
    assert "defect" in file.trouble


async def test_a_disk_that_hangs_is_reported_and_waited_for_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    let_go, inside = threading.Event(), anyio.Event()

    def hang(*args: object) -> None:
        anyio.from_thread.run_sync(inside.set)
        let_go.wait(60)

    monkeypatch.setattr(textfile, "replace_file", hang)
    monkeypatch.setattr(textfile, "WRITE_S", 0.05)
    file = Textfile(tmp_path / "muster.prom", page)
    try:
        with anyio.fail_after(60):
            await file.write()
            await inside.wait()
            assert "does not answer" in file.trouble
            await file.write()  # waits for the one thread, and no longer than it may
    finally:
        let_go.set()
