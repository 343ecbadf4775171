"""The output of all ranks and services of a job, and its own log: their FIFOs, files, and what was lost of it.

The job's log is a file like a rank's, with its own FIFO. The steps before and after the ranks write into the FIFO, and
so does the supervisor, so all lines are in the order in which they were written.
"""

import contextlib
import functools
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from muster.probes.kernel import process
from muster.probes.kernel.process import FULL
from muster.supervisors.model.job_logs import fifo_of, job_line, job_log_files, log_of, slot_of
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.states import JOB, Kind, log_owner
from muster.supervisors.output import rotation, tee
from muster.supervisors.output.gaps import Count, Counts, Gap
from muster.supervisors.output.log_file import Claims
from muster.supervisors.output.log_layout import NEVER_ROTATED, Folder, Layout
from muster.supervisors.output.splicing import REST_S, Splicer
from muster.supervisors.paths import Root
from muster.supervisors.system.loop import Loop
from muster.supervisors.system.settings_file import SettingsFile

#: How long output may take to be drained at the end, in seconds. Nobody writes any more by then.
DRAIN_WAIT_S = 60.0
#: Seconds after the first record of an open gap until the next; each further pause is twice as long. So a disk that is
#: full for a month costs the journal, whose reserved room is small, a dozen records per rank.
GAP_AGAIN_S = 60.0


#: Seconds between two messages to watchers about what open gaps have lost by now.
FIGURES_S = 1.0


