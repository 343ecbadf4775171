"""From a job's folder to an entry and its events."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent import job_folder
from agent.entry import Entry, fetch, load
from agent.errors import NoRoom
from supervisors import journal
from supervisors.journal import Writer
from supervisors.lifecycle import Job, State
from supervisors.paths import JobPaths, Root
from supervisors.spec import JobSpec

SPEC = JobSpec("a", ("true",), env={"TOKEN": "secret"}, ranks=2)
ACCEPTED: dict[str, Any] = {
    "kind": "accepted", "t": 10.0, "format": 1, "digest": SPEC.digest(), "boot": "b", "card_kind": "slot",
    "master_addr": "127.0.0.1", "master_port": 1, "by": "me", "first_rank": 0, "devices": [0, 1],
}  # fmt: skip
STORY: list[dict[str, Any]] = [
    {"kind": "checking", "t": 11.0},
    {"kind": "checked", "t": 12.5, "ok": True, "results": [], "skipped": ""},
    {"kind": "taken", "t": 12.6, "pid": 7, "takeover": False},
    {"kind": "preparing", "t": 13.0, "attempt": 0, "cgroup": ""},
    {"kind": "spawned", "t": 13.1, "ranks": [[0, 100, 1], [1, 101, 1]]},
    {"kind": "running", "t": 13.5, "up": 100.0},
    {"kind": "taken", "t": 14.0, "pid": 8, "takeover": True},
    {"kind": "lost_bytes", "t": 15.0, "rank": 1, "bytes": 9, "since": 14.0, "until": 15.0, "error": "No space"},
    {"kind": "exited", "t": 16.0, "rank": 0, "outcome": "EXITED", "status": 0x100, "usage": {}},
    {"kind": "stopping", "t": 16.5, "up": 103.0, "cause": "rank_failed", "by": "rank 0", "reason": "", "steps": [1.0]},
    {"kind": "escalated", "t": 16.5, "signal": "SIGTERM", "processes": 1},
    {"kind": "stopping", "t": 16.7, "up": 103.2, "cause": "requested", "by": "you", "reason": "now", "steps": [0.0]},
    {"kind": "escalated", "t": 16.8, "signal": "SIGKILL", "processes": 1},
    {"kind": "exited", "t": 17.0, "rank": 1, "outcome": "GANG_VICTIM", "status": 9, "usage": {}},
    {"kind": "ended", "t": 17.5, "state": "FAILED", "verdict": {"exit_code": 1, "summary": "rank 0 failed"}},
]


def made(root: Root, records: list[dict[str, Any]]) -> JobPaths:
    root.jobs.mkdir(parents=True, exist_ok=True)
    held = job_folder.create(root, SPEC, ACCEPTED)
    held.writer.append(records)
    held.close()
    return root.job("a")


def test_a_journal_is_told_as_events(tmp_path: Path):
    entry, told = load("a", made(Root.under(tmp_path), STORY))
    assert entry.damaged == ""
    assert entry.spec == SPEC
    assert entry.job.state is State.FAILED
    assert [(n, e.kind, e.rank, e.seconds) for n, e in told] == [
        (0, "job.accepted", None, 0.0),
        (1, "job.checking", None, 0.0),
        (2, "job.checked", None, 1.5),
        (4, "job.preparing", None, 0.0),
        (6, "job.running", None, 0.5),
        (7, "job.taken_over", None, 0.0),
        (8, "job.warning", 1, 0.0),
        (9, "rank.exited", 0, 2.9),
        (10, "job.stopping", None, 3.0),
        (12, "job.stopping", None, 0.0),
        (13, "job.warning", None, 0.0),
        (14, "rank.exited", 1, 3.9),
        (15, "job.ended", None, 1.0),
    ]
    attributes = {n: e.attributes for n, e in told}
    assert attributes[9] == {"outcome": "EXITED", "device": "0", "pid": "100", "exit_code": "1"}
    assert attributes[14]["signal"] == "9"
    assert attributes[15] == {"state": "FAILED", "exit_code": "1"}
    assert [e.time for _, e in told] == sorted(e.time for _, e in told)
    assert "secret" not in repr(told)


def test_the_story_is_the_same_however_it_is_read(tmp_path: Path):
    paths = made(Root.under(tmp_path), STORY)
    _, whole = load("a", paths)
    sizes = [len(journal.encode(r)) for r in journal.read(paths.journal).records]
    entry = Entry("a", SPEC, Job(), paths)
    told = []
    for i in range(len(sizes)):
        # What is beyond the size that the supervisor told is not looked at.
        told += entry.absorb(*fetch(paths.journal, entry.end, entry.records, sum(sizes[: i + 1])))
        assert entry.records == i + 1
    assert told == whole
    assert entry.end == paths.journal.stat().st_size


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: p.journal.write_bytes(p.journal.read_bytes().replace(b"checking", b"checkinX")), "line 2"),
        (lambda p: p.journal.write_bytes(b""), "has no record"),
        (lambda p: p.journal.unlink(), "cannot be read"),
        (lambda p: p.spec.write_text("{"), "spec.json: is damaged"),
        (lambda p: p.spec.unlink(), "cannot be read"),
    ],
)
def test_damage_is_said_and_nothing_guessed(damage: Any, said: str, tmp_path: Path):
    paths = made(Root.under(tmp_path), STORY)
    damage(paths)
    entry, told = load("a", paths)
    assert said in entry.damaged
    assert str(paths.folder) in entry.damaged
    assert entry.job.state is State.LOST
    assert entry.job.verdict is not None
    assert entry.job.verdict.summary == entry.damaged
    assert entry.job.accepted_at > 0
    assert told == []


def test_a_record_that_does_not_follow_is_damage(tmp_path: Path):
    entry, _ = load("a", made(Root.under(tmp_path), [{"kind": "running", "t": 11.0, "up": 100.0}]))
    assert "running in state ACCEPTED" in entry.damaged


def test_a_folder_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = Root.under(tmp_path)
    root.jobs.mkdir(parents=True)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "reserve", full)
        with pytest.raises(NoRoom, match="No space left"):
            job_folder.create(root, SPEC, ACCEPTED)
    assert list(root.jobs.iterdir()) == []
    job_folder.create(root, SPEC, ACCEPTED).close()
    assert job_folder.folders(root) == (["a"], [], [])
    assert (root.job("a").spec.stat().st_mode & 0o777) == 0o600


def test_leftovers_and_strangers_are_told_apart(tmp_path: Path):
    root = Root.under(tmp_path)
    made(root, [])
    (root.jobs / ".b.1234").mkdir()
    (root.jobs / "no job").mkdir()
    (root.jobs / "file").touch()
    assert job_folder.folders(root) == (["a"], [root.jobs / ".b.1234"], [root.jobs / "file", root.jobs / "no job"])


def test_a_job_is_removed_with_its_logs_or_without(tmp_path: Path):
    root = Root.under(tmp_path)
    root.log.mkdir(parents=True)
    for keep in (True, False):
        entry, _ = load("a", made(root, STORY))
        logs = [root.rank_log("a", 0, 0), root.rank_index("a", 0, 0), root.rank_log("a", 1, 1)]
        other = root.rank_log("a2", 0, 0)
        for path in (*logs, other):
            path.touch()
        assert job_folder.remove(root, entry, keep) == ""
        assert list(root.jobs.iterdir()) == []
        assert [path.exists() for path in logs] == [keep] * 3
        assert other.exists()


def test_the_logs_of_a_damaged_job_are_found_by_their_names(tmp_path: Path):
    root = Root.under(tmp_path)
    root.log.mkdir(parents=True)
    paths = made(root, STORY)
    paths.journal.write_bytes(b"x\n")
    entry, _ = load("a", paths)
    for path in (root.rank_log("a", 5, 1), root.rank_index("a", 5, 1), root.rank_log("a-b", 0, 0)):
        path.touch()
    job_folder.remove(root, entry, keep_logs=False)
    assert [path.name for path in root.log.iterdir()] == ["a-b-proc-rank-0-device-0.txt"]


def test_a_job_without_a_supervisor_is_taken_up_again(tmp_path: Path):
    root = Root.under(tmp_path)
    held = job_folder.reclaim(made(root, STORY[:1]))
    assert held is not None
    assert held.writer.next_number == 2
    held.close()


@pytest.mark.parametrize("records", [STORY[:3], STORY])
def test_a_job_that_a_supervisor_had_is_not(records: list[dict[str, Any]], tmp_path: Path):
    assert job_folder.reclaim(made(Root.under(tmp_path), records)) is None


def test_a_torn_end_is_no_damage(tmp_path: Path):
    paths = made(Root.under(tmp_path), STORY[:2])
    with open(paths.journal, "ab") as file:
        file.write(b"00000000 {")
    entry, told = load("a", paths)
    assert entry.damaged == ""
    assert len(told) == 3
