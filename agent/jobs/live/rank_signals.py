"""Signals to the ranks of a job, of which the job is not to die: to have a checkpoint saved, say.

SIGUSR1 ends a process that does not handle it. A rank may be a shell script or torchrun, which mostly do not, with the
training below it. So a signal goes to the first process on each line of descent that handles it; what forked workers
inherited from that process is left alone.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence

from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.lifecycle import Rank

#: Those that end no process that does not handle them (signal(7)).
_HARMLESS = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
_STOPS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
#: Whose a process is, and the signals that it ignores and handles, from /proc/PID/status (proc(5)).
_STATUS = re.compile(r"^Uid:\s*(\d+).*^SigIgn:\s*([0-9a-f]+).*^SigCgt:\s*([0-9a-f]+)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Signalled:
    """Of one rank: the processes that got it; `why_not`, where none did."""

    rank: int
    pids: tuple[int, ...] = ()
    why_not: str = ""


def number_of(text: str) -> int:
    """Of a signal by name, with or without SIG, or number. Raises ValueError."""
    word = text.strip().upper()
    with_name = word if word.startswith("SIG") else f"SIG{word}"
    if with_name in signal.Signals.__members__:
        return signal.Signals[with_name].value
    if word.isascii() and word.isdigit() and int(word) in signal.valid_signals():
        return int(word)
    raise ValueError(f"{text!r} is not a signal: USR1, SIGUSR1 and 10 are")


def send(ranks: Sequence[Rank], number: int, *, force: bool) -> list[Signalled]:
    """Sends it. `force`: to the main process of a rank where none handles it, too. Blocks for as long as a look at all
    processes of the node takes. Raises OSError where there is no descriptor to be had."""
    stats = process.all_stats()
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    return [_to_rank(rank, number, force, stats, children) for rank in ranks]


def _to_rank(
    rank: Rank, number: int, force: bool, stats: Mapping[int, process.Stat], children: Mapping[int, Sequence[int]]
) -> Signalled:
    main = stats.get(rank.pid)
    if rank.pid == 0 or rank.outcome is not None or main is None or main.start != rank.start or main.ended:
        return Signalled(rank.rank, why_not="not running")
    status = _status(rank.pid)
    handling = list(_handling(rank.pid, number, status.uid, children))
    if not handling and (force or number in _HARMLESS):
        handling = [rank.pid]
    if handling:
        sent = tuple(pid for pid in handling if process.send(pid, stats[pid].start, number))
        return Signalled(rank.rank, sent, "" if sent else "just ended")
    if status.ignores(number):
        return Signalled(rank.rank, why_not="ignored there")
    what = "stop" if number in _STOPS else "end"
    return Signalled(rank.rank, why_not=f"no process there has a handler, and the signal would {what} it")


def _handling(pid: int, number: int, uid: int, children: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """The first on each line of descent, all of this user: a program that runs as another one, as by sudo, is not to
    be had by way of a job."""
    seen, waiting = {pid}, [pid]
    while waiting:
        one = waiting.pop(0)
        status = _status(one)
        if status.uid == uid and status.handles(number):
            yield one
            continue
        more = [child for child in children.get(one, ()) if child not in seen]
        seen.update(more)
        waiting += more


@dataclass(frozen=True, slots=True)
class _Status:
    """What /proc/PID/status says of signals, as masks; without `uid` of a process that has gone, or is hidden."""

    uid: int = -1
    ignored: int = 0
    caught: int = 0

    def handles(self, number: int) -> bool:
        """Whether it has a handler for it."""
        return bool(self.caught >> (number - 1) & 1)

    def ignores(self, number: int) -> bool:
        """Whether nothing comes of it."""
        return bool(self.ignored >> (number - 1) & 1)


def _status(pid: int) -> _Status:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = _STATUS.search(file.read())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return _Status()
    return _Status(int(found[1]), int(found[2], 16), int(found[3], 16)) if found else _Status()
