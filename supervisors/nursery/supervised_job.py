"""One job that a nursery tends, and what the nursery logs about it."""

import contextlib
import os
import socket
import sys
import time
from dataclasses import field
from pathlib import Path

from muster.probes.kernel import endings, process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.wire import messages
from muster.supervisors.wire.control import ControlClient


@dataclass(slots=True)
class SupervisedJob:
    """A job that is tended. `own`: the supervisor is our child; else another nursery forked it."""

    job_id: str
    pid: int
    pidfd: int
    own: bool
    started: float
    sock: socket.socket | None = None
    ready: bool = False
    #: No daemon has tended it yet: one is about to record it, and its supervisor waits for that.
    expected: bool = False
    failures: int = 0
    #: How often its successor could not be forked.
    refused: int = 0
    done: bool = False
    ranks: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    #: Ranks whose ends are in the journal: their parent may reap them.
    recorded: set[int] = field(default_factory=set)
    holds: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    short: bool = False
    #: Why the supervisor before this one died, and what it said of that.
    error: str = ""
    death: messages.Message | None = None
    #: It has no supervisor, and gets none from us (`retire`).
    left: bool = False
    waiting: list[ControlClient] = field(default_factory=list)


def how(code: int | None) -> str:
    """`code`: as `os.waitstatus_to_exitcode` gives it; None: another nursery's."""
    return "died" if code is None else endings.describe_code(code)


def children_of_ours() -> list[int]:
    """Raises OSError."""
    me = os.getpid()
    try:
        return [int(word) for word in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [stat.pid for stat in process.all_stats().values() if stat.ppid == me]


def say(text: object) -> None:
    """Into the nursery's log."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} nursery: {text}", file=sys.stderr, flush=True)
