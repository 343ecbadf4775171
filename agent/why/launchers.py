"""What a launcher's output says about its workers: which of them failed first, and how.

torchrun, mpirun (Open MPI, PRRTE, and Hydra of MPICH and Intel MPI) and msrun each end with a report in their own form.
This module turns each form into `WorkerFailure`. It reads no files. The job wrote the text that it searches, so each
pattern has a bounded worst case.
"""

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from muster.probes.kernel import endings
from muster.probes.kernel.dataclass import dataclass

#: At most so many of a worker's last lines are kept.
MAX_LINES = 15
#: At most so many workers of one report are kept.
MAX_WORKERS = 64
#: A report is the launcher's last word if at most so many bytes follow it.
MAX_BEHIND = 16 << 10


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker's failure as its launcher reports it. None and "": the launcher does not say it.

    `rank` counts over all nodes. `code` is the exit code, or -9 for SIGKILL, as in `subprocess`. `at`: seconds since
    the epoch. `error_file`: the file that the worker wrote its error to. `said`: the error that the launcher quotes.
    `detail`: how it failed if it has no code, as the end of a sentence.
    """

    launcher: str
    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    code: int | None = None
    at: float | None = None
    error_file: str = ""
    said: tuple[str, ...] = ()
    detail: str = ""

    @property
    def who(self) -> str:
        """ "rank 1", or the pid if that is all that is known."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"a worker (pid {self.pid})" if self.pid else "a worker"

    @property
    def ending(self) -> str:
        """ "exited with code 9", "was killed by SIGKILL"."""
        if self.detail:
            return self.detail
        return "failed" if self.code is None else endings.describe_code(self.code)

    @property
    def killed_by(self) -> int | None:
        """The signal that ended it."""
        return -self.code if self.code is not None and self.code < 0 else None


@dataclass(frozen=True, slots=True)
class LauncherReport:
    """Where a launcher's report is in a text, and the failed workers that it names, the first failure first. `log_dir`:
    the folder of the workers' logs, if the launcher names it."""

    begin: int
    end: int
    workers: tuple[WorkerFailure, ...]
    log_dir: str = ""

    @property
    def first(self) -> WorkerFailure:
        """The worker that failed first."""
        return self.workers[0]

    def naming(self, ranks: Mapping[int, int]) -> "LauncherReport":
        """With the rank of each worker of which the launcher tells only the process; `ranks`: by process."""

        def named(one: WorkerFailure) -> WorkerFailure:
            rank = ranks.get(one.pid) if one.rank is None and one.pid else None
            return one if rank is None else replace(one, rank=rank)

        return replace(self, workers=tuple(named(one) for one in self.workers))


def read(text: bytes) -> LauncherReport | None:
    """The last report in the last part of a log; None if it has none near its end."""
    found = [report for reader in _READERS if (report := reader(text)) is not None]
    if not found:
        return None
    report = max(found, key=lambda one: one.end)
    return report if len(text) - report.end <= MAX_BEHIND else None


# --- torchrun ---------------------------------------------------------------------------------------------------------

_ROOT = re.compile(rb"^Root Cause(?: \(first observed failure\))?:[ \t]{0,4}\r?$", re.MULTILINE)
_CHILD_FAILED = b"multiprocessing.errors.ChildFailedError"
_TRACEBACK = b"Traceback (most recent call last):"
#: One worker of the table, without the text of its traceback. Versions before 1.10 write "time: ", and no host.
_ENTRY = re.compile(
    rb"^\[[0-9]{1,5}\]:[ \t]{0,4}\r?\n"
    rb"[ \t]{1,8}time[ ]{0,8}: (?P<time>[^\n]{0,40})\n"
    rb"(?:[ \t]{1,8}host[ ]{0,8}: (?P<host>[^\n]{0,300})\n)?"
    rb"[ \t]{1,8}rank[ ]{0,8}: (?P<rank>[0-9]{1,7}) \(local_rank: (?P<local>[0-9]{1,5})\)[^\n]{0,20}\n"
    rb"[ \t]{1,8}exitcode[ ]{0,8}: (?P<code>-?[0-9]{1,5}) \(pid: (?P<pid>[0-9]{1,9})\)[^\n]{0,40}\n"
    rb"[ \t]{1,8}error_file[ ]{0,8}: (?P<file>[^\n]{0,4096})\n"
    rb"[ \t]{1,8}(?:traceback|msg)[ ]{0,8}: ",
    re.MULTILINE,
)
_BORDER = re.compile(rb"^(?:={5,200}|-{5,200}|\*{5,200})[ \t]{0,4}\r?$", re.MULTILINE)
#: What torchrun writes in place of a traceback if the worker left none.
_NO_TRACEBACK = re.compile(r"To enable traceback see|Signal [0-9]{1,3} \(|\"?Process failed with exitcode")


