"""Which files in the log folder are whose."""

import os
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from muster.agent.jobs import job_folder
from muster.agent.jobs import log_ownership as files
from muster.agent.jobs.log_ownership import KnownJob
from muster.supervisors.output import log_names, log_removals
from muster.supervisors.output.log_layout import Folder

RANK = "a-proc-rank-3-device-0.txt"


def make(folder: Path, name: str, data: bytes = b"x" * 100) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "job", "aside", "kind", "rank"),
    [
        (RANK, "a", "", "output", 3),
        ("a-proc-rank-3-device-0.idx", "a", "", "index", 3),
        ("a-muster-1.log", "a", "", "job", None),
        ("a-worker-1.log", "a", "", "worker", None),
        (f"{RANK}.0000000000000000-0000000000001000", "a", "", "output", 3),
        (f"{RANK}.0000000000000000-0000000000001000.gz", "a", "", "output", 3),
        (f"{RANK}.1763733333", "a", ".1763733333", "output", 3),
        (f"{RANK}.1763733333++.0000000000000000-0000000000001000", "a", ".1763733333++", "output", 3),
        (f"a.b-muster-1.log-{RANK}", "a.b-muster-1.log-a", "", "output", 3),
    ],
)
def test_names(name: str, job: str, aside: str, kind: str, rank: int | None) -> None:
    found = log_names.parsed(name)
    assert found is not None
    assert (found.job_id, found.aside, found.kind, found.rank) == (job, aside, kind, rank)


@pytest.mark.parametrize(
    "name", ["nursery.log", "musterd.log", f"{RANK}.bak", f"{RANK}.gz", f".{RANK}", "a", "a-proc-rank-x-device-0.txt"]
)
def test_names_of_others(name: str) -> None:
    assert log_names.parsed(name) is None


def test_one_name_for_each(tmp_path: Path) -> None:
    """A job may be called like a file that was set aside for another."""
    for name in ("a-muster-0.log", "a-muster-0.log.1763733333", "a.1763733333-muster-0.log"):
        make(tmp_path, name)
    assert sorted(files.scan(tmp_path, {})) == ["a", "a.1763733333", "a/.1763733333"]


def test_what_is_counted(tmp_path: Path) -> None:
    make(tmp_path, RANK, bytes(10_000))
    make(tmp_path, "a-muster-0.log")
    make(tmp_path, "of-somebody-else.txt")
    plog = tmp_path / "a" / "ascend" / "process_log"
    plog.mkdir(parents=True)
    make(plog, "plog-1.log", bytes(20_000))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link-proc-rank-0-device-0.txt").symlink_to(tmp_path / RANK)
    found = files.scan(tmp_path, {})
    assert list(found) == ["a"]
    assert list(found["a"].folders) == [tmp_path / "a"]
    assert found["a"].bytes >= 30_000


def test_output_of_another_launcher_is_not_ours(tmp_path: Path) -> None:
    make(tmp_path, RANK)
    (tmp_path / "a").mkdir()
    found = files.scan(tmp_path, {})["a"]
    assert not found.ours and not found.folders
    make(tmp_path, "a-proc-rank-3-device-0.idx")
    assert files.scan(tmp_path, {})["a"].ours


def test_a_folder_of_another_name(tmp_path: Path) -> None:
    """MA_VJ_NAME gave it."""
    (tmp_path / "modelarts-job-7").mkdir()
    (tmp_path / "a").mkdir()
    found = files.scan(tmp_path, {"a": KnownJob("a", 0, None, ("a", "modelarts-job-7"))})["a"]
    assert {path.name for path in found.folders} == {"a", "modelarts-job-7"}


def test_sums_of_many_files_take_no_memory_for_their_names(tmp_path: Path) -> None:
    name = "a" * 100
    for rank in range(5000):
        (tmp_path / f"{name}-proc-rank-{rank}-device-0.txt").write_bytes(b"x")
    tracemalloc.start()
    try:
        found = files.scan(tmp_path, {})[name]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.bytes >= 5000 and not found.gone
    assert peak < 300_000, "their names have 600 KB"
    assert len(files.scan(tmp_path, {}, [name])[name].paths) == 5000


def test_a_folder_that_jobs_share_goes_with_the_first_of_them(tmp_path: Path) -> None:
    """Unless that one has a folder of its own, since this one is another user's."""
    (tmp_path / "shared").mkdir()
    jobs = {name: KnownJob(name, 0, None, (name, "shared")) for name in ("later", "earlier")}
    found = files.scan(tmp_path, jobs)
    assert {name: list(each.folders) for name, each in found.items()} == {"later": [tmp_path / "shared"]}
    assert not files.scan(tmp_path, jobs, ["earlier"])
    (tmp_path / "later.logs").mkdir()
    found = files.scan(tmp_path, jobs)
    assert {name: list(each.folders) for name, each in found.items()} == {
        "later": [tmp_path / "later.logs"],
        "earlier": [tmp_path / "shared"],
    }


