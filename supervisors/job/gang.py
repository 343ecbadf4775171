"""One job under one supervisor: its ranks from start to verdict.

What happens is told by records (states.py, replay.py) that are committed to the journal first; what to do next is
decided in one place, `_advance`, from what the records add up to. A successor of a supervisor that died replays the
same records and goes on from there: a fresh start is only the special case in which nothing has happened yet.
"""

import contextlib
import os
import signal
import socket
import sys
import time

from muster.probes.kernel import endings, process
from muster.probes.kernel.process import FULL, Stat
from muster.supervisors.job import hardware, steps, stop_order
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.rank_start import RankStart
from muster.supervisors.job.step_run import StepRun
from muster.supervisors.job.steps import STEP_GRACE_S
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.job.takeover import Takeover
from muster.supervisors.launch import card_numbers, child, environment
from muster.supervisors.launch.containment import Containment
from muster.supervisors.model import restart, verdict
from muster.supervisors.model.journal import Contents
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Rank, Verdict
from muster.supervisors.model.spec import DEFAULT_GRACE_STEPS, MAX_GRACE_S, JobSpec
from muster.supervisors.model.states import STEP, Kind, State, StopCause
from muster.supervisors.output import tee
from muster.supervisors.output.output import Output
from muster.supervisors.paths import Root
from muster.supervisors.session.sessions import Sessions
from muster.supervisors.supervision_errors import Exhausted, NotStartable, explain
from muster.supervisors.system import oom, owner_pipe, scope
from muster.supervisors.system.cgroups import enter_scope, is_leaf, limit_cgroup, make_cgroup
from muster.supervisors.system.descriptors import lowered_to
from muster.supervisors.system.ladder import KILL_WAIT_S
from muster.supervisors.system.loop import AGAIN_S, Alarm, Loop
from muster.supervisors.system.spare import Spare
from muster.supervisors.wire.control import JournalServer
from muster.supervisors.wire.link import NurseryLink
from muster.supervisors.wire.messages import Message

#: How often processes that outlive their ranks are looked at, in seconds; they are nobody's children that epoll knows.
LEFTOVER_LOOK_S = 0.05
#: How soon it is looked again where somebody must be left, but cannot be seen (it is just being born), in seconds.
GONE_LOOK_S = 0.002
#: Descriptors in reserve, for looks at processes and a client at the limit; and seconds until they are taken again.
SPARE, SPARE_AGAIN_S = 8, 30.0


