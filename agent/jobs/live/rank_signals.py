"""Signals to the ranks of a job, of which the job is not to die: to have a checkpoint saved, say.

SIGUSR1 ends a process that does not handle it. So it goes to the main process of a rank that has a handler for it, and
behind a shell or a launcher, which mostly have none, to the first process that has one. Of what the kernel tells, a
handler is no proof that a process survives: a shell with a trap for EXIT catches every signal, cleans up, and ends.
"""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence

from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.supervision_errors import explain

#: Those that end no process that does not handle them (signal(7)).
_HARMLESS = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
_STOPS = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
#: Who catches all of these handles none of them in particular: bash with a trap for EXIT, a Go program.
_ALL = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
#: Names of programs that wait for what they run, and do not tell it of a signal.
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "busybox", "zsh", "ksh", "mksh", "fish"})
#: Whose a process is, and the signals that it blocks (that is of its first thread), ignores and handles, from
#: /proc/PID/status (proc(5)).
_STATUS = re.compile(
    r"^Uid:\s*(\d+).*^SigBlk:\s*([0-9a-f]+).*^SigIgn:\s*([0-9a-f]+).*^SigCgt:\s*([0-9a-f]+)", re.MULTILINE | re.DOTALL
)


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


def send(ranks: Sequence[Rank], number: int, *, force: bool, uid: int | None = None) -> list[Signalled]:
    """Sends it. `force`: to the main process of a rank where none handles it, too. `uid`: only to processes of this
    user. Blocks for as long as a look at all processes of the node takes. Raises OSError if that look fails; then
    nobody got it."""
    stats = process.all_stats()
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    look = _Look(number, force, uid, stats, children)
    sent = []
    for rank in ranks:
        try:
            sent.append(look.to_rank(rank))
        except OSError as error:  # others may have got it
            sent.append(Signalled(rank.rank, why_not=explain(error)))
    return sent


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the processes, for one signal."""

    number: int
    force: bool
    uid: int | None
    stats: Mapping[int, process.Stat]
    children: Mapping[int, Sequence[int]]

    def to_rank(self, rank: Rank) -> Signalled:
        """Raises OSError where there is no descriptor to be had."""
        main = self.stats.get(rank.pid)
        status = _status(rank.pid)
        if rank.pid == 0 or rank.outcome is not None or main is None or main.start != rank.start or main.ended:
            return Signalled(rank.rank, why_not="not running")
        if status is None:
            return Signalled(rank.rank, why_not="just ended")
        if rank.of_mpi:
            return Signalled(rank.rank, why_not="an MPI job: its ranks run below mpirun, which muster does not signal")
        handling = list(self._handling(rank))
        if not handling and (self.force or self.number in _HARMLESS) and self._is_theirs(status):
            handling = [rank.pid]
        if handling:
            sent = tuple(pid for pid in handling if process.send(pid, self.stats[pid].start, self.number))
            return Signalled(rank.rank, sent, "" if sent else "just ended, or not to be signalled by musterd")
        return Signalled(rank.rank, why_not=self._why_not(status))

    def _why_not(self, status: "_Status") -> str:
        if not self._is_theirs(status):
            return "its process is another user's"
        if status.catches_all:
            return "it catches every signal, as a shell with a trap for EXIT does, and may end by it"
        if status.ignores(self.number):
            return "ignored there"
        if status.blocks(self.number):
            return "its main thread blocks it: another one may wait for it, or end by it"
        return f"no process there has a handler, and the signal would {'stop' if self.number in _STOPS else 'end'} it"

    def _is_theirs(self, status: "_Status") -> bool:
        return self.uid is None or status.uid == self.uid

    def _handling(self, rank: Rank) -> Iterator[int]:
        """The main process, or behind shells and launchers the first on each line of descent."""
        seen, waiting = {rank.pid}, [rank.pid]
        while waiting:
            one = waiting.pop(0)
            status = _status(one)
            if status is None:
                continue
            if self._is_theirs(status) and status.handles(self.number) and not status.catches_all:
                yield one
            elif self.stats[one].comm in _SHELLS or (one == rank.pid and rank.launches):
                more = [child for child in self.children.get(one, ()) if child not in seen]
                seen.update(more)
                waiting += more


@dataclass(frozen=True, slots=True)
class _Status:
    """What /proc/PID/status says of signals, as masks."""

    uid: int
    blocked: int
    ignored: int
    caught: int

    @property
    def catches_all(self) -> bool:
        """It has a handler for every signal, so that one says nothing."""
        return all(self.handles(number) for number in _ALL)

    def handles(self, number: int) -> bool:
        """Whether it has a handler for it."""
        return bool(self.caught >> (number - 1) & 1)

    def ignores(self, number: int) -> bool:
        """Whether nothing comes of it."""
        return bool(self.ignored >> (number - 1) & 1)

    def blocks(self, number: int) -> bool:
        """Whether its first thread does not get it."""
        return bool(self.blocked >> (number - 1) & 1)


def _status(pid: int) -> _Status | None:
    """None where it has gone, or is hidden. Raises OSError where there is no descriptor to be had."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = _STATUS.search(file.read())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return _Status(int(found[1]), *(int(mask, 16) for mask in found.groups()[1:])) if found else None
