"""How ranks end, seen by the supervisor: what is written down, and that they are only then waited for."""

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.probes.kernel import process
from muster.supervisors.job.ends import Ends
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Job, Rank, Stop
from muster.supervisors.model.replay import apply
from muster.supervisors.model.states import STEP, State, StopCause
from muster.supervisors.paths import JobPaths
from muster.supervisors.system import cgroups, oom
from muster.supervisors.system.loop import Loop
from muster.supervisors.wire.link import NurseryLink
from tests.unit.supervision import in_own_process, wait_ended


class Desk:
    """Real children of this very process, a journal that is a list, and a loop that is us."""

    def __init__(self, folder: Path, *commands: tuple[str, ...], **changes: Any) -> None:
        self.children = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
        self.job = Job(state=State.RUNNING, spawned=True)
        for i, child in enumerate(self.children):
            pid, start = process.identity(child.pid)
            self.job.ranks.append(Rank(i, i, i, pid, start))
        for name, value in changes.items():
            setattr(self.job, name, value)
        self.records: list[dict[str, Any]] = []
        self.owes = False
        self.reaped: list[int] = []
        self.link = SimpleNamespace(on_ended=None, tell=lambda _, pid: self.reaped.append(pid))
        loop = SimpleNamespace(add=lambda *_: None, remove=lambda _: None, later=lambda *_: None)
        self.ends = Ends(JobPaths(folder), "x", cast(Loop, loop), cast(Ledger, self), cast(NurseryLink, self.link))
        self.ends.watch()

    def owe(self, *records: dict[str, Any], **_: bool) -> None:
        for record in records:
            self.records.append(record)
            apply(self.job, {"n": len(self.records), "t": 1.0} | record)

    commit = owe

    def kill(self, number: int = signal.SIGKILL) -> None:
        for child in self.children:
            child.send_signal(number)
        self.wait()

    def end(self, number: int) -> None:
        """One of them, and returns when it is a zombie."""
        self.children[number].kill()
        pidfd = os.pidfd_open(self.children[number].pid)
        wait_ended(pidfd)
        os.close(pidfd)

    def wait(self) -> None:
        """Until all have ended; they stay zombies."""
        for rank in self.job.ranks:
            pidfd = os.pidfd_open(rank.pid)
            wait_ended(pidfd)
            os.close(pidfd)

    def done(self) -> None:
        for child in self.children:
            child.returncode = 0  # waited for, or the harness ends it


SLEEP = ("sleep", "600")


def nothing() -> None:
    """Has ended them."""


def killed(folder: Path, victims: dict[str, str] | None, events: str = "", **changes: Any) -> list[str]:
    """Outcome and detail of a rank that got a SIGKILL. `victims`: "rank" stands for its pid."""

    def work() -> Any:
        desk = Desk(folder, SLEEP, **changes)
        pid = desk.job.ranks[0].pid
        found = None if victims is None else {pid if who == "rank" else int(who): name for who, name in victims.items()}
        (folder / "memory.events").write_text(events)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(oom, "victims", lambda _: found)
            desk.kill()
            desk.ends.collect(nothing, look=True)
        desk.done()
        rank = desk.job.ranks[0]
        return [rank.outcome, rank.detail, rank.status]

    outcome, detail, status = in_own_process(work)
    assert status == signal.SIGKILL
    return [outcome, detail]


# --- who killed it ----------------------------------------------------------------------------------------------------


def test_the_kernels_log_names_the_rank(tmp_path):
    outcome, detail = killed(tmp_path, {"rank": "python"})
    assert outcome == "OUT_OF_MEMORY"
    assert "python" in detail


def test_the_kernels_log_names_others_only(tmp_path):
    """Or nobody: then somebody did it."""
    for victims in ({}, {"1": "init"}):
        outcome, detail = killed(tmp_path, victims, "oom_kill 7\n")
        assert outcome == "SIGNALLED"
        assert "nor the kernel's OOM killer" in detail