def _torchrun(text: bytes) -> LauncherReport | None:
    root = None
    for match in _ROOT.finditer(text):
        root = match
    if root is None:
        return None
    raised = text.rfind(_CHILD_FAILED, 0, root.start())
    borders = [match.start() for match in _BORDER.finditer(text, max(raised, 0), root.start())]
    begin = text.rfind(_TRACEBACK, 0, raised) if raised >= 0 else -1
    if begin < 0:
        begin = raised if raised >= 0 else min(borders, default=root.start())
    begin = text.rfind(b"\n", 0, begin) + 1
    first, others, end = None, [], root.end()
    for match in _ENTRY.finditer(text, begin):
        worker, stop = _torch_worker(text, match)
        if match.start() > root.start() and first is None:
            first = worker
        else:
            others.append(worker)
        end = max(end, stop)
    if first is None:
        return None
    last = _BORDER.match(text, end)
    return LauncherReport(begin, last.end() if last else end, (first, *others[: MAX_WORKERS - 1]))


def _torch_worker(text: bytes, match: re.Match[bytes]) -> tuple[WorkerFailure, int]:
    """A worker of the table, and the offset where its text ends."""
    following, border = _ENTRY.search(text, match.end()), _BORDER.search(text, match.end())
    stop = min((found.start() for found in (following, border) if found is not None), default=len(text))
    said = text[match.end() : stop].decode("utf-8", "replace").rstrip()
    lines = tuple(line.removeprefix("  ").rstrip() for line in said.splitlines())
    if _NO_TRACEBACK.match(said) or said == "<N/A>":
        lines = ()
    file = _word(match["file"])
    worker = WorkerFailure(
        "torchrun",
        int(match["rank"]),
        int(match["local"]),
        _word(match["host"] or b""),
        int(match["pid"]),
        int(match["code"]),
        _moment(_word(match["time"])),
        "" if file == "<N/A>" else file,
        lines[-4 * MAX_LINES :],
    )
    return worker, stop


def _moment(text: str) -> float | None:
    """Converts "2026-11-23_16:51:57", which is local time, to seconds since the epoch."""
    try:
        return datetime.fromisoformat(text.replace("_", "T")).timestamp()
    except ValueError:
        return None


