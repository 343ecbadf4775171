"""How many processes and threads muster may have in a container, by the cgroups around it."""

import os
from pathlib import Path

import pytest

from muster.agent.host import task_room
from muster.supervisors.system import cgroups


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cgroup of this process, below one of the container's that has a limit."""
    folder = tmp_path / "container" / "session"
    folder.mkdir(parents=True)
    limits(folder.parent, "40", 5)
    limits(folder, "max", 5)
    monkeypatch.setattr(cgroups, "around", lambda _: folder)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return folder


def limits(folder: Path, most: str, used: int) -> None:
    (folder / "pids.max").write_text(f"{most}\n")
    (folder / "pids.current").write_text(f"{used}\n")


def test_there_is_room(around: Path) -> None:
    assert task_room.trouble(task_room.COMMAND, task_room.DAEMON) == ""


def test_the_tightest_limit_is_named_with_the_need_and_the_remedy(around: Path) -> None:
    limits(around.parent, "20", 5)
    text = task_room.trouble(task_room.COMMAND, task_room.DAEMON)
    assert f"{around.parent}/pids.max is 20, of which 5 are in use, and muster needs 30 more" in text
    assert "--pids-limit" in text
    limits(around, "6", 5)
    assert f"{around}/pids.max is 6, of which 5" in task_room.trouble(task_room.DAEMON)


def test_more_cpus_need_more_threads(around: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert "muster needs 54 more" in task_room.trouble(task_room.COMMAND, task_room.DAEMON)


def test_no_limit_is_no_trouble(around: Path) -> None:
    limits(around.parent, "max", 5)
    assert task_room.trouble(task_room.COMMAND, task_room.DAEMON) == ""