def test_another_nodes_files_are_its_own(tmp_path: Path) -> None:
    """Where nodes share the folder."""
    for name in ("a-proc-rank-0-device-0.txt", "a-proc-rank-8-device-0.txt", "a-muster-0.log", "a-muster-1.log"):
        make(tmp_path, name)
    found = files.of_job(tmp_path, KnownJob("a", 1, frozenset({8}), ("a",)))
    assert {path.name for path in found.paths} == {"a-proc-rank-8-device-0.txt", "a-muster-1.log"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    precious = make(outside, "precious", bytes(1 << 20))
    log = tmp_path / "log"
    (log / "a").mkdir(parents=True)
    make(log, "a-muster-0.log")
    (log / "a" / "link").symlink_to(outside)
    (log / "a" / "loop").symlink_to(log / "a")
    (log / "b").symlink_to(outside)
    make(log, "b-muster-0.log")
    found = files.scan(log, {name: KnownJob(name, 0, None, (name,)) for name in "ab"}, "ab")
    assert found["a"].bytes < 1 << 20
    assert not found["b"].folders
    for each in found.values():
        files.remove(each, "test", known=False)
    assert precious.exists()
    assert os.listdir(log) == ["b"]


@pytest.mark.parametrize("kind", ["bind", "below", "itself", "tmpfs"])
def test_what_is_behind_a_mount_stays(tmp_path: Path, kind: str) -> None:
    """A job of root may leave one in its folder, a bind mount of the same disk, too."""
    precious = tmp_path / "data"
    precious.mkdir()
    make(precious, "set")
    folder = tmp_path / "log" / "a job"
    point = {"itself": folder, "below": folder / "deep" / "er"}.get(kind, folder / "data set")
    point.mkdir(parents=True)
    how = ("-t", "tmpfs", "tmpfs") if kind == "tmpfs" else ("--bind", str(precious))
    done = subprocess.run(["mount", *how, str(point)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    try:
        make(point, "more")
        with pytest.raises(OSError, match="is mounted: unmount it"):
            files.remove_folders([folder])
        assert "cannot remove it" in job_folder.remove_tree(folder)
        assert (precious / "set").exists() and (point / "more").exists()
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)
    assert job_folder.remove_tree(folder) == ""
    assert not folder.exists() and (precious / "set").exists()


def test_a_folder_however_deep_goes(tmp_path: Path) -> None:
    make(tmp_path, "a-muster-0.log")
    (tmp_path / "a").mkdir()
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 100, dir_fd=fd)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    files.remove(files.scan(tmp_path, {}, ["a"])["a"], "test", known=False)
    assert os.listdir(tmp_path) == []


def test_until_it_is_removed_a_reader_finds_output_where_it_was(tmp_path: Path, monkeypatch) -> None:
    log = make(tmp_path, RANK, b"y" * 50)
    make(tmp_path, f"{RANK}.0000000000000000-0000000000000100")
    seen = []
    record = log_removals.record_removal

    def look(*args: Any) -> None:
        for _ in range(2):
            (layout,) = Folder(tmp_path).look([log])
            seen.append((layout.begin, layout.end))
            if len(seen) == 1:
                record(*args)

    monkeypatch.setattr(log_removals, "record_removal", look)
    files.remove(files.scan(tmp_path, {}, ["a"])["a"], "for a test", known=True)
    assert seen == [(0, 150), (150, 150)]
    assert os.listdir(tmp_path) == [f"{RANK}.removed"]


def test_what_was_removed_of_a_known_job_is_reported(tmp_path: Path) -> None:
    log = make(tmp_path, RANK, b"y" * 50)
    make(tmp_path, f"{RANK}.0000000000000000-0000000000000100")
    make(tmp_path, "a-proc-rank-4-device-1.txt", b"")
    make(tmp_path, "a-worker-0.log")
    before = time.time()
    found = files.scan(tmp_path, {}, ["a"])["a"]
    assert not found.gone
    files.remove(found, "for a test", known=True)
    assert os.listdir(tmp_path) == [f"{RANK}.removed"]
    (record,) = log_removals.removals(log)
    assert (record.start, record.end, record.why) == (0, 150, "for a test")
    assert record.at >= before - 0.01
    left = files.scan(tmp_path, {}, ["a"])["a"]
    assert left.gone
    files.remove(left, "for a test", known=False)
    assert os.listdir(tmp_path) == []
