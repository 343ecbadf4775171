"""What must be true of muster at a chaos point: while something is broken, and afterwards."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from muster.supervisors.model.states import JOB
from muster.v1 import job_pb2
from tests.chaos import accounts, paced
from tests.chaos.faults import RANKS, Site, takes_away
from tests.chaos.plan import Plan
from tests.chaos.test_kill_points import left_over
from tests.conftest import FINAL, Daemon, alive, eventually

#: Seconds: what `stop` may take over the job's grace; until a loss is reported; a rank waits for its log; writing has
#: resumed; the job has ended; everything is put away.
STOP_S = 35.0
REPORT_S = 30.0
BLOCKED_S = 25.0
RESUME_S = 30.0
END_S = 60.0
GRACE_S = 0.5
#: What of a longer job stays in its folder.
_STAYS = ("hang.json", "gap_lines_written")
#: How a rank may end that did not end by itself.
_ENDED = (job_pb2.RANK_OUTCOME_GANG_VICTIM, job_pb2.RANK_OUTCOME_STOPPED, job_pb2.RANK_OUTCOME_NOT_STARTED)


class Failed(AssertionError):
    """Raised where muster did not keep what it promises."""


def brief(job: Any) -> str:
    """What the API tells of a job, as a line."""
    if job is None:
        return "nobody answers"
    ranks = [
        f"rank {r.rank}: {job_pb2.RankOutcome.Name(r.outcome)} {r.exit_code} {r.signal} lost {r.lost_log_bytes}"
        for r in job.ranks
    ]
    name = job_pb2.JobState.Name(job.state)
    return f"{name}, exit code {job.verdict.exit_code}, {job.verdict.summary!r}, {ranks}, warnings {list(job.warnings)}"


class Oracle:
    """Judges one point. `keep_daemon` sees to it that there is one; `tell` notes what happened for the report."""

    def __init__(
        self, site: Site, daemon: Daemon, plan: Plan, keep_daemon: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        self.site, self.daemon, self.plan = site, daemon, plan
        self.keep_daemon, self.tell = keep_daemon, tell
        self.job_id = site.job_id
        self.accounts = [paced.Account(site.notes, rank) for rank in range(RANKS)]
        #: Processes that are stopped at this moment.
        self.frozen: list[int] = []

    # --- while it lasts -----------------------------------------------------------------------------------------------

    def ask(self) -> Any:
        """The job as the API tells of it; None where nobody answers at this moment."""
        try:
            return self.daemon.get(self.job_id)
        except grpc.RpcError:
            return None

    def watch(self) -> None:
        """Every loss is reported while it lasts, and no rank waits for its log."""
        began = time.monotonic()
        written = [(account.least, began) for account in self.accounts]
        lost_since: dict[int, float] = {}
        reported: set[int] = set()
        while True:
            self.keep_daemon()
            now, job = time.monotonic(), self.ask()
            waits = False
            for rank, account in enumerate(self.accounts):
                if account.least != written[rank][0]:
                    written[rank] = account.least, now
                elif now - written[rank][1] > 1 and not self.over(job, rank) and not self.frozen:
                    waits = True
                    if now - written[rank][1] > BLOCKED_S:
                        raise Failed(f"rank {rank} has waited for {BLOCKED_S:g} s to write a line")
                stored = accounts.size_of(self.site.logs_of(rank)) + self.site.deleted.get(rank, 0)
                if account.least - stored > accounts.UNDER_WAY and not self.frozen:
                    lost_since.setdefault(rank, now)
                    if job is not None and self.is_reported(job, rank) and rank not in reported:
                        reported.add(rank)
                        self.tell(f"the loss of rank {rank} is reported")
                    if rank not in reported and now - lost_since[rank] > REPORT_S:
                        raise Failed(f"output of rank {rank} is being lost, and nothing tells of it: {brief(job)}")
            if now - began > self.plan.hold and not waits and lost_since.keys() <= reported:
                return
            time.sleep(0.05)

    @staticmethod
    def over(job: Any, rank: int) -> bool:
        return job is not None and (job.state in FINAL or bool(job.ranks[rank].outcome))

    def is_reported(self, job: Any, rank: int) -> bool:
        """Whether the loss is in the job, as bytes and as a warning, and in the events; and in what commands show."""
        lasts = f"output of rank {rank} has been lost since"
        over = f"rank {rank}: {job.ranks[rank].lost_log_bytes} bytes of output could not be written"
        said = next((said for said in (lasts, over) if any(said in warning for warning in job.warnings)), "")
        if not said or not job.ranks[rank].lost_log_bytes:
            return False
        try:
            events = self.daemon.event_list(self.job_id)
        except grpc.RpcError:
            return False
        if not any(event.kind == "job.output_lost" and event.rank == rank for event in events):
            return False
        if self.plan.by_command:
            for command in ("status", "why"):
                done = self.daemon.cli(command, self.job_id)
                if said not in " ".join(done.stdout.split()):
                    raise Failed(f"`muster {command}` does not tell that {said}: {done.stdout}{done.stderr}")
        return True

    def stop(self) -> None:
        """Somebody types `muster stop`."""
        self.tell("stop")
        until = time.monotonic() + GRACE_S + STOP_S
        self.daemon.connect()  # as a new client
        while True:
            left = until - time.monotonic()
            said = self.ask_for_stop(max(left, 0.1))
            self.tell(f"stop: {said}")
            self.keep_daemon()
            processes = self.processes()
            if not processes:
                self.tell("no process of the job is left")
                return
            if time.monotonic() >= until:
                raise Failed(f"{GRACE_S + STOP_S:g} s after the stop {processes} live; the last answer: {said}")
            time.sleep(0.2)

    def ask_for_stop(self, seconds: float) -> str:
        """Returns what was answered."""
        if self.plan.by_command:
            done = self.daemon.cli("stop", self.job_id)
            return f"exit code {done.returncode}: {done.stdout}{done.stderr}"
        try:
            request = job_pb2.StopRequest(job_id=self.job_id)
            answer = self.daemon.jobs.Stop(request, timeout=seconds, wait_for_ready=True)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return f"ended {answer.ended}, {job_pb2.JobState.Name(answer.job.state)}"

    def processes(self) -> list[str]:
        """Those of the job that live: by the environment that ranks got, or by their notes."""
        mark = b"MUSTER_JOB_ID=" + self.job_id.encode()
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found[int(name)] = f"{name} ({Path(f'/proc/{name}/comm').read_text().strip()})"
        for path in [*self.site.notes.glob("start-*"), *self.site.notes.glob("stray-*")]:
            found.update({int(pid): f"{pid} ({path.name})" for pid in path.read_text().split()})
        return [text for pid, text in sorted(found.items()) if alive(pid)]

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Writing resumes by itself: what ranks write from now on is in their files, soon."""
        goals = [account.most // paced.SIZE for account in self.accounts]

        def caught_up(rank: int) -> bool:
            job = self.ask()
            log = self.site.root.log / self.site.log_of(rank).name
            return accounts.last_line(log, *self.site.moved.get(rank, [])) >= goals[rank] or self.over(job, rank)

        for rank in range(RANKS):
            until = time.monotonic() + RESUME_S
            while not caught_up(rank):
                if time.monotonic() > until:
                    raise Failed(f"the log of rank {rank} does not go on within {RESUME_S:g} s after the fault")
                self.keep_daemon()
                time.sleep(0.05)
        self.tell("all logs go on")

    def end(self) -> Any:
        until = time.monotonic() + END_S
        while True:
            self.keep_daemon()
            job = self.ask()
            if job is not None and job.state in FINAL:
                self.tell(f"the job has ended: {job_pb2.JobState.Name(job.state)}")
                return job
            if time.monotonic() > until:
                raise Failed(
                    f"the job has not ended {END_S:g} s after the {'stop' if self.plan.stop else 'fault'}: {brief(job)}"
                )
            time.sleep(0.05)

    def check(self, job: Any) -> None:
        plan = self.plan
        for rank in job.ranks:
            self.check_rank(job, rank)
        if processes := self.processes():
            raise Failed(f"of the ended job {processes} live")
        if job.state == job_pb2.JOB_STATE_SUCCEEDED and plan.code:
            raise Failed(f"an invented success: {brief(job)}")
        if not plan.stop and not plan.early and not plan.blind:
            expected = job_pb2.JOB_STATE_FAILED if plan.code else job_pb2.JOB_STATE_SUCCEEDED
            if (job.state, job.verdict.exit_code) != (expected, plan.code):
                raise Failed(f"the job should have ended by its own, with {plan.code}: {brief(job)}")
        if any(rank.pid for rank in job.ranks):  # else it may have ended before there was anything to write
            self.check_job_log(job)
        folder = self.daemon.root.job(self.job_id).folder

        def left() -> list[str]:
            # What could not be removed from a read-only folder goes with it; but nobody holds it open.
            kept = self.plan.fault == "state read-only"
            return [name for name in left_over(folder) if name not in _STAYS and not (kept and " in " not in name)]

        try:
            eventually(lambda: not left())
        except AssertionError:
            raise Failed(f"of the ended job are left: {left()}") from None
        kinds = [event.kind for event in self.daemon.event_list(self.job_id)]
        for kind, most in (("job.accepted", 1), ("job.ended", 1), ("rank.exited", RANKS)):
            if kinds.count(kind) > most or (most == 1 and not kinds.count(kind)):
                raise Failed(f"{kinds.count(kind)} events {kind}: {kinds}")

    def check_job_log(self, job: Any) -> None:
        """It ends with the verdict, or a line counts what is missing."""
        verdict = f"[muster] {job_pb2.JobState.Name(job.state).removeprefix('JOB_STATE_')}: "
        log = self.site.root.log / self.site.log_of(JOB).name

        def is_whole() -> bool:
            for path in (log, *self.site.moved.get(JOB, [])):
                lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
                if lines and (verdict in lines[-1] or "bytes lost" in lines[-1]):
                    return True
            return False

        try:
            eventually(is_whole, RESUME_S)
        except AssertionError:
            raise Failed(f"{log.name} says neither how the job ended nor what is missing") from None

    def check_rank(self, job: Any, rank: Any) -> None:
        plan, number = self.plan, rank.rank
        starts = self.site.notes / f"start-{number}"
        if starts.exists() and len(starts.read_text().split()) > 1:
            raise Failed(f"rank {number} was started twice")
        if rank.outcome == job_pb2.RANK_OUTCOME_EXITED:
            expected = plan.code if number == plan.failing else 0
            if rank.exit_code != expected:
                raise Failed(f"rank {number} exited with {expected}, and not with {rank.exit_code}: {brief(job)}")
        elif rank.outcome == job_pb2.RANK_OUTCOME_LOST:
            if not plan.blind:
                raise Failed(f"the end of rank {number} is lost, though somebody was there to see it: {brief(job)}")
        elif rank.outcome not in (
            job_pb2.RANK_OUTCOME_GANG_VICTIM,
            job_pb2.RANK_OUTCOME_STOPPED,
            job_pb2.RANK_OUTCOME_NOT_STARTED,
        ):
            raise Failed(f"rank {number} ended as {job_pb2.RankOutcome.Name(rank.outcome)}: {brief(job)}")
        try:
            eventually(lambda: self.is_settled(number), RESUME_S)
        except AssertionError:
            self.settle(number)
            raise
        found = self.settle(number)
        told = self.ask().ranks[number].lost_log_bytes
        if told not in (found.lost, found.lost + found.removed):
            raise Failed(
                f"rank {number}: {told} bytes are told as lost, {found.lost} by lines, {found.removed} removed"
            )
        if found.lost or found.removed:
            self.tell(f"rank {number}: {found.lost} bytes lost, {found.removed} removed")

    def is_settled(self, rank: int) -> bool:
        """A gap in which the job ended has its line once there is room."""
        with contextlib.suppress(Failed, accounts.Wrong, OSError):
            self.settle(rank)
            return True
        return False

    def settle(self, rank: int) -> accounts.Found:
        """Raises Failed, accounts.Wrong."""
        log = self.site.root.log / self.site.log_of(rank).name
        found = accounts.settle(rank, log, self.site.moved.get(rank, []))
        account = self.accounts[rank]
        # A write in which the rank was killed is in the FIFO as a whole, or not.
        if found.end not in (account.least, account.most):
            raise Failed(
                f"rank {rank} wrote {account.least} bytes (or {account.most}); its log accounts for {found.end}: "
                f"lost {found.gaps}, removed {found.holes}, kept {found.kept[-8:]}"
            )
        if found.removed and not takes_away(self.plan.fault):
            raise Failed(f"rank {rank}: bytes {found.holes} of the log were removed by nobody we know")
        return found
