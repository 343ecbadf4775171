"""Exit codes, and the errors that end a command with one."""

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from muster.agent.host import end_signals

if TYPE_CHECKING:
    from muster.supervisors.model.spec import Violation


class Exit(enum.IntEnum):
    """Exit codes of `muster`. Otherwise `run` and `wait` exit with the job's own code."""

    FAILURE = 1
    USAGE = 2
    NO_SUCH_JOB = 3
    NO_DAEMON = 4
    REFUSED = 5
    TIMEOUT = 124
    MUSTER_FAILED = 125
    INTERRUPTED = 130
    PIPE_CLOSED = 141


#: Exit codes as docs/reference/commands.md shows them.
MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "0": "done",
        "1": "failure",
        "2": "wrong usage, or a wrong spec: one line per field",
        "3": "no such job",
        "4": "no daemon answers",
        "5": "refused: a job holds a card, the node is drained or unhealthy, the id is in use, the job has not "
        "ended, or a limit is reached",
        "124": "`run`, `wait`: the job's running time was over (`--max-runtime`); `wait --timeout`: timeout",
        "125": "`run`, `wait`, `exec`: muster itself failed after the job existed, or the outcome is lost",
        "126, 127": "`run`, `wait`, `exec`: the command is not executable, was not found",
        "128+n": "`run`, `wait`: signal n ended the job; `exec`: signal n ended the command",
        "130": "the user interrupted the command",
        "141": "the reader of the command's output has exited",
        "others": "`run`, `wait`: the exit code of the job; of several ranks, that of the first failed rank. A job may "
        "itself exit with 2 to 5: stderr and `muster wait -o json` show which it was. `check` exits with 0 OK, 1 WARN, "
        "2 CRITICAL, 3 UNKNOWN",
    }
)
#: gRPC status -> exit code; a status that is not listed is a plain failure.
_BY_STATUS = {
    "INVALID_ARGUMENT": Exit.USAGE,
    "NOT_FOUND": Exit.NO_SUCH_JOB,
    "UNAVAILABLE": Exit.NO_DAEMON,
    "ALREADY_EXISTS": Exit.REFUSED,
    "FAILED_PRECONDITION": Exit.REFUSED,
    "RESOURCE_EXHAUSTED": Exit.REFUSED,
    "PERMISSION_DENIED": Exit.REFUSED,
    "UNAUTHENTICATED": Exit.REFUSED,
}


class CommandFailed(Exception):
    """Raised to end the command with `exit_code` after printing `message`, each line with the prefix `muster: `."""

    def __init__(self, message: str, exit_code: int = Exit.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = int(exit_code)


class CallFailed(CommandFailed):
    """Raised when the daemon answered a call with an error, or did not answer.

    `status` is the name of the gRPC status, `reason` the stable reason of the daemon's ErrorInfo ("" when there is
    none: then the status comes from the connection), `retry_after` in seconds, None when another try makes no sense,
    `facts` what else it tells programs.
    """

    def __init__(
        self,
        status: str,
        message: str,
        reason: str = "",
        retry_after: float | None = None,
        facts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message, _BY_STATUS.get(status, Exit.FAILURE))
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.facts = facts
        if reason == "SUPERVISOR_UNREACHABLE":
            self.exit_code = int(Exit.FAILURE)  # the daemon answered

    @property
    def transient(self) -> bool:
        """The connection broke, or the daemon starts or ends: the same call may succeed in a moment."""
        from muster.client import retries  # of a failed call alone: it brings gRPC along

        return retries.broke(self.status, self.reason, self.message)


class StdoutFailed(CommandFailed):
    """Raised when stdout cannot be written: its reader exited (exit code 141, as by SIGPIPE), or its disk is full."""


class BadSpec(CommandFailed):
    """Raised when a spec breaks the rules: one line per field, exit code 2."""

    def __init__(self, violations: "Sequence[Violation]") -> None:
        super().__init__("\n".join(f"{v.field}: {v.description}" for v in violations), Exit.USAGE)


class NoDaemon(CommandFailed):
    """Raised when no daemon answers at its address. `why` gives the reason, which decides what a caller may do."""

    def __init__(self, message: str, why: "Why") -> None:
        super().__init__(message, Exit.NO_DAEMON)
        self.why = why


def not_started(number: int) -> CommandFailed:
    """The error for a job that a signal stopped before it existed."""
    return CommandFailed(f"{end_signals.name(number)}: stopped before the job started", 128 + number)


class Why(enum.Enum):
    """Why there is no daemon."""

    ABSENT = enum.auto()  # no socket exists
    REFUSED = enum.auto()  # a socket without a listener: a daemon ran there, and may return in a moment
    FORBIDDEN = enum.auto()  # a daemon may run, but this user may not connect
    OTHER = enum.auto()