class Output:
    """Drains every rank's FIFO as it fills."""

    def __init__(
        self,
        root: Root,
        job_id: str,
        loop: Loop,
        ledger: Ledger,
        tell: Callable[[list[tuple[int, float, int]]], None],
        make_room: Callable[[], object],
    ) -> None:
        """`tell` is given what open gaps have lost by now: rank, since when, bytes. `make_room` is called where a file
        cannot be opened without descriptors, before that is tried again."""
        self._make_room = make_room
        self._root = root
        self._job_id = job_id
        self._paths = root.job(job_id)
        self._loop = loop
        self._ledger = ledger
        self._counts: Counts | None = None
        self._logs: dict[int, tee.RankLog] = {}
        #: Those whose FIFOs hold something, of the present batch of the loop's callbacks.
        self._ready: list[tuple[int, tee.RankLog]] = []
        self._splicer = Splicer()
        #: The job has ended, and nothing of it is to be opened any more.
        self.closed = False
        self._claims: Claims = {}
        #: Ranks whose FIFO could not be opened when that was tried last.
        self.unopened: set[int] = set()
        #: Ranks whose log is not written where it belongs: in a gap, or into a file that was moved away.
        self._astray: set[int] = set()
        #: Gaps that are closed and not yet in the journal; and the pauses between the records of those that are open.
        self._closed: dict[int, Gap] = {}
        self._pauses: dict[int, float] = {}
        #: The open gaps that watchers know, and when (time.monotonic()) they may be sent again.
        self._tell, self._figures, self._tell_at = tell, list[tuple[int, float, int]](), 0.0
        self._folder = Folder(root.log)
        self._settings = SettingsFile(root.settings)

    def open_job(self, owner: tuple[int, int]) -> None:
        """Opens the job's log, which goes on where the daemon or a predecessor left it. Raises OSError where its FIFO
        cannot be made or opened; a file that cannot be opened is a gap."""
        if JOB in self._logs:
            return
        job = self._ledger.job
        tee.make_fifo(self._paths.job_fifo, *owner)
        log, index = job_log_files(self._root, self._job_id, job.node_rank)
        # The daemon, which may have begun the log, rotates nothing.
        layout, slot = self._look([log], new=not job.takeovers)[log], len(job.ranks)
        self._follow(JOB, self._open(JOB, self._paths.job_fifo, log, index, owner, self._counter(), slot, layout))

    def say(self, text: str) -> None:
        """A line in the job's log. Best effort: the journal is what counts."""
        log = self._logs.get(JOB)
        if log is None:
            return
        line = job_line(text).encode("utf-8", "replace")
        if len(line) > select.PIPE_BUF:  # more is not written in one piece
            line = line[: select.PIPE_BUF - 1] + b"\n"
        with contextlib.suppress(OSError):
            try:
                os.write(log.fd, line)
            except BlockingIOError:  # a step floods it: make room
                self._note(JOB, log.drain())
                os.write(log.fd, line)

    def make_fifos(self, ranks: list[Rank], owner: tuple[int, int]) -> None:
        """For ranks, or services, that do not exist yet; `owner`: uid and gid. Raises OSError."""
        for rank in ranks:
            tee.make_fifo(fifo_of(self._paths, rank.rank), *owner)

    def open(self, ranks: list[Rank], owner: tuple[int, int], fresh: bool) -> list[int]:
        """Opens FIFO and file of each rank, or service, and returns descriptors of all FIFOs, for others to hold.

        `owner`: uid and gid of files that are made. Not `fresh`: a FIFO that does not exist was drained to its end.
        Raises OSError where a FIFO cannot be opened: all that could be opened is, and another call opens the rest. A
        file that cannot be opened is a gap of that rank.
        """
        if not fresh and not any(fifo_of(self._paths, rank.rank).exists() for rank in ranks):
            return self.fds()  # a predecessor had drained and put away everything
        job, counter = self._ledger.job, self._counter()
        logs = [log_of(self._root, self._job_id, job, rank) for rank in ranks]
        layouts = self._look([log.path for log in logs], new=fresh and not job.past)
        trouble: OSError | None = None
        with self._log_folder() as within:
            for rank, log in zip(ranks, logs, strict=True):
                if rank.rank in self._logs:
                    continue  # from the attempt before
                fifo = fifo_of(self._paths, rank.rank)
                if not fresh and not fifo.exists():
                    continue  # drained to its end and put away
                slot, layout = slot_of(job, rank), layouts[log.path]
                try:
                    opened = self._open(rank.rank, fifo, log.path, log.index, owner, counter, slot, layout, within)
                except OSError as error:
                    trouble = trouble or error
                    self.unopened.add(rank.rank)
                else:
                    self.unopened.discard(rank.rank)
                    self._follow(rank.rank, opened)
        if trouble is not None:
            raise trouble
        return self.fds()

    def fds(self) -> list[int]:
        """Descriptors of all FIFOs, for others to hold."""
        return [log.fd for log in self._logs.values()]

    def mark(self, ranks: list[Rank], text: str) -> None:
        """A line of ours in the files of these ranks, or services: what comes behind it is another attempt's."""
        for rank in ranks:
            if (log := self._logs.get(rank.rank)) is not None:
                log.mark(text)

    def ends(self) -> dict[int, int]:
        """Bytes of each rank's output so far, by rank; those of which it is known."""
        return {number: log.offset for number, log in self._logs.items() if number != JOB and log.offset >= 0}

    def job_end(self) -> dict[int, int]:
        """As `ends`, of the job's own log."""
        log = self._logs.get(JOB)
        return {JOB: log.offset} if log is not None and log.offset >= 0 else {}

    def _counter(self) -> Counts:
        """With a place for each rank, one for the job's log, and one for each service."""
        if self._counts is None:
            paths, job = self._paths, self._ledger.job
            places = len(job.ranks) + 1 + len(job.services)
            self._counts = Counts(paths.lost, paths.ends, places, paths.spare_counts, paths.sinks)
        return self._counts

    def owner(self, ranks: list[Rank]) -> tuple[int, int] | None:
        """Uid and gid that the FIFOs belong to: the job's user, who need not be looked up again and may not be known at
        this moment. None where there is no FIFO any more."""
        for rank in ranks:
            with contextlib.suppress(FileNotFoundError):
                stat = self._paths.fifo(rank.rank).stat()
                return stat.st_uid, stat.st_gid
        with contextlib.suppress(FileNotFoundError):
            stat = self._paths.job_fifo.stat()
            return stat.st_uid, stat.st_gid
        return None

    def drain(self, last: bool = False) -> None:
        """All that is left, once nobody can write any more. `last`: the job ends, and with it every gap."""
        for number, log in self._logs.items():
            for gap in log.drain_all(time.monotonic() + DRAIN_WAIT_S):
                self._note(number, gap)
            if last:
                self._note(number, log.abandon())

    def commit_gaps(self) -> None:
        """Records what was lost: of an open gap from its first byte on, and again after growing pauses, which a
        successor keeps to; of a closed one the rest. Watchers get the open gaps each second."""
        job, now = self._ledger.job, process.uptime()
        for number, gap in list(self._closed.items()):
            self._pauses.pop(number, None)
            still = self._logs[number].gap
            self._record(number, gap, self._unrecorded(number) - (still.bytes if still is not None else 0))
            del self._closed[number]
        astray = [(number, self._logs[number]) for number in self._astray if number in self._logs]
        losing = [(number, lost) for number, log in astray if (lost := log.gap) is not None and lost.bytes]
        for number, lost in losing:
            known, more = job.gaps.get(number), self._unrecorded(number)
            if known is None or (more and now >= known.due):
                pause = self._pauses[number] = 2 * self._pauses.get(number, GAP_AGAIN_S / 2)
                self._record(number, lost, more, now + pause)
        self._tell_figures([(number, lost.since, lost.bytes) for number, lost in losing])
        texts = {self._displaced(number, log) for number, log in astray if log.displaced}
        for text in texts | {self._taken(number, log) for number, log in astray if log.taken}:
            if text not in job.warnings:
                self._ledger.owe({"kind": Kind.WARNING, "text": text}, sync=False)

    def _tell_figures(self, figures: list[tuple[int, float, int]]) -> None:
        """At once where another gap has begun or ended."""
        now = time.monotonic()
        alike = [figure[:2] for figure in figures] == [figure[:2] for figure in self._figures]
        if figures != self._figures and (now >= self._tell_at or not alike):
            self._figures, self._tell_at = figures, now + FIGURES_S
            self._tell(figures)

    def _recorded(self, number: int) -> int:
        """Bytes that records tell as lost, ever."""
        job = self._ledger.job
        return job.lost_bytes if number == JOB else job.rank(number).lost_bytes

    def _unrecorded(self, number: int) -> int:
        """Bytes that were lost, and that no record tells of yet."""
        return max(self._logs[number].lost - self._recorded(number), 0)

    def _taken(self, number: int, log: tee.RankLog) -> str:
        whose = _log_of(number)
        return f"{whose}: {log.taken}: `muster logs` says how much is missing"

    def _displaced(self, number: int, log: tee.RankLog) -> str:
        """A sentence about a log that is written where nobody looks for it."""
        if not log.path.parent.exists():
            return f"somebody moved the log folder {log.path.parent} away; output continued in its files"
        whose = _log_of(number)
        why = log.displaced.strerror if log.displaced is not None else ""
        return (
            f"somebody moved {whose} away, and {log.path} could not be opened: {why}; output continued in the "
            "file that was moved"
        )

    def _record(self, number: int, gap: Gap, more: int, due: float = 0.0) -> None:
        """`more` is what came since the last record, so that all records of a rank add up to what it lost. `due`: when
        the next one of an open gap may come (CLOCK_BOOTTIME)."""
        lost = {"bytes": more, "total": gap.bytes, "since": gap.since, "error": gap.error, "open": not gap.until}
        lost |= {"until": gap.until} if gap.until else {"due": due}
        if gap.line_missing:
            lost["line"] = gap.line()
        self._ledger.owe({"kind": Kind.LOST_BYTES, "rank": number} | lost, sync=False)

    def close(self) -> None:
        """Closes all logs; output is no longer taken."""
        self.closed = True
        self._splicer.end()
        for log in self._logs.values():
            self._loop.remove(log.fd)
            log.close()
        self._logs.clear()
        if self._counts is not None:
            self._counts.close()
            self._counts = None

    def _look(self, logs: list[Path], new: bool) -> dict[Path, Layout | None]:
        """One look for all: each file that is made would be reason for another. None where nothing can have been
        rotated yet: the folder, with all that is kept of earlier jobs, may be large. Where the folder cannot be read,
        each log looks for itself."""
        if new:
            return dict.fromkeys(logs, NEVER_ROTATED)
        try:
            os.stat(self._folder.path)
            return dict(zip(logs, self._folder.look(logs), strict=True))
        except OSError:
            return dict.fromkeys(logs)

    @contextlib.contextmanager
    def _log_folder(self) -> Iterator[int | None]:
        """A descriptor of it for all logs; None where it cannot be opened: then each log tries, and is a gap."""
        with contextlib.ExitStack() as held:
            within: int | None = None
            with contextlib.suppress(OSError):
                within = held.enter_context(rotation.opened(self._root.log))
            yield within

    def _open(
        self, number: int, fifo: Path, log: Path, index: Path, owner: tuple[int, int], counter: Counts, slot: int,
        layout: Layout | None, within: int | None = None,
    ) -> tee.RankLog:  # fmt: skip
        """`slot`: of the rank, in the counts."""
        self._agree(number, counter[slot])
        size = tee.SMALL_FIFO if number == JOB else tee.fifo_size(len(self._ledger.job.ranks))
        return tee.RankLog(
            fifo, log, index, owner, counter, slot, layout, self._file_limit, self._trim, self._claims, size, within
        )

    def _agree(self, number: int, count: Count) -> None:
        """What the journal tells as lost was lost, also where the counts could not be kept."""
        known, recorded = self._ledger.job.gaps.get(number), self._recorded(number)
        if count.lost < recorded:
            count.lost = count.told = recorded
            if known is not None:
                count.told, count.since = recorded - known.bytes, known.since

    def _file_limit(self) -> int:
        """Bytes after which a file is rotated: so early, too, that the job's limit can be kept by removing segments."""
        logs = self._settings.now.logs
        own = (logs.max_job_bytes or logs.rotate_for_bytes) // (2 * max(len(self._logs), 1))
        return min(logs.max_file_bytes or own, own) if own else logs.max_file_bytes

    def _trim(self) -> None:
        """A file was rotated: now there is something that the job may have to give up. Best effort."""
        most = self._settings.now.logs.max_job_bytes
        if most:
            with contextlib.suppress(OSError):
                rotation.trim(self._folder, [log.path for log in self._logs.values()], most, live=self._file_limit())

    def _follow(self, number: int, log: tee.RankLog) -> None:
        self._logs[number] = log
        self._close_known(number, log)
        self._loop.add(log.fd, lambda: self._on_output(number, log))
        if log.taken:
            self._astray.add(number)
        if log.stalled:
            self._astray.add(number)
            self._at_limit(log)
            self._loop.later(0, lambda: self._resume(number, log))

    def _close_known(self, number: int, log: tee.RankLog) -> None:
        """A predecessor wrote a gap's line, and was killed before a record told so."""
        known, more = self._ledger.job.gaps.get(number), self._unrecorded(number)
        if log.stalled or (known is None and not more):
            return
        now = time.time()
        gap = Gap(known.since if known else now, known.error if known else "see its log", bytes=more, until=now)
        gap.bytes += known.bytes if known else 0
        self._closed[number] = gap

    def _on_output(self, number: int, log: tee.RankLog) -> None:
        if not self._ready:
            self._loop.behind(self._drain_ready)
        self._ready.append((number, log))

    def _drain_ready(self) -> None:
        """A batch of each rank that has written, all at once."""
        ready, self._ready = self._ready, []
        begun = [
            (number, log, log.stalled, *log.begin_drain()) for number, log in ready if self._logs.get(number) is log
        ]
        helped = self._splicer.helped
        self._splicer.run([splice for _, _, _, splice, _ in begun if splice is not None])
        if self._splicer.helped and not helped:
            self._loop.later(REST_S, self._rest)
        for number, log, before, splice, closed in begun:
            if splice is not None:
                log.end_drain(splice)
            self._note(number, closed)
            if log.stalled and not before:
                self._at_limit(log)
                self._loop.later(tee.RETRY_S, functools.partial(self._resume, number, log))

    def _rest(self) -> None:
        self._splicer.rest()
        if self._splicer.helped:
            self._loop.later(REST_S, self._rest)

    def _at_limit(self, log: tee.RankLog) -> None:
        """A gap caused by missing descriptors ends by itself only if something frees descriptors."""
        if log.gap is not None and log.gap.number in FULL:
            self._make_room()

    def _resume(self, number: int, log: tee.RankLog) -> None:
        if self._logs.get(number) is not log:
            return
        self._note(number, log.resume())
        if log.stalled:
            self._at_limit(log)
            self._loop.later(tee.RETRY_S, lambda: self._resume(number, log))

    def _note(self, number: int, gap: Gap | None) -> None:
        """One record tells of all gaps of a rank since the last: a disk that flaps must not fill the journal."""
        log = self._logs.get(number)
        if log is not None and (log.stalled or log.displaced or log.taken):
            self._astray.add(number)
        else:
            self._astray.discard(number)
        if gap is None:
            return
        before = self._closed.setdefault(number, gap)
        if before is not gap:
            before.bytes += gap.bytes
            before.until, before.error, before.line_missing = gap.until, gap.error, gap.line_missing


def _log_of(number: int) -> str:
    return "the job's own log" if number == JOB else f"the log of {log_owner(number)}"
