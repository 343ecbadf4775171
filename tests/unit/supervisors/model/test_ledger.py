"""The journal in the hands of a supervisor: a record is on disk, then it moves the job, then it is told."""

import copy
import errno
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.model import journal
from muster.supervisors.model.journal import FORMAT, Contents, Record, Writer
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.replay import replay
from muster.supervisors.model.states import Kind, State
from muster.supervisors.paths import JobPaths
from muster.supervisors.supervision_errors import IllegalTransition
from tests.unit.supervision import in_own_process

ACCEPTED: Record = {
    "t": 1.0, "kind": "accepted", "format": FORMAT, "digest": "d", "boot": "b", "card_kind": "slot",
    "master_addr": "127.0.0.1", "master_port": 29500, "by": "uid 0", "first_rank": 0, "devices": [0], "cards": [],
    "node_rank": 0, "node_count": 1, "node_name": "", "local_ranks": 1, "world_size": 1,
}  # fmt: skip
PREPARING: Record = {"kind": Kind.PREPARING, "attempt": 0, "cgroup": "", "oom_kills": 0}
SPAWNED: Record = {"kind": Kind.SPAWNED, "ranks": [[0, 100, 1000]], "boot": "b"}
RUNNING: Record = {"kind": Kind.RUNNING, "up": 5.0}
STEP: Record = {"kind": Kind.STEP, "name": "epilog", "pid": 9, "start": 90, "boot": "b", "up": 5.0, "argv": ["sh"]}
EXITED: Record = {"kind": Kind.EXITED, "rank": 0, "outcome": "EXITED", "status": 0x300}
VERDICT: Record = {"exit_code": 3, "summary": "it exited with code 3"}
AGAIN: Record = {
    "kind": Kind.RESTARTING, "attempt": 1, "verdict": VERDICT, "log_ends": {"0": 1}, "delay_s": 1.0, "up": 6.0,
}  # fmt: skip
CONCLUDED: Record = {"kind": Kind.CONCLUDED, "state": "FAILED", "verdict": VERDICT}
ENDED: Record = {"kind": Kind.ENDED, "state": "FAILED", "verdict": VERDICT}
STOPPING: Record = {"kind": Kind.STOPPING, "cause": "requested", "by": "", "reason": "", "steps": [], "up": 7.0}
ESCALATED: Record = {"kind": Kind.ESCALATED, "signal": "SIGTERM", "processes": 1}


class Desk:
    """A ledger on a journal of its own, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.paths = JobPaths(folder)
        writer = Writer(self.paths.journal, Contents([], 0, torn=False))
        writer.append([ACCEPTED])
        writer.close()
        #: Per telling: the size that was told, that of the file, and the job's state by then.
        self.told: list[tuple[int, int, State]] = []
        self.owed: list[Record] = []
        self.ledger = Ledger(self.paths, journal.read(self.paths.journal), self.tell)

    def tell(self, size: int, owed: list[Record], before: int, written: list[Record]) -> None:
        self.owed = owed
        # Who has read the journal up to `before` need not read it.
        assert journal.read(self.paths.journal, before, len(self.records) - len(written)).records == written
        self.told.append((size, self.paths.journal.stat().st_size, self.ledger.job.state))

    @property
    def records(self) -> list[Record]:
        return journal.read(self.paths.journal).records

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.ledger.writer.close()


def test_what_is_committed_is_on_disk_moves_the_job_and_is_published(desk: Desk) -> None:
    desk.ledger.commit(PREPARING)
    desk.ledger.commit(SPAWNED, RUNNING)
    assert desk.kinds() == ["accepted", "preparing", "spawned", "running"]
    assert [(size == on_disk, state) for size, on_disk, state in desk.told] == [
        (True, State.PREPARING),
        (True, State.RUNNING),
    ]
    assert desk.told[-1][0] == desk.paths.journal.stat().st_size
    assert replay(desk.records) == desk.ledger.job


def test_what_is_not_published_at_once_is_published_with_the_next(desk: Desk) -> None:
    desk.ledger.commit(PREPARING, sync=False, tell=False)
    assert desk.told == [] and desk.ledger.job.state is State.PREPARING
    desk.ledger.commit(SPAWNED)
    assert [size for size, _, _ in desk.told] == [desk.paths.journal.stat().st_size]


@pytest.mark.parametrize(
    ("before", "illegal"),
    [
        # What a defect of ours once wrote: the journal could not be read any more, and the job was lost.
        ([PREPARING, AGAIN], AGAIN),
        ([], AGAIN),
        ([], RUNNING),
        ([], STEP),
        ([], EXITED),
        ([], CONCLUDED),
        ([], {"kind": "nonsense"}),
        ([PREPARING], ESCALATED),
        ([PREPARING, SPAWNED, RUNNING], PREPARING),
        ([PREPARING, SPAWNED, RUNNING], SPAWNED),
        ([PREPARING, STOPPING], RUNNING),
        ([PREPARING, ENDED], AGAIN),
        ([PREPARING, ENDED], ENDED),
    ],
    ids=lambda given: "-".join(r["kind"] for r in given) or "accepted" if isinstance(given, list) else given["kind"],
)
def test_an_illegal_record_is_refused_before_it_is_written(desk: Desk, before: list[Record], illegal: Record) -> None:
    for record in before:
        desk.ledger.commit(record)
    was, job, told = desk.paths.journal.read_bytes(), copy.deepcopy(desk.ledger.job), list(desk.told)
    with pytest.raises(IllegalTransition):
        desk.ledger.commit(illegal)
    assert desk.paths.journal.read_bytes() == was
    assert (desk.ledger.job, desk.told) == (job, told)
    if not job.state.final:
        desk.ledger.commit(STOPPING)  # and the next has the number that the illegal one did not take
        assert [record["n"] for record in desk.records] == list(range(len(before) + 2))
    assert replay(desk.records) == desk.ledger.job


def test_a_disk_that_refuses_leaves_all_as_it_was(tmp_path: Path) -> None:
    """And the same record may come again."""

    def work() -> Any:
        desk = Desk(tmp_path)
        size, hard = desk.paths.journal.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        with pytest.raises(OSError) as caught:
            desk.ledger.commit(PREPARING)
        story: list[Any] = [caught.value.errno, desk.ledger.job.state, desk.kinds(), list(desk.told)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        desk.ledger.commit(PREPARING)
        return [*story, desk.ledger.job.state, desk.kinds(), len(desk.told)]

    refused = [errno.EFBIG, "ACCEPTED", ["accepted"], []]
    assert in_own_process(work) == [*refused, "PREPARING", ["accepted", "preparing"], 1]


def test_what_is_owed_moves_the_job_is_published_and_written_before_the_next_record(tmp_path: Path) -> None:
    def work() -> Any:
        desk = Desk(tmp_path)
        size, hard = desk.paths.journal.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        desk.ledger.owe(STOPPING)
        desk.ledger.owe({"kind": Kind.WARNING, "text": "w"})
        story: list[Any] = [desk.ledger.job.state, desk.kinds(), [(r["n"], r["kind"]) for r in desk.owed]]
        with pytest.raises(OSError):
            desk.ledger.settle()
        assert desk.ledger.refusal == f"{desk.paths.journal}: File too large"
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        desk.ledger.commit(ENDED)
        assert replay(desk.records) == desk.ledger.job
        assert desk.ledger.refusal == ""
        return [*story, desk.kinds(), desk.owed, desk.ledger.owes]

    owed = [[1, "stopping"], [2, "warning"]]
    written = ["accepted", "stopping", "warning", "ended"]
    assert in_own_process(work) == ["STOPPING", ["accepted"], owed, written, [], False]