class Gang:
    """The ranks of one job and all that belongs to them. The caller holds the job's lock."""

    def __init__(self, root: Root, spec: JobSpec, contents: Contents, sock: socket.socket, owned: bool) -> None:
        """`sock` leads to the nursery. `owned`: the job ends with the command that started it (owner_pipe.py). Raises
        OSError."""
        self._spare = Spare(SPARE, self._print)  # before anything else, so that it holds low numbers
        self._root = root
        self._spec = spec
        self._paths = root.job(spec.job_id)
        self.loop = loop = Loop(self._say)
        loop.on_child, loop.after = self._wait_for_orphans, self._turn
        self._sessions = Sessions(loop, spec.boot, lambda: self.job, lambda: self._containment, self._beside)
        self._control = JournalServer(
            loop, self._paths.controls, self._on_stop, self._on_hung, self._sessions.handlers(), self._spare
        )
        self._ledger = ledger = Ledger(self._paths, contents, self._control.publish)
        self.job = ledger.job
        self._link = NurseryLink(loop, sock)
        self._spare.on_exhausted = self._make_way
        self._output = Output(root, spec.job_id, loop, ledger, self._control.publish_gaps, self._spare.make_room)
        self._ends = Ends(self._paths, spec.command[0], loop, ledger, self._link)
        self._escalation = Escalation(
            loop, ledger, lambda: self._containment, self._note_ends, self._keep_stop, self._look_again, self._give_up
        )
        self._adopted = any(r["kind"] == Kind.TAKEN for r in contents.records)
        self._containment = self._contain()
        self._start = RankStart(root, spec, ledger, self._output, self._ends, self._link)
        self._step = StepRun(
            root, spec, ledger, loop, self._output, self._ends, self._link,
            lambda: self._containment, self._look_again, self._give_up,
        )  # fmt: skip
        self._alarm = Alarm(loop)  # the end of max_runtime, or of the pause before a restart
        self._stuck = False
        self._order_due = True
        self._takeover = Takeover(self._paths.unborn, loop, ledger, self._ends, self._link, self._carry_on)
        self._begun = False
        self._look_due = True
        self._gone_look = GONE_LOOK_S
        self._resting = self._waits_to_settle = self._closed = False
        self._log_ends: dict[int, int] = {}
        #: Since when nothing of the job is seen to live, or its end is to be recorded, where the journal did not take
        #: that then.
        self._over_at = 0.0
        self._scope_ends = False
        self._signal_up = 0.0
        signal.signal(signal.SIGTERM, self._on_sigterm)
        loop.later(SPARE_AGAIN_S, self._refill)
        if owned:
            loop.add(owner_pipe.FD, self._on_owner_end)
        # The first thing that the loop does, so that what has ended already is an event like any other.
        loop.once(self._begin)

    def _begin(self) -> None:
        """Takes the job over in whatever state it is; `_advance` goes on from there. What the disk or the node refuses
        is said, and tried again: a successor would meet the same."""
        job = self.job
        taken = {"kind": Kind.TAKEN, "pid": os.getpid(), "takeover": self._adopted}
        self._ledger.owe(taken, sync=False, tell=self._adopted)  # a crash of the node ends us anyway
        self._link.tell("ready")
        if self._adopted and is_leaf(job.cgroup):  # a new one is with the nursery
            enter_scope(self._root, self._spec.job_id)
        if job.state not in (State.ACCEPTED, State.CHECKING) and (self._adopted or job.boot_id != process.boot_id()):
            self.loop.attempt(self._open_again)
        self.loop.attempt(self._adopt)

    def _adopt(self) -> None:
        """Raises OSError, with nothing adopted: nothing is decided until it works."""
        job = self.job
        if job.boot_id != process.boot_id():
            self._end_after_reboot()
        elif job.processes():
            self._takeover.adopt()
        self._begun = True

    # --- what the loop calls ------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._after()
        if not self.job.state.final:
            waits = self._ledger.owes or self._resting
            self._control.publish_refusal(self._ledger.refusal if waits else "")

    def _after(self) -> None:
        """Behind every batch of events: notes who has ended, then does what follows."""
        self._sessions.turn()
        if self.job.state.final:
            return
        self._output.commit_gaps()
        self._settle()
        if self._undecided():
            return
        if self._scope_ends:
            by = {"by": "systemd", "reason": f"SIGTERM to the supervisor, as by `systemctl stop {scope.own()}`"}
            self._scope_ends = not self._on_stop(by)["ok"]
        try:
            self._note_ends(look=False)
            if self._ends.unreaped:  # the journal takes no record: the others are ended all the same
                if self.job.spawned and self.job.concluded is None:
                    self._decide_on_ranks()
                self._look_at_unrecorded()
                return
            if self._resting:
                return
            while self._advance():
                pass
        except OSError as error:
            # The journal takes no record (its disk is full, broken or read-only), and what comes next must be on disk
            # before it is done. Nothing is lost: what follows is decided anew.
            self._rest(error)

    def _look_at_unrecorded(self) -> None:
        """Ends the ladder once nothing lives, though the ends cannot be written yet. Raises OSError."""
        if not self._look_due or any(r.outcome is None for r in self.job.processes()):
            return
        self._look_due = False
        self._wait_for_orphans()
        left = self._containment.members()
        if not left:
            self._over_at = self._over_at or time.time()
        if self._containment.gone(kept=True):
            self._escalation.halt()
        else:
            self._look_later(bool(left))

    def _settle(self) -> None:
        """Writes what is owed to the journal, each second; then those are waited for whose ends it tells."""
        if not self._ledger.owes or self._waits_to_settle:
            return
        try:
            self._ledger.settle()
        except OSError as error:
            self._say(error)
            self._waits_to_settle = True
            self.loop.later(AGAIN_S, self._settle_again)
            return
        self._ends.reap()
        self._look_due = True

    def _settle_again(self) -> None:
        self._waits_to_settle = False  # `_after` comes next

    def _rest(self, error: OSError) -> None:
        self._say(error)
        self._resting = True
        self.loop.later(AGAIN_S, self._go_on)

    def _on_sigterm(self, *_: object) -> None:
        """`_after` comes next: the signal wakes the loop. In a scope it is how systemd ends that: by a SIGTERM to all
        in it, to us first, by the order of the leaves' names. Elsewhere it ends nothing, and only tells that everybody
        may have got it."""
        self._signal_up = process.uptime()
        self._scope_ends = self._scope_ends or bool(scope.own())

    def _on_owner_end(self) -> None:
        """The daemon, if it lives, asks for the same."""
        self.loop.remove(owner_pipe.FD)
        self._on_stop({"by": "muster", "reason": owner_pipe.GONE})

    def _undecided(self) -> bool:
        """Until `_begin` is through, and while it is not known whether the ranks were let go, nothing is decided."""
        return not self._begun or self._takeover.undecided

    def _go_on(self) -> None:
        self._resting = False
        self._look_due = True

    def _wait_for_orphans(self) -> None:
        """Waits for those that came to us, and for sessions; ranks are waited for once their end is written down."""
        self._sessions.reap()
        ranks = {r.pid for r in self.job.processes() if r.outcome is None}
        ranks.update(r.pid for r in self._ends.unreaped)
        with contextlib.suppress(ChildProcessError):
            while True:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if info is None or info.si_pid in ranks:
                    return
                if not self._sessions.reap():
                    os.waitpid(info.si_pid, 0)

    def _on_hung(self, message: Message) -> Message:
        """The daemon finds that the ranks do not get on: `ranks` are to blame (none: all), `again` after a restart."""
        job = self.job
        if job.state is not State.RUNNING or job.stop is not None or message.get("attempt") != job.attempt:
            return {"ok": False, "error": f"attempt {job.attempt} of the job is {job.state}"}
        named = message.get("ranks")
        if not isinstance(named, list):
            return {"ok": False, "error": "ranks must be a list of numbers"}
        ranks = tuple(rank.rank for rank in job.ranks if rank.rank in named)
        own = tuple(self._spec.grace_steps) or DEFAULT_GRACE_STEPS
        reason, again = str(message.get("reason", "")), bool(message.get("again"))
        self._escalation.begin(StopCause.HUNG, "muster", reason, own, ranks, again)
        self._output.say(f"hangs, and is ended: {reason}")
        return {"ok": True}

    def _on_stop(self, message: Message) -> Message:
        steps = message.get("steps")
        if steps is not None and not _are_seconds(steps):
            return {"ok": False, "error": f"steps must be a list of seconds, together at most {MAX_GRACE_S:.0f}"}
        asked = self.job.asked
        if asked is not None and asked.reason == message.get("reason") == owner_pipe.GONE:
            return {"ok": True}  # its epilog is not to end sooner because two have seen the same
        if self.job.concluded is not None:  # only its epilog is left to be ended
            if self.job.in_step:
                grace = STEP_GRACE_S if steps is None else sum(float(s) for s in steps)
                self._step.end("was ended by a stop", grace)
            return {"ok": True}
        up, sent = message.get("up"), message.get("sent", [])
        self._stop(
            StopCause.REQUESTED, str(message.get("by", "")), str(message.get("reason", "")), steps,
            up if isinstance(up, float) else None, tuple(map(str, sent)) if isinstance(sent, list) else (),
        )  # fmt: skip
        return {"ok": True}

    def _say(self, error: OSError) -> None:
        """Into the nursery's log: what belongs in no journal. At the limit of descriptors those in reserve are used:
        what was refused is tried again."""
        if error.errno in FULL:
            self._spare.make_room()
        self._print(f"{error}; trying again")

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            print(f"{now} supervisor {self._spec.job_id}: {text}", file=sys.stderr, flush=True)

    def _make_way(self) -> None:
        """For a successor, to which the nursery gives a limit of its own, where somebody has lowered ours, we may not
        raise it, and the reserve does not do. Raises Exhausted."""
        limit = lowered_to()
        if limit is not None and self._link.is_up:
            raise Exhausted(
                f"somebody lowered the limit of open files of this supervisor to {limit}, and it may not raise it: it "
                "leaves the job to a successor"
            )

    def _refill(self) -> None:
        """Takes the reserve again, if there is room for all of it."""
        if not self._spare.fill():
            self._spare.release()
        self.loop.later(SPARE_AGAIN_S, self._refill)

    # --- start --------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Makes all ready for an attempt, and begins with its first step or its ranks.

        Raises OSError where it cannot even be recorded.
        """
        job = self.job
        cards = card_numbers.read(self._paths.cards_now, job)
        counted, said = card_numbers.counted_anew(job, cards)
        cgroup, trouble = make_cgroup(self._root, self._spec.job_id)
        preparing = {"kind": Kind.PREPARING, "attempt": job.attempt, "cgroup": cgroup, "oom_kills": oom.kills(cgroup)}
        self._ledger.commit(preparing | counted, sync=False, tell=False)
        self._adopted = False  # nothing of an earlier attempt lives
        self._containment = self._contain()
        self._warn(trouble)
        try:
            account = child.Account.of(self._spec.user)
            self._output.open_job((account.uid, account.gid), len(job.ranks))
            if said:
                self._output.say(said)
            self._limit(cgroup)
            self._warn(self._start.prepare(account))
        except (OSError, NotStartable) as error:
            self._cannot_start(error)
            return
        if cards is not None and cards.missing:
            self._attempt_over(*verdict.card_missing(job, cards.missing), again=False)
            return
        self._go_further()

    def _limit(self, cgroup: str) -> None:
        limits = self._spec.limits
        self._warn(limit_cgroup(cgroup, limits.get("memory"), limits.get("cpus")))

    def _warn(self, text: str) -> None:
        if text and text not in self.job.warnings:
            self._ledger.owe({"kind": Kind.WARNING, "text": text}, sync=False)

    def _go_further(self) -> None:
        """The next step before the ranks, or these; nothing of a job that is to end."""
        self._take_order()
        if self.job.stop is not None:
            return
        name = steps.due(self._spec, self.job)
        try:
            if name:
                self._step.begin(self._start.builder(), name, {})
            else:
                self._start.spawn()
        except (OSError, NotStartable) as error:
            self._cannot_start(error)

    def _beside(self, rank: Rank) -> child.ProcessSpec:
        return self._start.beside(rank)

    def _run(self) -> None:
        """They were let go."""
        job = self.job
        if job.state is State.PREPARING:
            self._ledger.owe({"kind": Kind.RUNNING, "up": process.uptime()}, sync=False)
            count = f"{len(job.ranks)} rank{'s' if len(job.ranks) != 1 else ''}"
            self._output.say(f"attempt {job.attempt}: {count} started")
        limit = self._spec.max_runtime
        if limit is not None and job.stop is None and not self._alarm.is_set:
            self._alarm.set(limit - job.ran_s - (process.uptime() - job.started_up), self._out_of_time)

    def _out_of_time(self) -> None:
        self._take_order()
        if self.job.stop is None:
            self._stop(StopCause.MAX_RUNTIME, "max_runtime", f"{self._spec.max_runtime:g} s are over", None)

    def _cannot_start(self, error: Exception) -> None:
        """At the limit of descriptors with those in reserve the next time."""
        if self.job.processes():  # on record, though none was let go
            self._ends.take_back()
        if isinstance(error, OSError) and error.errno in FULL and self._spare.make_room():
            self._print(f"{error}; trying again")
            return
        text = explain(error) if isinstance(error, OSError) else str(error)
        self._attempt_over(*verdict.not_prepared(f"the job could not be prepared: {text}", elsewhere=True))

    # --- steps before and after the ranks -----------------------------------------------------------------------------

    def _step_ended(self) -> None:
        """A step and all that it started are gone."""
        job = self.job
        trouble = self._step.close()
        if job.concluded is not None:
            self._warn(trouble)
            self._end(*job.concluded)
        elif job.stop is not None:
            self._conclude()
        elif trouble:
            self._attempt_over(*self._step.failure(trouble))
        else:
            self._go_further()

    def _run_epilog(self) -> None:
        job = self.job
        assert job.concluded is not None
        try:
            builder = self._start.builder()
            self._output.open_job((builder.account.uid, builder.account.gid), len(job.ranks))
            self._step.begin(builder, steps.EPILOG, steps.environment_of_epilog(*job.concluded))
        except (OSError, NotStartable) as error:
            text = f"{steps.shown(steps.EPILOG, self._spec)} could not be started: {error}"
            # Not owed: where the journal takes no record, the epilog is tried again.
            self._ledger.commit({"kind": Kind.WARNING, "text": text}, sync=False)
            self._end(*job.concluded)

    # --- takeover -----------------------------------------------------------------------------------------------------

    def _open_again(self) -> None:
        """The output of a job whose supervisor died. Raises OSError where a FIFO cannot be opened; what could be opened
        is, and the rest is tried again."""
        if self.job.state.final or self._closed:
            return
        ranks = self.job.ranks
        owner = self._output.owner(ranks) or (os.geteuid(), os.getegid())
        try:
            self._output.open_job(owner, len(ranks))
            self._output.open(ranks, owner, fresh=False)
        finally:
            self._link.hold(self._output.fds())

    def _carry_on(self) -> None:
        self._sessions.ends.end_strays()
        if self.job.in_step:
            self._step.arm()
        if self.job.state is State.STOPPING and self.job.stop is not None and self.job.concluded is None:
            self._escalation.go_on()

    def _end_after_reboot(self) -> None:
        """Nothing of another boot lives: what had not ended by then is lost, what never ran has failed."""
        job = self.job
        if (order := self._order()) is not None and (due := stop_order.due(job, order)):
            self._ledger.owe(*due)  # there is nobody any more to whom a signal could go
        left = [r for r in job.processes() if r.outcome is None]
        self._ends.lose(left, "the node was rebooted while it ran")
        if job.concluded is not None:
            return  # its epilog, if that did not begin before, is still to come
        if job.spawned or job.stop is not None:
            self._attempt_over(*self._reached(), again=False)
        else:
            self._attempt_over(*verdict.rebooted(job), again=False)

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _note_ends(self, look: bool = True) -> None:
        """Raises OSError where /proc cannot be read."""
        if self._undecided():
            return
        if self._order_due:
            self._take_order()
        for number in self._ends.collect(self._take_order, look=look):
            rank = self.job.rank(number)
            if number != STEP and rank.status != 0:
                self._output.say(
                    f"rank {number} {endings.describe(rank.status)}" + (f": {rank.detail}" if rank.detail else "")
                )
            self._look_due = True

    def _advance(self) -> bool:
        """Does the one thing that follows from what the records add up to. False: there is only to wait.

        Nothing else is remembered of where the job is, so that what a full disk refused, or what a predecessor did not
        come to, is simply what follows now. Raises OSError where it cannot be recorded.
        """
        job = self.job
        if job.state.final:
            return False
        epilog = job.step is not None and job.step_name == steps.EPILOG
        if job.concluded is not None and not epilog:
            self._run_epilog()
        elif job.step is not None and (epilog or not job.spawned):
            return self._advance_step()
        elif job.spawned:
            return self._advance_ranks()
        elif job.state is State.RESTARTING and process.uptime() < job.restart_up:
            self._alarm.set(job.restart_up - process.uptime(), self._look_again)
            return False
        elif job.state is State.STOPPING:
            self._conclude()
        else:
            self._prepare()
        return True

    def _advance_step(self) -> bool:
        if self.job.in_step or not self._look_due:
            return False
        if self._all_gone():
            self._step_ended()
            return True
        if left := self._containment.members():
            self._step.leaves(left)
        self._look_later(bool(left))
        return False

    def _advance_ranks(self) -> bool:
        job = self.job
        self._run()
        self._decide_on_ranks()
        if any(rank.outcome is None for rank in job.ranks) or not self._look_due:
            return False
        self._sessions.ends.end_with_ranks(job.attempt, job.terminated)
        if self._all_gone():
            if self._hardware_may_speak() or self._stop_may_come():
                return False
            self._conclude()
            return True
        left = self._containment.members()
        outlive = self._sessions.ends.others(left)
        if outlive and job.stop is None:
            reason = f"{len(outlive)} process(es) outlive their ranks: {process.names(outlive)}"
            self._stop(StopCause.LEFTOVERS, "muster", reason, None)
        self._look_later(bool(left))
        return False

    def _all_gone(self) -> bool:
        """Whether nothing is left of what ran, or nothing that could be ended."""
        self._look_due = False
        self._wait_for_orphans()
        return self._stuck or self._containment.gone()

    def _hardware_may_speak(self) -> bool:
        """Whether to wait a moment for what kernel and driver say of the cards, before a failure is judged."""
        job = self.job
        first = verdict.first_failure(job)
        if first is None or not hardware.may_speak(job) or hardware.fault(job, self._root.faults):
            return False
        return self._settling(hardware.SETTLE_S)

    def _stop_may_come(self) -> bool:
        """Whether to wait a moment for the stop that belongs to a signal which the ranks have got themselves."""
        return verdict.stop_may_come(self.job, self._signal_up) and self._settling(verdict.STOP_SETTLE_S)

    def _settling(self, seconds: float) -> bool:
        """Whether the last rank has ended less than so long ago; it is looked again then."""
        left = seconds - (time.time() - max(rank.ended_at for rank in self.job.ranks))
        if not 0 < left <= seconds:  # or the clock was set
            return False
        self.loop.later(left, self._look_again)
        return True

    def _look_later(self, seen: bool) -> None:
        if seen:
            self._over_at = 0.0
        self._gone_look = min(self._gone_look * 2, LEFTOVER_LOOK_S)
        self.loop.later(LEFTOVER_LOOK_S if seen else self._gone_look, self._look_again)

    def _decide_on_ranks(self) -> None:
        job = self.job
        if job.stop is not None:
            return
        first = verdict.first_failure(job)
        if first is not None:
            self._stop(StopCause.RANK_FAILED, f"rank {first.rank}", f"it {endings.describe(first.status)}", None)
        elif any(r.serves and r.outcome is None for r in job.ranks) and all(r.serves or r.outcome for r in job.ranks):
            self._stop(StopCause.SERVED, "muster", "all that it served have ended", None)

    def _look_again(self) -> None:
        self._look_due = True

    def _stop(
        self,
        cause: StopCause,
        by: str,
        reason: str,
        steps: list[float] | None,
        up: float | None = None,
        sent: tuple[str, ...] = (),
    ) -> None:
        own = tuple(self._spec.grace_steps) or DEFAULT_GRACE_STEPS
        if cause is StopCause.REQUESTED and self.job.stop is None:
            self._output.say(f"is stopped by {by or 'somebody'}" + (f": {reason}" if reason else ""))
        grace = own if steps is None else tuple(float(s) for s in steps)
        near = cause is StopCause.REQUESTED and process.uptime() - self._signal_up <= verdict.SAME_SIGNAL_S
        signal_up = self._signal_up if near else 0.0
        self._escalation.begin(cause, by, reason, grace, up=up, sent=sent, signal_up=signal_up)
        self._look_due = True

    def _take_order(self) -> None:
        """What the daemon does in our place: a stop that no supervisor took, or signals of a stop in the journal with
        which its supervisor was late. Raises OSError where that cannot be known now."""
        order, job = self._order(), self.job
        self._order_due = False
        if order is None or not (due := stop_order.due(job, order)):
            return
        if order.is_asked:
            self._stop(StopCause.REQUESTED, order.by, order.reason, list(order.steps), order.up, order.sent)
        else:
            self._ledger.owe(*due, sync=False)

    def _keep_stop(self) -> None:
        """A stop that somebody asked for and that the journal does not take now: a successor is to know it as if the
        daemon had given the order. Best effort."""
        stop, asked = self.job.stop, self.job.asked
        if stop is None or asked is None:
            return
        names = (("SIGTERM", self.job.terminated), ("SIGKILL", self.job.killed))
        sent = tuple(name for name, was_sent in names if was_sent)
        order = StopOrder(self._nonce(), stop.steps, asked.by, asked.reason, stop.up, sent)
        with contextlib.suppress(OSError):
            stop_order.write(self._root.stop_order(self._spec.job_id), order)

    def _order(self) -> StopOrder | None:
        return stop_order.read(self._root.stop_order(self._spec.job_id), self._nonce())

    def _give_up(self, left: list[Stat]) -> None:
        """Each is waited for in the kernel (state D, mostly); only the driver or a reboot can end them."""
        self._note_ends()
        if not left and self._ends.unreaped and self._containment.gone(kept=True):
            return  # they have ended, which only cannot be written yet
        for s in left:
            text = (
                f"process {s.pid} ({s.comm}) cannot be killed: state {s.state} for "
                f"{KILL_WAIT_S:.0f} s after SIGKILL; what it holds, a card maybe, stays held"
            )
            self._warn(text)
        self._ends.lose([r for r in self.job.processes() if r.outcome is None], "it cannot be killed")
        self._stuck = True
        self._look_again()

    # --- the end of an attempt, and of the job ------------------------------------------------------------------------

    def _conclude(self) -> None:
        """All processes of the attempt are gone."""
        self._take_order()
        if self._output.unopened:
            try:
                self._open_again()
            except OSError as error:
                which = ", ".join(map(str, sorted(self._output.unopened)))
                self._warn(f"the last output of rank {which} is lost: its FIFO cannot be opened: {explain(error)}")
        self._output.drain()
        self._attempt_over(*self._reached())

    def _reached(self) -> tuple[State, Verdict]:
        job = self.job
        first = verdict.first_failure(job)
        last: tuple[str, ...] = ()
        if first is not None:
            last = tee.tail(self._root.rank_log(self._spec.job_id, first.rank, first.device))
        return verdict.reach(job, first, last, hardware.fault(job, self._root.faults))

    def _attempt_over(self, state: State, end: Verdict, again: bool = True) -> None:
        """Another attempt, or the epilog, or the end. Raises OSError, with nothing changed."""
        job = self.job
        ran = job.spawned or job.step is not None or job.past
        if again and not self._stuck and restart.allowed(self._spec, job, state):
            number = len(job.past) + 1
            delay = restart.delay(self._spec, number)
            with contextlib.suppress(OSError):  # where there is no room, the record itself will say so
                self._ledger.reserve(len(job.ranks))
            fields = {"attempt": job.attempt + 1, "verdict": _fields(end), "log_ends": self._output.ends()}
            now = {"delay_s": delay, "up": process.uptime()}
            self._ledger.commit({"kind": Kind.RESTARTING} | fields | now)
            self._output.say(f"{end.summary}: restart {number} of {self._spec.max_restarts} in {delay:.1f} s")
        elif self._spec.epilog and ran and not self._stuck:
            self._ledger.commit({"kind": Kind.CONCLUDED, "state": state, "verdict": _fields(end)})
        else:
            self._end(state, end)
        self._over_at = 0.0
        self._alarm.cancel()
        self._escalation.halt()
        self._ends.forget_all()
        self._look_due = True

    def _put_away(self) -> None:
        """What cannot be removed (a read-only file system) goes with the job's folder."""
        self._closed = True
        self._output.close()
        self._ends.forget_all()
        self._containment.remove()
        paths = self._paths
        fifos = [paths.job_fifo, *(paths.fifo(rank.rank) for rank in self.job.ranks)]
        for path in [*fifos, paths.unborn, paths.lost, paths.ends, *(paths.spare_counts or ()), paths.exports]:
            with contextlib.suppress(OSError):
                path.unlink()

    def _end(self, state: State, end: Verdict) -> None:
        """Everything is put away, then the verdict."""
        if self._spec.max_restarts and state is State.FAILED:
            self._output.say(
                "no restart is left" if self.job.attempt >= self._spec.max_restarts else "is not restarted"
            )
        self._output.say(f"{state}: {end.summary}")
        self._output.drain(last=True)
        self._output.commit_gaps()
        self._log_ends = self._log_ends or self._output.ends() | self._output.job_end()
        self._put_away()
        ended = {"kind": Kind.ENDED, "state": state, "verdict": _fields(end), "log_ends": self._log_ends}
        try:
            self._ledger.commit(ended | ({"t": self._over_at} if self._over_at else {}))
        except OSError:
            self._over_at = self._over_at or time.time()  # it ended now, whenever that can be written
            raise
        stop_order.remove(self._root.stop_order(self._spec.job_id))  # until here a successor would need it
        self._link.tell("done")
        self._sessions.close()
        self._control.close()
        self.loop.stop()

    def _contain(self) -> Containment:
        return Containment(self.job.cgroup, self.job.processes, self._nonce(), self._adopted)

    def _nonce(self) -> str:
        return environment.nonce(self._root, self._spec.job_id, self.job)


def _fields(end: Verdict) -> dict[str, object]:
    return {name: getattr(end, name) for name in Verdict.__slots__}


def _are_seconds(steps: object) -> bool:
    """Whether these are steps of a grace: finite, none negative, together no longer than is allowed."""
    if not isinstance(steps, list) or not all(type(s) in (int, float) and 0 <= s <= MAX_GRACE_S for s in steps):
        return False
    return sum(steps) <= MAX_GRACE_S
