"""Known signs of errors in the last part of a job's logs, and when they were written.

Reading is limited in bytes, ranks and time, and runs in a thread that nothing waits for: the disk may hang, and regular
expressions search text that a job wrote.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import anyio

from muster.agent.logs.log_reading import RankLogFile
from muster.agent.why import launchers, log_stretch, worker_logs
from muster.agent.why.launchers import LastWords, LauncherReport, WorkerFailure
from muster.agent.why.log_stretch import Stretch
from muster.agent.why.signatures import Hit, Table, line_start, scan, unprefixed
from muster.agent.why.worker_logs import Place, ProcessLog
from muster.probes.calls import watched
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.output import tee
from muster.supervisors.output.time_lookup import TimeIndex

#: How many bytes of the end of a log are searched: of the ranks that count, and of others.
TAIL, SHORT_TAIL = 64 << 10, 16 << 10
#: Time limits in seconds: for all files of a report, for one search; after BACK_S no search goes further back.
READ_S, SCAN_S, BACK_S = 10.0, 2.0, 1.0
#: Signatures that only repeat a launcher's report, if one exists (launchers.py).
_ECHOES = frozenset({"elastic-child-failed"})
#: Output within so many seconds belongs together: a traceback, and what the interpreter writes as it ends.
PAUSE_S = 2.0
#: Also behind a progress bar, which ends no line: "0/90 [00:01<?, ?it/s]", then perhaps the prefix of a rank.
_TRACEBACK = re.compile(
    rb"(?:^(?:\[[a-z]{1,10} ?[0-9]{1,5}\] ?:? ?|\[[0-9,]{1,20}\]<std(?:err|out)>: ?|[A-Za-z0-9._-]{1,80}: |"
    rb"\([^()\r\n]{1,120}\) |[0-9][0-9T:.Z+-]{9,40} (?:std(?:err|out) [FP] )?)?|\]|\[rank[0-9]{1,5}\]: )"
    rb"Traceback \(most recent call last\):",
    re.MULTILINE,
)
#: The line before a traceback that ended nothing: of an object that is removed, of what runs at the exit, of a log that
#: could not be written.
_IGNORED = re.compile(
    rb"^(?:\[[a-z]{1,10} ?[0-9]{1,5}\] ?:? ?)?"
    rb"(?:Exception ignored (?:in|on|while)|Error in atexit\._run_exitfuncs|--- Logging error ---)",
    re.MULTILINE,
)
#: Ends of the lines before a traceback that was raised from another one.
_CHAINED = (b"another exception occurred:", b"direct cause of the following exception:")
#: Hits with more than so many bytes, or seconds, between them are unrelated.
APART_BYTES, APART_S = 16 << 10, 120.0
#: So many of the last errors of a rank are looked at for whether it went on after them.
NAMED = 16
#: A rank that wrote more lines than these after an error of a service went on without it.
FAR_LINES = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which part of which log to search: at most `most` bytes before `end` (None: the end of the file), none of them
    before `begin`. `rank` None: the job's own log. `place`: where the rank, process `pid`, wrote further logs; None:
    these are not searched. `workers`: ranks that the rank, a launcher, has made, by process, as far as known."""

    rank: int | None
    file: RankLogFile
    begin: int = 0
    end: int | None = None
    most: int = TAIL
    place: Place | None = None
    pid: int | None = None
    workers: Mapping[int, int] = field(default_factory=dict)


#: A path in quotes in a line about a file; PyTorch names a file of shared memory `</torch_...>`.
_PATH = re.compile("""['"\u2018](/[^\\s'":>]+)""")
_SHARED_MEMORY = re.compile(r"shared memory|/torch_[0-9a-f]|\bshm\b")


@dataclass(frozen=True, slots=True)
class Sign:
    """A signature in a log. `at`: when its line was written, in seconds since the epoch; None: unknown. `last`: it
    belongs to the last output; otherwise more output and other signs followed. `file`: its file, if it is not the
    output of the rank. `went_on_at`: when the rank wrote more, over PAUSE_S later; None: it did not, or it is
    unknown. `before_end`: it stands before the traceback with which the output ends, and before all that this one
    was raised from; `far_before`: with over FAR_LINES lines of other output between them. `ignored`: it is part of
    a traceback that Python reports and goes on from."""

    rank: int | None
    hit: Hit
    at: float | None
    last: bool
    file: str = ""
    went_on_at: float | None = None
    before_end: bool = False
    far_before: bool = False
    ignored: bool = False

    @property
    def path(self) -> str:
        """The file that the line is about; empty where it names none."""
        if _SHARED_MEMORY.search(self.hit.line):
            return "/dev/shm"
        found = _PATH.search(self.hit.line)
        return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher, which is rank `rank` of the job, reports in its log. `workers`: those that failed, in order of
    failure, and the last `words` of the first. `at` as in Sign."""

    rank: int
    workers: tuple[WorkerFailure, ...]
    words: LastWords
    at: float | None


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found, in the order of the given logs, and sentences about what could not be searched. `pids`: processes
    that a signal ended, as a shell reports in the log. `last_lines`: of ranks."""

    signs: tuple[Sign, ...] = ()
    missing: tuple[str, ...] = ()
    launched: tuple[Launched, ...] = ()
    pids: tuple[int, ...] = ()
    last_lines: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