@pytest.mark.parametrize(
    ("before", "events", "outcome"),
    [(0, "oom_kill 1\n", "OUT_OF_MEMORY"), (2, "oom_kill 2\n", "SIGNALLED"), (0, "oom_kill 0\n", "SIGNALLED")],
)
def test_the_jobs_own_cgroup_counts_where_the_log_cannot_be_read(tmp_path, before, events, outcome):
    """From this attempt on: the count never goes down."""
    found, detail = killed(tmp_path, None, events, cgroup=str(tmp_path), oom_kills=before)
    assert found == outcome
    assert ("cannot be read" in detail) == (outcome == "SIGNALLED")


def test_as_many_ranks_are_out_of_memory_as_the_cgroup_counts(tmp_path):
    """Another that is killed then was killed by somebody."""

    def work() -> Any:
        desk = Desk(tmp_path, SLEEP, SLEEP, cgroup=str(tmp_path))
        (tmp_path / "memory.events").write_text("oom_kill 1\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(oom, "victims", lambda _: None)
            for child in desk.children:
                child.kill()
                pidfd = os.pidfd_open(child.pid)
                wait_ended(pidfd)
                os.close(pidfd)
                desk.ends.collect(nothing, look=True)
        desk.done()
        return [rank.outcome for rank in desk.job.ranks]

    assert in_own_process(work) == ["OUT_OF_MEMORY", "SIGNALLED"]


def test_without_any_witness_it_is_reported(tmp_path):
    outcome, detail = killed(tmp_path, None)
    assert outcome == "SIGNALLED"
    assert "cannot be read" in detail


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"memory.events": "oom_kill 1\n"}, "has killed 1 process of {around} so far: out of memory"),
        (
            {"memory.events": "oom_kill 2\n", "memory.events.local": "oom 2\n", "memory.max": "157286400\n"},
            "has killed 2 processes of {around} so far: out of memory, at its limit of 150 MiB",
        ),
        ({"memory.events": "oom_kill 0\n"}, "may have run out of memory"),
    ],
)
def test_the_cgroup_around_is_a_witness_and_proves_nothing(tmp_path, files, words):
    """A container's: it may have been another process of it, and long ago."""
    around = tmp_path / "around"
    around.mkdir()
    for name, text in files.items():
        (around / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroups, "around", lambda _: around)
        outcome, detail = killed(tmp_path, None)
    assert outcome == "SIGNALLED" and words.format(around=around) in detail, detail


@pytest.mark.parametrize(("before", "outcome"), [(1, "OUT_OF_MEMORY"), (2, "SIGNALLED"), (None, "SIGNALLED")])
def test_what_the_cgroup_around_counts_in_this_attempt_proves_it(tmp_path, before, outcome):
    """Of a job without a cgroup of its own, as in a container."""
    around = tmp_path / "around"
    around.mkdir()
    (around / "memory.events").write_text("oom_kill 2\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroups, "around", lambda _: around)
        found, detail = killed(tmp_path, None, oom_kills_around=before)
    assert found == outcome
    assert ("of the cgroup around the job: out of memory" in detail) == (outcome == "OUT_OF_MEMORY")


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [(StopCause.REQUESTED, "STOPPED"), (StopCause.RANK_FAILED, "GANG_VICTIM"), (StopCause.SERVED, "STOPPED")],
)
def test_our_own_sigkill_is_nobody_elses(tmp_path, cause, outcome):
    found = killed(
        tmp_path, {"rank": "python"}, state=State.STOPPING, stop=Stop(cause), terminated=True, killed=True
    )  # fmt: skip
    assert found == [outcome, ""]


# --- what is written down ---------------------------------------------------------------------------------------------


def test_an_end_is_on_record_before_it_is_waited_for(tmp_path):
    """The zombie is the record as long as the journal takes none."""

    def work() -> Any:
        desk = Desk(tmp_path, ("sh", "-c", "exit 7"))
        desk.wait()
        desk.owes = True
        story: list[Any] = [desk.ends.collect(nothing, look=True)]
        pid = desk.job.ranks[0].pid
        zombie = process.read_stat(pid)
        story += [zombie is not None and zombie.ended, [rank.pid for rank in desk.ends.unreaped] == [pid]]
        desk.owes = False
        desk.ends.reap()
        story += [desk.ends.unreaped, process.read_stat(pid)]
        desk.done()
        return [*story, desk.job.ranks[0].outcome, desk.job.ranks[0].status, desk.job.ends, desk.records[-1]["kind"]]

    assert in_own_process(work) == [[0], True, True, [], None, "EXITED", 7 << 8, [0], "usage"]


