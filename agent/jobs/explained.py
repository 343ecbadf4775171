"""The explained verdict of an ended job: its cause, and what to do. A file of the job, written by the daemon.

The supervisor's verdict exists at once, and knows ranks and exit codes. The explanation follows within seconds; it
also uses the output, the cards and the node (agent/why/explaining.py)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from muster.agent.errors import StartupError
from muster.agent.host import state_file
from muster.supervisors.model.lifecycle import Attempt, Verdict

VERSION = 1


class Worker(msgspec.Struct, frozen=True):
    """The worker of a launcher that failed first, as `agent/why/launchers.py` has it; `launcher_rank`: the rank of the
    job that the launcher is. `status`: "rank 1 exited with code 9"."""

    launcher: str
    launcher_rank: int
    status: str
    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    code: int | None = None


class Explained(msgspec.Struct, frozen=True):
    """`recommendation` and `reason` replace those of the supervisor's verdict. `cause` is a sentence; `kind`,
    `confidence` and `signature` are those of the cause (agent/why/causes/found.py); `rank` wrote it. `worker`:
    where that is a launcher. `first_failed`: the rank that is the cause, if it is not the one that the supervisor saw
    fail first, and its `last_lines`. `at`: seconds since the epoch. `past`: as `first_failed`, by the number of an
    earlier attempt. `was`: what the explanation before this one recommended."""

    recommendation: str
    reason: str
    cause: str = ""
    kind: str = ""
    confidence: str = ""
    signature: str = ""
    rank: int | None = None
    at: float = 0.0
    version: int = VERSION
    worker: Worker | None = None
    first_failed: int | None = None
    last_lines: tuple[str, ...] = ()
    past: dict[int, int] = {}  # msgspec copies it
    was: str = ""

    def says(self, other: "Explained | None") -> bool:
        """Whether the other explanation is equal except for its time and what was before it."""
        return other is not None and msgspec.structs.replace(other, at=self.at, was=self.was) == self


def applied(early: Verdict, found: Explained | None) -> Verdict:
    """The verdict that every reader shows: the supervisor's, corrected by the explanation. The exit code stays."""
    if found is None:
        return early
    told = replace(early, recommendation=found.recommendation, recommendation_reason=found.reason)
    if (first := found.first_failed) is None:
        return told
    return replace(
        told,
        summary=_corrected(early.summary, first),
        first_failed=first,
        last_lines=found.last_lines,
        victims=tuple(rank for rank in early.victims if rank != first),
    )


def applied_to_attempt(early: Attempt, first_failed: Mapping[int, int]) -> Attempt:
    """An earlier attempt as every reader shows it; `first_failed`: as `Explained.past`."""
    if (first := first_failed.get(early.number)) is None:
        return early
    return replace(early, summary=_corrected(early.summary, first), first_failed=first)


def _corrected(summary: str, first: int) -> str:
    return f"{summary}; the cause is in rank {first}"


def read(path: Path) -> Explained | None:
    """Reads the explanation. None if it is missing or unreadable: the job is then explained again. Blocks."""
    try:
        return state_file.read(path, Explained, VERSION)
    except (OSError, state_file.Damaged, StartupError):
        return None


def write(path: Path, explained: Explained) -> None:
    """Blocks. Raises OSError."""
    state_file.write(path, explained)