async def search(wanted: Sequence[Wanted], table: Table, back_s: float = BACK_S) -> Searched:
    """Searches the last part of logs; for `back_s` seconds it looks further back where that names no error. Never
    raises."""
    if not wanted:
        return Searched()
    folder = wanted[0].file.path.parent
    found: list[Searched] = []

    def run() -> None:
        until = time.monotonic() + READ_S
        back_until = time.monotonic() + back_s
        for one in wanted:
            if time.monotonic() >= until:
                found.append(Searched((), (f"not all logs were searched within {READ_S:g} s",)))
                return
            found.append(search_file(one, table, back_until))

    try:
        with anyio.move_on_after(READ_S + 2 * SCAN_S) as waiting:
            await watched.call(f"logs in {folder}", run)
    except (OSError, watched.StillHanging) as error:
        found.append(Searched((), (f"cannot search the logs: {error}",)))
    else:
        if waiting.cancelled_caught:
            found.append(Searched((), (f"the logs were searched only in part: {folder} does not answer",)))
    done = tuple(found)
    return Searched(
        tuple(sign for one in done for sign in one.signs),
        tuple(text for one in done for text in one.missing),
        tuple(report for one in done for report in one.launched),
        tuple(pid for one in done for pid in one.pids),
        {rank: lines for one in done for rank, lines in one.last_lines.items()},
    )


def search_file(one: Wanted, table: Table, back_until: float = math.inf) -> Searched:
    """Blocks. Until `back_until` (of the monotonic clock) it looks further back if the end of the log names no
    error."""
    name = one.file.path.name
    try:
        stretch = log_stretch.tail(one.file, one.begin, one.end, one.most)
        data = stretch.data
        found = scan(data, table, until=time.monotonic() + SCAN_S)
        earlier: list[Sign] = []
        is_named = any(hit.signature.role == "root" and hit.signature.shows != "end" for hit in found.hits)
        if one.most >= TAIL and not is_named and time.monotonic() < back_until:
            earlier = _further_back(one, stretch, table)
    except FileNotFoundError:
        return Searched((), (f"{name}: no longer exists",))
    except OSError as error:
        return Searched((), (f"{name}: cannot be read: {error.strerror}",))
    missing = () if found.whole else (f"{name}: was searched only in part: the search took over {SCAN_S:g} s",)
    hits: Sequence[Hit] = found.hits
    report = launchers.read(data) if one.rank is not None else None
    launched: tuple[Launched, ...] = ()
    if one.rank is not None and report is not None:
        report = report.naming(one.workers)
        # A traceback in the report is the worker's, and has the time of the report.
        said = "\n".join(report.first.said).encode()
        told = scan(said, table, until=time.monotonic() + SCAN_S).hits
        kept = [hit for hit in hits if not report.begin <= hit.at < report.end and hit.signature.id not in _ECHOES]
        hits = [*kept, *(replace(hit, at=report.begin, worker=report.first.rank) for hit in told)]
        hits.sort(key=lambda hit: (hit.at, -hit.signature.priority))
        (at,) = _times(one, stretch, [report.begin])
        launched = (Launched(one.rank, report.workers, launchers.last_words(data, report), at),)
    signs = earlier + _of_output(one, stretch, hits, launched=report is not None)
    if one.place is not None and one.rank is not None:
        if report is not None:
            of_workers, launched = _of_workers(one.rank, report, launched[0], one.place, table)
            signs += of_workers
        pid = one.pid if not launched else launched[0].workers[0].pid
        worker = None if not launched else launched[0].workers[0].rank
        for log in worker_logs.of_cann(one.place, pid):
            signs += _signs_in(log, one.rank, worker, table)
    last = {} if one.rank is None else {one.rank: tee.last_lines(data, cut=False)}
    return Searched(tuple(signs), missing, launched, launchers.told_by_shell(data), last)


def _of_workers(
    rank: int, report: LauncherReport, launched: Launched, place: Place, table: Table
) -> tuple[list[Sign], tuple[Launched, ...]]:
    """The signs in the workers' own logs, and from them the rank that failed, if the launcher does not name it."""
    logs = worker_logs.of_workers(report.first, report.log_dir, place)
    found = {log.path: _signs_in(log, rank, log.rank, table) for log in logs}
    first = report.first
    if first.rank is None:
        # Found by the process that its lines name; or it is the only log with an error of its own.
        own = worker_logs.of_pid(logs, first.pid)
        telling = [log for log in logs if any(sign.hit.signature.role == "root" for sign in found[log.path])]
        own = own or (telling[0] if len(telling) == 1 else None)
        first = first if own is None else replace(first, rank=own.rank)
    words = launched.words
    its = [log for log in logs if log.rank == first.rank and first.rank is not None and log.data.strip()]
    if its and not first.said:
        words = launchers.LastWords(launchers.ending_lines(its[-1].data), its[-1].path)
    signs = [sign for one in found.values() for sign in one]
    return signs, (replace(launched, workers=(first, *report.workers[1:]), words=words),)


