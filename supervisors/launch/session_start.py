"""The request for a session, and the rank beside which its command is spawned."""

import contextlib
import json
import math
import os
from typing import Any, Self

from muster.probes.kernel import marks, process
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import RANK_NUMBERS
from muster.probes.kernel.process import Stat
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot
from muster.supervisors.model.spec_fields import MAX_STRING
from muster.supervisors.model.states import State
from muster.supervisors.supervision_errors import SupervisionError

#: Most bytes of a request, and of its command with the arguments.
MAX_REQUEST, MAX_ARGV = 3 << 19, 1 << 20
#: Most rows, and most columns, of a terminal: each has 16 bits.
MAX_SIZE = 65535


class SessionRefused(SupervisionError):
    """Raised when a session is not begun, or cannot be had. `reason`: a word for programs. `limit`: the number of
    sessions that the job may have, where that is why."""

    def __init__(self, reason: str, text: str, limit: int | None = None) -> None:
        super().__init__(text)
        self.reason, self.limit = reason, limit


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A command to run beside a rank (None: the first of this node); times are in seconds.

    `env` comes over the rank's, `workdir` in the place of its own unless it is empty. `abandoned_s`: it is ended when
    nobody was attached for so long; `grace_s`: from the first signal to SIGKILL; `by`: the caller.
    """

    argv: tuple[str, ...]
    rank: int | None = None
    env: dict[str, str] | None = None
    workdir: str = ""
    tty: bool = False
    stdin: bool = False
    rows: int = 0
    columns: int = 0
    detached: bool = False
    time_limit_s: float | None = None
    abandoned_s: float = 600.0
    grace_s: float = 5.0
    max_sessions: int = 64
    by: str = ""

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Raises SessionRefused."""
        try:
            raw: dict[str, Any] = json.loads(body)
            raw["argv"] = tuple(raw["argv"])
            request = cls(**{name: value for name, value in raw.items() if name in cls.__slots__})
            wrong = request._wrong()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            wrong = f"the request is invalid: {error}"
        if wrong:
            raise SessionRefused("INVALID", wrong)
        return request

    def _wrong(self) -> str:
        """Raises TypeError, ValueError or AttributeError for what is of another type."""
        env = self.env or {}
        words = [*self.argv, *(f"{name}={value}" for name, value in env.items()), self.workdir]
        sizes = [len(os.fsencode(word)) for word in words]
        seconds = [s for s in (self.time_limit_s, self.abandoned_s, self.grace_s) if s is not None]
        if not self.argv or not self.argv[0]:
            return "the command is empty"
        if any("\0" in word for word in words):
            return "the command, the environment or workdir contains a NUL"
        if any(not name or "=" in name or not isinstance(value, str) for name, value in env.items()):
            return "a variable has no name, has = in its name, or has a value that is not text"
        if max(sizes) >= MAX_STRING or sum(sizes[: len(self.argv)]) > MAX_ARGV:
            return f"the command has more than {MAX_ARGV} bytes, or an argument has {MAX_STRING} bytes or more"
        if not all(math.isfinite(s) and s >= 0 for s in seconds):
            return "a time limit must be a number of seconds, 0 or more"
        if not all(type(n) is int and 0 <= n <= MAX_SIZE for n in (self.rows, self.columns)):
            return f"the window has {self.rows} rows and {self.columns} columns: each must be 0 to {MAX_SIZE}"
        if self.rank is not None and type(self.rank) is not int:
            return "rank must be a number"
        if type(self.max_sessions) is not int or not isinstance(self.by, str):
            return "max_sessions must be a number, by a text"
        return ""


def place(job: Job, boot: str, wanted: int | None, members: list[Stat]) -> tuple[int, Rank, dict[str, str] | None]:
    """The number of the rank, what muster started that is it or makes it, and, of a rank that a launcher made, its
    environment. `members`: the job's processes, where a launcher makes the ranks.

    Raises SessionRefused where there is no such rank that runs.
    """
    if job.state is not State.RUNNING:
        raise SessionRefused("RANK_NOT_RUNNING", f"the job is {job.state}: commands run only in a RUNNING job")
    if boot != Boot.RANKS:
        made = _made_by_launcher(wanted, members)
        if made is not None:
            return made[0], job.ranks[0], made[1]
    rank = next((rank for rank in job.ranks if wanted in (None, rank.rank)), None)
    if rank is None:
        numbers = f"{job.ranks[0].rank} to {job.ranks[-1].rank}" if job.ranks else "none"
        there = f"of this node are {numbers}" if boot == Boot.RANKS else "that the launcher made are others"
        raise SessionRefused("RANK_NOT_RUNNING", f"rank {wanted} does not run: the ranks {there}")
    if rank.outcome is not None:
        raise SessionRefused("RANK_NOT_RUNNING", f"rank {rank.rank} has ended")
    return rank.rank, rank, None


def _made_by_launcher(wanted: int | None, members: list[Stat]) -> tuple[int, dict[str, str]] | None:
    """The rank's number and environment. Its children have the number as well: the oldest process is the rank."""
    found: list[tuple[int, int, dict[str, str]]] = []
    for stat in members:
        env = read_environ(stat.pid)
        text = next((env[name] for name in RANK_NUMBERS if name in env), "")
        if text.isascii() and text.isdigit() and marks.SESSION not in env and wanted in (None, int(text)):
            found.append((int(text), stat.start, env))
    if not found:
        return None
    number, _, env = min(found, key=lambda one: one[:2])
    return number, env


def read_environ(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it cannot be read."""
    with contextlib.suppress(OSError):
        entries = (os.fsdecode(entry).partition("=") for entry in process.environ(pid))
        return {name: value for name, _, value in entries if name}
    return {}