def test_ends_of_one_batch_are_noted_in_the_kernels_order(tmp_path):
    """For any caller: an event, or somebody who looks at all ranks before they get a signal."""

    def work() -> Any:
        desk = Desk(tmp_path, *[SLEEP] * 6)
        order = [4, 1, 5, 0]
        for number in order:
            desk.end(number)
        found = desk.ends.collect(nothing, look=True)
        more = [3, 2]
        for number in more:
            desk.end(number)
        found += desk.ends.collect(nothing, look=True)
        desk.done()
        return [found, desk.job.ends, order + more]

    found, ends, order = in_own_process(work)
    assert found == ends == order


def test_an_end_during_the_search_for_causes_is_left_for_the_next_time(tmp_path):
    """He may have been ended by what was not there yet when that was asked."""

    def work() -> Any:
        desk = Desk(tmp_path, SLEEP, SLEEP)
        asked: list[list[int]] = []

        def ask() -> None:
            asked.append(list(desk.job.ends))
            if len(asked) == 1:
                desk.end(1)

        story: list[Any] = [desk.ends.collect(ask, look=True)]
        desk.end(0)
        story += [desk.ends.collect(ask, look=True), desk.ends.collect(ask, look=True)]
        desk.done()
        return [*story, asked]

    assert in_own_process(work) == [[], [0], [1], [[], [0]]]


def test_a_later_end_is_noted_later_also_where_a_status_is_still_missing(tmp_path):
    """The nursery may be the only one who can read it."""

    def work() -> Any:
        desk = Desk(tmp_path, SLEEP, SLEEP)
        real = process.final_status
        with pytest.MonkeyPatch.context() as patch:
            hidden = desk.job.ranks[1].pid
            patch.setattr(process, "final_status", lambda pid, *rest: None if pid == hidden else real(pid, *rest))
            desk.end(1)
            desk.end(0)
            story: list[Any] = [desk.ends.collect(nothing, look=True)]
            desk.link.on_ended(hidden, signal.SIGKILL)
            story.append(desk.ends.collect(nothing, look=True))
        desk.done()
        return [*story, desk.job.ends]

    assert in_own_process(work) == [[], [1, 0], [1, 0]]


def test_a_step_is_watched_while_it_runs_and_not_the_ranks(tmp_path):
    def work() -> Any:
        desk = Desk(tmp_path, ("sh", "-c", "exit 3"), spawned=False)
        step = subprocess.Popen(("sh", "-c", "exit 0"))
        pid, start = process.identity(step.pid)
        desk.job.state = State.PREPARING
        desk.job.step, desk.job.step_name = Rank(STEP, 0, 0, pid, start), "pre_start"
        desk.ends.watch()
        pidfd = os.pidfd_open(pid)
        wait_ended(pidfd)
        desk.wait()
        numbers = desk.ends.collect(nothing, look=True)
        desk.done()
        step.returncode = 0
        return [numbers, desk.job.step.status, sorted(desk.job.steps_done), desk.job.ranks[0].outcome, desk.job.ends]

    assert in_own_process(work) == [[STEP], 0, ["pre_start"], None, []]


def test_those_whose_end_nobody_knows_are_lost(tmp_path):
    def work() -> Any:
        desk = Desk(tmp_path, SLEEP, SLEEP)
        desk.ends.lose(desk.job.ranks[:1], "it cannot be killed")
        desk.ends.lose([], "nobody")
        first, second = desk.job.ranks
        desk.ends.forget_all()
        return [first.outcome, first.status, first.detail, second.outcome, len(desk.records)]

    assert in_own_process(work) == ["LOST", None, "it cannot be killed", None, 1]