def _signs_in(log: ProcessLog, rank: int, worker: int | None, table: Table) -> list[Sign]:
    """The signs in a log beside the output. Only the time of its last line is known."""
    hits = scan(log_stretch.without_escapes(log.data).data, table, until=time.monotonic() + SCAN_S).hits
    whose = [hit if hit.worker is not None else replace(hit, worker=worker) for hit in hits]
    return [replace(sign, file=log.path) for sign in _signs(rank, whose, [log.at] * len(whose))]


def _of_output(one: Wanted, stretch: Stretch, hits: Sequence[Hit], *, launched: bool) -> list[Sign]:
    """The signs in a stretch of a rank's output; `launched`: of a launcher, whose workers write into one output."""
    ignored = _ignored(stretch.data)
    times = _times(one, stretch, [hit.at for hit in hits])
    signs = _signs(one.rank, hits, times)
    named = [number for number, sign in enumerate(signs) if sign.hit.signature.role == "root"][-NAMED:]
    signs = [_gone_on(sign, one, stretch, number in named) for number, sign in enumerate(signs)]
    signs = [replace(sign, ignored=any(begin <= sign.hit.at < end for begin, end in ignored)) for sign in signs]
    if launched:
        return signs
    end = _last_traceback(stretch.data, ignored)
    end = max([end, *(sign.hit.at for sign in signs if sign.hit.signature.shows == "end" and not sign.ignored)])

    def placed(sign: Sign) -> Sign:
        far = stretch.data.count(b"\n", sign.hit.at, max(end, sign.hit.at)) > FAR_LINES
        return replace(sign, before_end=sign.hit.at < end, far_before=far)

    return [placed(sign) for sign in signs]


def _further_back(one: Wanted, following: Stretch, table: Table) -> list[Sign]:
    """The signs before the end of a log that names no error: a rank may write much between its error and its end."""
    stretch = log_stretch.before(one.file, one.begin, following)
    if stretch is None:
        return []
    hits = scan(stretch.data, table, until=time.monotonic() + SCAN_S).hits
    signs = _of_output(one, stretch, [hit for hit in hits if hit.signature.role == "root"], launched=False)
    return [replace(sign, last=False) for sign in signs]


def _times(one: Wanted, stretch: Stretch, places: Sequence[int]) -> list[float | None]:
    """When the bytes at these ascending offsets were written. The index is accurate to 100 ms."""
    index = TimeIndex(one.file.index)
    found: list[float | None] = []
    for place in map(stretch.place, places):
        try:
            when, _ = index.segment(place, place + 1)
        except OSError:
            when = None
        found.append(None if when is None else when / 1e9)
    return found


def _gone_on(sign: Sign, one: Wanted, stretch: Stretch, is_late: bool) -> Sign:
    """Adds when the rank wrote more after an exception, or one of its last errors: the program may have handled it."""
    if sign.at is None or not (is_late or sign.hit.signature.shows == "exception"):
        return sign
    index, place = TimeIndex(one.file.index), stretch.place(sign.hit.at)
    while place < stretch.end:
        try:
            when, place = index.segment(place, stretch.end)
        except OSError:
            return sign
        if when is not None and when / 1e9 - sign.at > PAUSE_S:
            return replace(sign, went_on_at=when / 1e9)
    return sign


def _ignored(data: bytes) -> list[tuple[int, int]]:
    """Where the tracebacks are that ended nothing: from the line that says so to the line of the exception."""
    found = []
    for match in _IGNORED.finditer(data):
        end = data.find(b"\n", match.end()) + 1
        while 0 < end < len(data) and end - match.start() < APART_BYTES:
            begin, end = end, data.find(b"\n", end) + 1
            line = unprefixed(data[begin : begin + 200].decode("utf-8", "replace"))
            if not line.startswith((" ", "Traceback ")):
                break
        found.append((match.start(), end or len(data)))
    return found


def _last_traceback(data: bytes, ignored: Sequence[tuple[int, int]] = ()) -> int:
    """Where the last traceback begins, or the first of those that it was raised from; 0 where there is none."""
    place = before = 0
    for match in _TRACEBACK.finditer(data):
        if any(begin <= match.start() < end for begin, end in ignored):
            continue
        if not data[before : match.start()].rstrip().endswith(_CHAINED):
            place = line_start(data, match.start())
        before = match.start()
    return place


def _signs(rank: int | None, hits: Sequence[Hit], times: Sequence[float | None]) -> list[Sign]:
    """Backwards from the last hit, hits that follow each other closely belong to the last output."""
    found: list[Sign] = []
    last = True
    for number in range(len(hits) - 1, -1, -1):
        if number + 1 < len(hits):
            before, after = times[number], times[number + 1]
            far = hits[number + 1].at - hits[number].at > APART_BYTES
            last = last and not far and not (before is not None and after is not None and after - before > APART_S)
        found.append(Sign(rank, hits[number], times[number], last))
    return found[::-1]