def _word(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip()


# --- mpirun -----------------------------------------------------------------------------------------------------------

#: Open MPI and, from its version 5 on, PRRTE. mpirun may be called mpiexec, orterun, prterun or prun.
_OPEN_MPI = re.compile(
    # A worker that exited: "[[2674,1],1]", or "[prterun-n0-2674@1,1]".
    rb"detected that one or more processes exited with non-zero status,\s{1,4}thus causing\s{1,4}the job to be "
    rb"terminated\. The first process to do so was:\s{1,8}Process name: \[[^\n]{0,200}?,(?P<exited>[0-9]{1,7})\]\s{1,8}"
    rb"Exit code:[ ]{1,8}(?P<code>[0-9]{1,5})"
    rb"|noticed that process rank (?P<killed>[0-9]{1,7})(?: with PID (?P<pid>[0-9]{1,10}))?"
    rb"(?: on node (?P<host>\S{1,255}))?\s{1,4}exited\s{1,4}on\s{1,4}signal\s{1,4}(?P<signal>[0-9]{1,3})"
    rb"|MPI_ABORT was invoked on rank (?P<aborted>[0-9]{1,7}) in communicator [^\n]{1,100}\n"
    rb"(?:[^\n]{0,200}\n)?[ ]{0,8}(?:with errorcode|Errorcode:) (?P<errorcode>-?[0-9]{1,10})"
    rb"|was unable to launch the specified application as it could not access\s{1,4}or execute an executable:"
    rb"\s{1,8}Executable: (?P<program>[^\n]{1,1000})\s{1,8}Node: (?P<node>\S{1,255})"
    rb"\s{1,8}while attempting to start process rank (?P<unborn>[0-9]{1,7})"
    rb"|was unable to find the specified executable file[^*]{1,120}?rank (?P<missing>[0-9]{1,7});[^*]{1,500}?"
    rb"Node:[ ]{1,20}(?P<where>\S{1,255})\s{1,8}Executable: (?P<nofile>[^\n]{1,1000})"
)
#: The first lines of its report; a line of its frame.
_PRIMARY = re.compile(rb"^-{20,100}\r?\nPrimary job  terminated normally", re.MULTILINE)
_RULE = re.compile(rb"-{20,100}\r?\n")
#: Its signal handler in a worker that a signal ends.
_HANDLER = re.compile(rb"^\[[^\]\n:]{1,255}:([0-9]{1,10})\] \*\*\* Process received signal", re.MULTILINE)


def _open_mpi(text: bytes) -> LauncherReport | None:
    return _together(text, [(match, _mpi_worker(text, match)) for match in _OPEN_MPI.finditer(text, _recent(text))])


def _mpi_worker(text: bytes, match: re.Match[bytes]) -> WorkerFailure:
    if match["exited"] is not None:
        return WorkerFailure("mpirun", int(match["exited"]), code=int(match["code"]))
    if match["killed"] is not None:
        pid = int(match["pid"] or 0)
        handled = set(_HANDLER.findall(text, 0, match.start()))
        if not pid and len(handled) == 1:  # it does not know the pids of its own node
            pid = int(handled.pop())
        host = _word(match["host"] or b"")
        return WorkerFailure("mpirun", int(match["killed"]), None, host, pid or None, -int(match["signal"]))
    if match["aborted"] is not None:
        code = int(match["errorcode"])
        return WorkerFailure("mpirun", int(match["aborted"]), code=code, detail=f"called MPI_Abort with code {code}")
    names = ("unborn", "program", "node") if match["unborn"] is not None else ("missing", "nofile", "where")
    rank, program, node = (_word(match[name]) for name in names)
    detail = f"could not be started: {program} cannot be found or executed"
    return WorkerFailure("mpirun", int(rank), host=node, detail=detail)


#: Hydra, the mpiexec of MPICH, MVAPICH2 and Intel MPI: one block per worker.
_HYDRA = re.compile(
    rb"^={20,120}\r?\n=[ ]{1,8}BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES[^\n]{0,40}\n"
    rb"=[ ]{1,8}(?:RANK (?P<rank>[0-9]{1,7}) )?PID (?P<pid>[0-9]{1,10}) RUNNING AT (?P<host>[^\n]{1,255})\n"
    rb"=[ ]{1,8}(?:EXIT CODE: (?P<code>-?[0-9]{1,10})|KILLED BY SIGNAL: (?P<signal>[0-9]{1,3}))[^\n]{0,60}\n"
    rb"(?:=[ ]{1,8}[^\n]{1,120}\n){0,4}={20,120}",
    re.MULTILINE,
)
_EXIT_STRING = re.compile(rb"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: [^\n]{1,80}\(signal ([0-9]{1,3})\)")
#: The line of MPICH and Intel MPI about a worker that calls MPI_Abort, before that block.
_MPICH_ABORT = re.compile(
    rb"^Abort\((?P<code>-?[0-9]{1,10})\) on node [0-9]{1,7} \(rank (?P<rank>[0-9]{1,7}) in comm [0-9]{1,10}\): "
    rb"(?P<what>[^\n]{0,300})|^application called MPI_Abort\([^\n]{1,60}, (?P<old>-?[0-9]{1,10})\) - process "
    rb"(?P<by>[0-9]{1,7})",
    re.MULTILINE,
)


def _hydra(text: bytes) -> LauncherReport | None:
    said = _EXIT_STRING.search(text)
    found = []
    for match in _HYDRA.finditer(text, _recent(text)):
        code, number = int(match["code"] or 0), int(match["signal"] or 0)
        if not number and said is not None and code in (int(said[1]), 128 + int(said[1])):
            number = int(said[1])
        rank = int(match["rank"]) if match["rank"] is not None else None
        code = -number if number else code
        found.append((match, WorkerFailure("mpirun", rank, None, _word(match["host"]), int(match["pid"]), code)))
    # After a failure Hydra kills the other workers, and may report them first.
    found.sort(key=lambda one: one[1].killed_by in (signal.SIGKILL, signal.SIGTERM))
    for match in _MPICH_ABORT.finditer(text, _recent(text)):
        code = int(match["code"] or match["old"])
        worker = WorkerFailure(
            "mpirun", int(match["rank"] or match["by"]), code=code, detail=f"called MPI_Abort with code {code}"
        )
        if not match["what"] or b"MPI_Abort" in match["what"]:
            found.insert(0, (match, worker))
            break
    return _together(text, found)


def _recent(text: bytes) -> int:
    """The offset from which a text can contain a report of mpirun."""
    return max(0, len(text) - 2 * MAX_BEHIND)


def _together(text: bytes, found: Sequence[tuple[re.Match[bytes], WorkerFailure]]) -> LauncherReport | None:
    """A report with parts at these places; parts of an earlier report, far before, are left out."""
    if not found:
        return None
    end = max(match.end() for match, _ in found)
    near = [(match, worker) for match, worker in found if end - match.start() <= MAX_BEHIND]
    workers: dict[tuple[int | None, int | None], WorkerFailure] = {}
    for _, worker in near:
        workers.setdefault((worker.rank, None if worker.rank is not None else worker.pid), worker)
    begin = min(match.start() for match, _ in near)
    begin = text.rfind(b"\n", 0, begin) + 1
    opening = _PRIMARY.search(text, max(0, begin - 600), begin)
    begin = opening.start() if opening is not None else begin
    before = text.rfind(b"\n", 0, max(0, begin - 1)) + 1
    if _RULE.fullmatch(text, before, begin):
        begin = before
    return LauncherReport(begin, end, tuple(workers.values())[:MAX_WORKERS])


# --- msrun ------------------------------------------------------------------------------------------------------------

#: MindSpore names the process and not the rank. Versions before 2.4 report no code.
_MSRUN = re.compile(
    rb"^\[ERROR\] ME\([^)\n]{1,80}\):[^\n]{1,40} \[[^\]\n]{1,200}process_entity/_api\.py:[0-9]{1,5}\] "
    rb"Worker process (?P<pid>[0-9]{1,10}) exit with exception\.(?: Error code: (?P<code>-?[0-9]{1,5})\.)?",
    re.MULTILINE,
)
_MSRUN_END = re.compile(
    rb"^RuntimeError: Distributed job exited with exception\. "
    rb"Please check logs in directory: (?P<dir>[^\n]{0,1000})\.$",
    re.MULTILINE,
)


def _msrun(text: bytes) -> LauncherReport | None:
    found = list(_MSRUN.finditer(text))[-MAX_WORKERS:]
    if not found:
        return None
    workers = [
        WorkerFailure("msrun", pid=int(one["pid"]), code=int(one["code"]) if one["code"] is not None else None)
        for one in found
    ]
    end, log_dir = found[-1].end(), ""
    if (last := _MSRUN_END.search(text, end)) is not None:
        end, log_dir = last.end(), _word(last["dir"])
    return LauncherReport(found[0].start(), end, tuple(workers), log_dir)


_READERS: Sequence[Callable[[bytes], LauncherReport | None]] = (_torchrun, _open_mpi, _hydra, _msrun)


# --- the worker's own words -------------------------------------------------------------------------------------------

#: Lines that torchrun and msrun write about themselves, and the stack frames that Open MPI's signal handler writes.
_LAUNCHERS_OWN = re.compile(
    r"^(?:[IWE][0-9]{4} [0-9:.]{8,20} [0-9]{1,9} torch/distributed/"
    r"|\[[0-9 :,.-]{10,40}\] torch\.distributed\."
    r"|(?:INFO|WARNING|ERROR):torch\.distributed\."
    r"|Start (?:worker|scheduler) process"
    r"|\[(?:WARNING|ERROR)\] ME\([^)]{1,80}\):\S{1,40} \[[^\]]{1,200}process_entity/_api\.py:"
    r"|\[[^\]:]{1,255}:[0-9]{1,10}\] (?:\[ ?[0-9]{1,3}\] |\*\*\* ))"
)


@dataclass(frozen=True, slots=True)
class LastWords:
    """The last lines of a worker. `whose`: "the worker", "all workers" if the launcher's log does not tell them apart,
    or the name of the file."""

    lines: tuple[str, ...] = ()
    whose: str = ""


def last_words(text: bytes, report: LauncherReport) -> LastWords:
    """The last lines of the worker that failed first, as far as this text shows them."""
    first = report.first
    if first.said:
        return LastWords(first.said[-MAX_LINES:], "the worker")
    before = text[max(0, report.begin - (32 << 10)) : report.begin].decode("utf-8", "replace").splitlines()
    lines = [line for line in before if line.strip() and not _LAUNCHERS_OWN.match(line)]
    own = [bare for line in lines if (bare := _own(line, first)) is not None]
    if own:
        return LastWords(tuple(own[-MAX_LINES:]), "the worker")
    # Lines without a prefix may be its own; those with another worker's are not.
    may_be = [line for line in lines if not _is_prefixed(line)]
    return LastWords(tuple((may_be or lines)[-MAX_LINES:]), "all workers")


def ending_lines(text: bytes) -> tuple[str, ...]:
    """The last lines of a text that are not empty."""
    lines = text[-(16 << 10) :].decode("utf-8", "replace").splitlines()
    return tuple([line for line in lines if line.strip()][-MAX_LINES:])


#: How a shell reports a process that a signal ended: "run.sh: line 3: 29653 Segmentation fault  python train.py".
_SHELL = re.compile(rb"^[^\n:]{1,255}: (?:line [0-9]{1,7}: )?[ ]{0,8}([0-9]{1,10}) (?:[A-Z][a-z]{2,20})", re.MULTILINE)


def told_by_shell(text: bytes) -> tuple[int, ...]:
    """Processes that a signal ended, as a shell reports at the end of a text."""
    return tuple(int(match[1]) for match in _SHELL.finditer(text, max(0, len(text) - 4096)))[-8:]


#: Prefixes that launchers put before a line of a worker: its rank ("[rank1]: ", "[1,1]<stderr>:", "[1] "), and its
#: local rank.
_RANK_PREFIX = re.compile(
    r"^\[(?:rank ?|(?:[A-Za-z0-9_.@-]{1,300},))?([0-9]{1,7})\](?:<std(?:out|err|diag)>)?(?:: ?| (?!\S{0,300}\())"
)
_LOCAL_PREFIX = re.compile(r"^\[default([0-9]{1,5})\]: ?")


def _is_prefixed(line: str) -> bool:
    return any(pattern.match(line) is not None for pattern in (_RANK_PREFIX, _LOCAL_PREFIX))


def _own(line: str, worker: WorkerFailure) -> str | None:
    """A line of this worker without its prefix; None for another line."""
    for pattern, number in ((_RANK_PREFIX, worker.rank), (_LOCAL_PREFIX, worker.local_rank)):
        match = pattern.match(line)
        if match is not None:
            return line[match.end() :] if number is not None and int(match[1]) == number else None
    return None
