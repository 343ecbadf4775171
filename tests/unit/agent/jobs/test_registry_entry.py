"""From a job's folder to an entry and its events."""

import contextlib
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from muster.agent.errors import NoRoom
from muster.agent.jobs import job_folder
from muster.agent.jobs.entry import Entry, fetch, load
from muster.agent.jobs.live.job_task import JobTask
from muster.supervisors.model import journal
from muster.supervisors.model.journal import FORMAT, Writer
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import State
from muster.supervisors.output.time_index import INDEX_RECORD
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.supervision_errors import JournalDamaged

SPEC = JobSpec("a", ("true",), env={"TOKEN": "secret"}, ranks=2)
ACCEPTED: dict[str, Any] = {
    "kind": "accepted", "t": 10.0, "format": FORMAT, "digest": SPEC.digest(), "boot": "b", "card_kind": "slot",
    "master_addr": "127.0.0.1", "master_port": 1, "by": "me", "first_rank": 0, "devices": [0, 1], "cards": [],
    "node_rank": 0, "node_count": 1, "node_name": "", "local_ranks": 2, "world_size": 2,
}  # fmt: skip
STORY: list[dict[str, Any]] = [
    {"kind": "checking", "t": 11.0},
    {"kind": "checked", "t": 12.5, "ok": True, "results": [], "skipped": ""},
    {"kind": "taken", "t": 12.6, "pid": 7, "takeover": False},
    {"kind": "preparing", "t": 13.0, "attempt": 0, "cgroup": "", "oom_kills": 0},
    {"kind": "spawned", "t": 13.1, "ranks": [[0, 100, 1], [1, 101, 1]], "boot": "b"},
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


def test_a_journal_that_grows_during_the_look_was_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread looks, and the loop takes meanwhile what the supervisor wrote. Nor is one that was cut passed over."""
    paths = made(Root.under(tmp_path), STORY[:-1])
    entry, _ = load("a", paths)
    entry.sure = paths.journal.stat().st_size
    fstat = os.fstat

    def while_it_grows(fd: int) -> os.stat_result:
        found = fstat(fd)
        with open(paths.journal, "ab") as file:
            file.write(journal.encode(STORY[-1] | {"n": len(STORY)}))
        entry.sure = paths.journal.stat().st_size
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", while_it_grows)
        entry.refuse_shorter()
    os.truncate(paths.journal, entry.sure - 1)
    with pytest.raises(JournalDamaged, match="somebody cut it"):
        entry.refuse_shorter()


def test_a_journal_is_reported_as_events(tmp_path: Path):
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
        (8, "job.output_lost", 1, 0.0),
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
    assert attributes[15] == {"state": "FAILED", "exit_code": "1", "recommendation": "NONE"}
    assert [e.time for _, e in told] == sorted(e.time for _, e in told)
    assert "secret" not in repr(told)


#: What a job with everything adds to that: a rank table, steps, an attempt that fails, an epilog.
PLACE: dict[str, Any] = {
    "card_kind": "ascend", "master_addr": "10.0.0.1", "master_port": 18888, "table": "/t", "first_rank": 0,
    "numbers": [2, 3], "devices": [0, 1], "cards": [4, 5], "node_rank": 1, "node_count": 2, "node_name": "10.0.0.2",
    "local_ranks": 2, "world_size": 4,
}  # fmt: skip
STEPS: list[dict[str, Any]] = [
    {"kind": "checking", "t": 11.0, "what": "rank table /t"},
    {"kind": "planned", "t": 14.0, **PLACE},
    {"kind": "checking", "t": 14.0},
    {"kind": "checked", "t": 14.5, "ok": True, "results": [], "skipped": "asked"},
    {"kind": "taken", "t": 14.6, "pid": 7, "takeover": False},
    {"kind": "preparing", "t": 15.0, "attempt": 0, "cgroup": "", "oom_kills": 0},
    {"kind": "step", "t": 15.0, "name": "pre_start", "pid": 90, "start": 1, "boot": "b", "up": 100.0,
     "argv": ["sh", "secret"]},
    {"kind": "exited", "t": 17.5, "rank": -1, "outcome": "EXITED", "status": 0, "usage": {}},
    {"kind": "lost_bytes", "t": 17.6, "rank": -2, "bytes": 9, "since": 14.0, "until": 15.0, "error": "No space"},
    {"kind": "spawned", "t": 18.0, "ranks": [[2, 100, 1], [3, 101, 1]], "boot": "b"},
    {"kind": "running", "t": 18.0, "up": 103.0},
    {"kind": "exited", "t": 20.0, "rank": 3, "outcome": "SIGNALLED", "status": 9, "detail": "not ours", "usage": {}},
    {"kind": "stopping", "t": 20.0, "up": 105.0, "cause": "rank_failed", "by": "rank 3", "reason": "", "steps": [1.0]},
    {"kind": "exited", "t": 20.5, "rank": 2, "outcome": "GANG_VICTIM", "status": 15, "usage": {}},
    {
        "kind": "restarting", "t": 21.0, "attempt": 1, "verdict": {"exit_code": 137, "summary": "rank 3 was killed"},
        "log_ends": {"2": 1, "3": 2}, "delay_s": 1.25, "up": 106.0,
    },
    {"kind": "preparing", "t": 22.0, "attempt": 1, "cgroup": "", "oom_kills": 0},
    {"kind": "step", "t": 22.0, "name": "pre_start", "pid": 91, "start": 1, "boot": "b", "up": 107.0, "argv": ["sh"]},
    {"kind": "exited", "t": 23.0, "rank": -1, "outcome": "EXITED", "status": 0x300, "usage": {}},
    {"kind": "concluded", "t": 23.0, "state": "FAILED", "verdict": {"exit_code": 3, "summary": "pre_start failed"}},
    {"kind": "step", "t": 23.0, "name": "epilog", "pid": 92, "start": 1, "boot": "b", "up": 108.0, "argv": ["sh"]},
    {
        "kind": "exited", "t": 24.0, "rank": -1, "outcome": "NOT_STARTED", "status": 0x7F00, "usage": {},
        "detail": "sh: not found",
    },
    {"kind": "warning", "t": 24.0, "text": "epilog did not run"},
    {"kind": "ended", "t": 24.0, "state": "FAILED", "verdict": {"exit_code": 3, "summary": "pre_start failed"}},
]  # fmt: skip


def test_steps_and_attempts_are_reported_as_events(tmp_path: Path):
    entry, told = load("a", made(Root.under(tmp_path), STEPS))
    assert entry.damaged == ""
    assert [(n, e.kind, e.rank, e.seconds) for n, e in told] == [
        (0, "job.accepted", None, 0.0),
        (1, "job.waiting", None, 0.0),
        (2, "job.planned", None, 3.0),
        (3, "job.checking", None, 0.0),
        (4, "job.checked", None, 0.5),
        (6, "job.preparing", None, 0.0),
        (7, "job.step", None, 0.0),
        (8, "job.step_ended", None, 2.5),
        (9, "job.output_lost", None, 0.0),
        (11, "job.running", None, 3.0),
        (12, "rank.exited", 3, 2.0),
        (13, "job.stopping", None, 2.0),
        (14, "rank.exited", 2, 2.5),
        (15, "job.restarting", None, 1.0),
        (16, "job.preparing", None, 0.0),
        (17, "job.step", None, 0.0),
        (18, "job.step_ended", None, 1.0),
        (20, "job.step", None, 0.0),
        (21, "job.step_ended", None, 1.0),
        (22, "job.warning", None, 0.0),
        (23, "job.ended", None, 2.0),
    ]
    text = {n: e.message for n, e in told}
    assert text[1] == "the job waits for the rank table /t"
    assert "node 1 of 2, rank 2, 3 of 4" in text[2]
    assert text[8] == "pre_start exited with code 0"
    assert text[12].endswith("not ours")
    assert text[15] == "attempt 0 failed: rank 3 was killed; the next one begins in 1.2 s"
    assert text[18] == "pre_start exited with code 3"
    assert "sh: not found" in text[21]
    attributes = {n: e.attributes for n, e in told}
    assert attributes[2] == {"node_rank": "1", "world_size": "4"}
    assert attributes[7] == {"step": "pre_start", "pid": "90"}
    assert attributes[15] == {"attempt": "1", "exit_code": "137"}
    assert attributes[21]["outcome"] == "NOT_STARTED"
    assert "secret" not in repr(told)
    assert [len(entry.job.past), entry.job.attempt, entry.job.state] == [1, 1, State.FAILED]


def test_a_restart_has_the_node_checked_again(tmp_path: Path):
    """What was found before it says nothing of the node as it is now."""
    entry, _ = load("a", made(Root.under(tmp_path), STEPS[:4]))
    assert entry.checked is not None
    again = {
        "kind": "restarting", "t": 21.0, "attempt": 1, "verdict": {"exit_code": 125, "summary": "unfit"},
        "log_ends": {}, "delay_s": 1.0, "up": 106.0,
    }  # fmt: skip
    entry.absorb([{"n": 5} | again], 0)
    assert entry.checked is None


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


def test_a_job_is_created_with_its_fifos_held_and_what_follows_its_acceptance(tmp_path: Path):
    root = Root.under(tmp_path)
    root.jobs.mkdir(parents=True)
    root.log.mkdir()
    held = job_folder.create(root, SPEC, ACCEPTED, more=STORY[:2])
    held.close()
    assert held.holds is not None and held.holds.is_taken
    paths = root.job(SPEC.job_id)
    writer = os.open(paths.fifo(1), os.O_WRONLY | os.O_NONBLOCK)  # ENXIO if nobody holds it
    os.close(writer)
    held.holds.release()
    assert [record["kind"] for record in journal.read(paths.journal).records] == ["accepted", "checking", "checked"]


def test_a_job_whose_ranks_a_table_names_gets_its_fifos_later(tmp_path: Path):
    root = Root.under(tmp_path)
    root.jobs.mkdir(parents=True)
    held = job_folder.create(root, replace(SPEC, rank_table="/table.json"), ACCEPTED)
    held.close()
    assert held.holds is None and not list(root.job(SPEC.job_id).folder.glob("*.fifo"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda p: p.journal.write_bytes(p.journal.read_bytes().replace(b"checking", b"checkinX")), "line 2"),
        (lambda p: p.journal.write_bytes(b""), "has no record"),
        (lambda p: p.journal.unlink(), "journal: somebody removed it"),
        (lambda p: p.spec.write_text("{"), "spec.json: is damaged"),
        (lambda p: p.spec.unlink(), "spec.json: somebody removed it"),
    ],
)
def test_damage_is_reported_and_nothing_guessed(damage: Any, said: str, tmp_path: Path):
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


def test_leftovers_and_strangers_are_distinguished(tmp_path: Path):
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


def test_the_log_of_the_job_and_the_folder_of_further_logs_go_with_them(tmp_path: Path):
    root = Root.under(tmp_path)
    (root.log / "a" / "ascend").mkdir(parents=True)
    (root.log / "a" / "ascend" / "plog").touch()
    (root.log / "b").mkdir()
    job_log = [root.job_log("a", 1), root.job_index("a", 1)]
    for path in (*job_log, root.job_log("a", 0)):
        path.touch()
    entry, _ = load("a", made(root, STEPS))
    assert job_folder.remove(root, entry, keep_logs=False) == ""
    assert sorted(path.name for path in root.log.iterdir()) == ["a-muster-0.log", "b"], (
        "of another node, of another job"
    )


def test_lines_of_the_daemon_stand_in_the_jobs_log(tmp_path: Path):
    """It writes them before there is a supervisor."""
    log = tmp_path / "a-muster-0.log"
    index = tmp_path / "a-muster-0.idx"
    job_folder.append_log(log, index, ["one", "two\nlines \udcff"])
    size = log.stat().st_size
    job_folder.append_log(log, index, ["three"])
    (first, _), (second, _) = INDEX_RECORD.iter_unpack(index.read_bytes())
    assert (first, second) == (0, size), "and when they were written"
    lines = log.read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["[muster] one", "[muster] two lines ?", "[muster] three"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} .*", line) for line in lines)


def test_the_output_of_an_earlier_job_of_that_name_is_set_aside(tmp_path: Path):
    root = Root.under(tmp_path)
    root.log.mkdir()
    job = Job(ranks=[Rank(3, 0, 1)], node_rank=2)
    names = "a-proc-rank-3-device-1.txt", "a-proc-rank-3-device-1.idx", "a-muster-2.log", "a-muster-2.idx"
    for round_ in range(2):  # two of them that ended in the same second
        for name in names:
            (root.log / name).write_text(f"{name} of job {round_}\n")
            os.utime(root.log / name, (1000, 1000))
        job_folder.set_logs_aside(root, "a", job)
    assert not [name for name in names if (root.log / name).exists()]
    for name in names:
        assert (root.log / f"{name}.1000").read_text() == f"{name} of job 0\n"
        assert (root.log / f"{name}.1000+").read_text() == f"{name} of job 1\n"


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path):
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        job_folder.append_log(tmp_path / "log", tmp_path / "idx", ["x"])
    assert not (tmp_path / "elsewhere").exists()


def test_a_job_without_a_supervisor_is_taken_up_again(tmp_path: Path):
    root = Root.under(tmp_path)
    held = job_folder.reclaim(made(root, STORY[:1]))
    assert held is not None
    assert held.writer.next_number == 2
    held.close()


def test_a_job_that_a_supervisor_had_is_only_while_nothing_has_run(tmp_path: Path):
    held = job_folder.reclaim(made(Root.under(tmp_path / "taken"), STORY[:3]))
    assert held is not None
    held.close()
    assert job_folder.reclaim(made(Root.under(tmp_path / "run"), STORY)) is None


def test_a_torn_end_is_no_damage(tmp_path: Path):
    paths = made(Root.under(tmp_path), STORY[:2])
    with open(paths.journal, "ab") as file:
        file.write(b"00000000 {")
    entry, told = load("a", paths)
    assert entry.damaged == ""
    assert len(told) == 3


def test_what_a_supervisor_owes_is_known_before_it_is_written_and_counts_once(tmp_path: Path):
    """And if another supervisor writes something else in its place, that is seen."""
    paths = made(Root.under(tmp_path), STORY[:6])
    entry, _ = load("a", paths)
    owed = [{"n": entry.records + number, "t": 50.0 + number} | record for number, record in enumerate(STORY[6:8])]
    told = [event.kind for record in owed for _, event in entry.expect(record)]
    assert told == [event.kind for _, event in load("a", made(Root.under(tmp_path / "b"), STORY[:8]))[1]][-len(told) :]
    assert entry.expect(owed[0]) == [], "told once"
    state = entry.job.state
    assert entry.agrees(owed)
    assert not entry.agrees([owed[0] | {"t": 99.0}])
    assert entry.absorb(owed, 1234) == []
    assert (entry.job.state, entry.owed, entry.records) == (state, [], owed[-1]["n"] + 1)


def test_why_a_journal_takes_no_record_is_noted_until_it_does_or_the_job_has_ended(tmp_path: Path):
    paths = made(Root.under(tmp_path), STORY)
    entry, _ = load("a", made(Root.under(tmp_path / "b"), STORY[:-1]))
    changed = entry.changed.count
    entry.refuses("/j: Read-only file system")
    assert entry.changed.count > changed and "/j: Read-only file system" in (entry.notes or {})["journal"]
    entry.refuses("")
    assert entry.notes is None
    entry.refuses("/j: Read-only file system")
    entry.absorb(*fetch(paths.journal, entry.end, entry.records, None))
    assert entry.job.state.final and entry.notes is None


async def test_two_that_read_along_at_once_tell_each_record_once(tmp_path: Path):
    """The follower of the supervisor, and the task that ends the job for it: what the slower one has read is known."""
    root = Root.under(tmp_path)
    paths = made(root, STORY[:5])
    entry, _ = load("a", paths)
    with contextlib.closing(Writer(paths.journal, journal.read(paths.journal))) as writer:
        writer.append(STORY[5:7])
        size = writer.size
        writer.append(STORY[7:])
    told: list[int] = []
    slow = anyio.Event()

    async def run(function: Any, *args: Any, **_: Any) -> Any:
        result = function(*args)
        if args and args[-1] == size:
            await slow.wait()
        return result

    around: Any = SimpleNamespace(
        root=root, reserve=None, pool=SimpleNamespace(run=run), publish=lambda _, more: told.extend(n for n, _ in more)
    )
    task = JobTask(entry, around, None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task.catch_up, size)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(task.catch_up, None)
        await anyio.wait_all_tasks_blocked()
        slow.set()
    assert (entry.records, entry.end) == (len(STORY) + 1, paths.journal.stat().st_size)
    assert told == sorted(set(told)) and entry.job.state is State.FAILED
