"""The explained verdict of an ended job: what its cause is, and what to do. A file of the job, written by the daemon.

The supervisor's verdict is there at once, and knows ranks and exit codes. The explanation follows within seconds; it
also knows the output, the cards and the node (agent/why/explaining.py)."""

from pathlib import Path

import msgspec

from muster.agent.errors import StartupError
from muster.agent.host import state_file

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
    where that is a launcher. `at`: seconds since the epoch."""

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

    def says(self, other: "Explained | None") -> bool:
        """Whether another one says the same, whenever that was."""
        return other is not None and msgspec.structs.replace(other, at=self.at) == self


def read(path: Path) -> Explained | None:
    """None where there is none that can be read: the job is then explained again. Blocks."""
    try:
        return state_file.read(path, Explained, VERSION)
    except (OSError, state_file.Damaged, StartupError):
        return None


def write(path: Path, explained: Explained) -> None:
    """Blocks. Raises OSError."""
    state_file.write(path, explained)
