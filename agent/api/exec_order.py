"""Requests of `muster exec`: checks a command in a rank and converts it for the supervisor."""

import json
import math
from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration

from muster.agent import protobuf_times
from muster.agent.config.schema import ExecTable
from muster.agent.errors import InvalidRequest, RankNotRunning
from muster.agent.jobs.entry import Entry, no_such_rank
from muster.supervisors.launch.session_start import MAX_ARGV, MAX_REQUEST, MAX_SIZE
from muster.supervisors.launch.spec_rules import violations
from muster.supervisors.model.spec import Boot, JobSpec, Violation, variable
from muster.supervisors.model.states import State
from muster.v1 import exec_pb2

#: Maximum bytes of a command's variables.
MAX_ENV = 1 << 20
#: Longest time limit of a session and of a single command, and a command's default time limit; in seconds.
MAX_SESSION_S = 365 * 86_400.0
MAX_COMMAND_S = 3600.0
COMMAND_S = 60.0

_Asked = exec_pb2.ExecStart | exec_pb2.RunCommandRequest


def start(asked: exec_pb2.ExecStart, entry: Entry, settings: ExecTable, by: str) -> bytes:
    """The order for a session. Raises InvalidRequest, RankNotRunning."""
    found = _problems(asked, entry)
    if asked.tty and not asked.stdin:
        found.append(Violation("tty", "needs stdin: set stdin, too"))
    found += window_problems(asked.window, "window")
    limit = None
    if asked.HasField("time_limit"):
        limit = _time(asked.time_limit, MAX_SESSION_S, found)
    more = {
        "tty": asked.tty,
        "stdin": asked.stdin,
        "rows": asked.window.rows,
        "columns": asked.window.columns,
        "detached": asked.detached,
        "time_limit_s": limit,
        "abandoned_s": settings.abandoned_s,
    }
    return _order(asked, entry, settings, by, more, found)


def command(asked: exec_pb2.RunCommandRequest, entry: Entry, settings: ExecTable, by: str) -> tuple[bytes, float]:
    """The order for a single command, which ends when its client leaves, and its time limit. Raises InvalidRequest,
    RankNotRunning."""
    found = _problems(asked, entry)
    if len(asked.input) > 1 << 20:
        found.append(Violation("input", f"{len(asked.input)} bytes: at most {1 << 20} are allowed; use Exec for more"))
    if asked.output_limit > 1 << 20:
        found.append(Violation("output_limit", f"{asked.output_limit}: must be 0 to {1 << 20}; use Exec for more"))
    limit = _time(asked.time_limit, MAX_COMMAND_S, found) if asked.HasField("time_limit") else COMMAND_S
    more = {
        "tty": False,
        "stdin": bool(asked.input),
        "rows": 0,
        "columns": 0,
        "detached": False,
        "time_limit_s": None,
        "abandoned_s": 0.0,
    }
    return _order(asked, entry, settings, by, more, found), limit


def window_problems(window: exec_pb2.WindowSize, name: str) -> list[Violation]:
    """The faults of a terminal size: each dimension has 16 bits."""
    sizes = (("rows", window.rows), ("columns", window.columns))
    return [Violation(f"{name}.{which}", f"{n}: must be 0 to {MAX_SIZE}") for which, n in sizes if n > MAX_SIZE]


def _problems(asked: _Asked, entry: Entry) -> list[Violation]:
    # The same rule and message as for a job's own command.
    like = JobSpec("exec", tuple(asked.argv), env=dict(asked.env), workdir=asked.workdir)
    found = violations(like, lambda field: "argv" if field == "command" else field)
    found += [
        Violation(variable(name), "is reserved: muster marks the processes of a job with it")
        for name in asked.env
        if name.startswith("MUSTER_")
    ]
    for name, size, most in (
        ("argv", sum(len(word.encode()) + 1 for word in asked.argv), MAX_ARGV),
        ("env", sum(len(f"{key}={value}".encode()) + 1 for key, value in asked.env.items()), MAX_ENV),
    ):
        if size > most:
            found.append(Violation(name, f"has {size} bytes: at most {most} are allowed"))
    ranks = [rank.rank for rank in entry.job.ranks]
    # If a launcher starts the ranks, the daemon knows only the launcher: the supervisor finds the rank.
    launched = entry.spec.boot != Boot.RANKS
    if asked.HasField("rank") and ranks and asked.rank not in ranks and not launched:
        found.append(no_such_rank("rank", asked.rank, ranks))
    return found


def _time(asked: Duration, most: float, found: list[Violation]) -> float:
    value = protobuf_times.seconds(asked, "time_limit", found)
    if not 0 < value <= most or not math.isfinite(value):
        found.append(Violation("time_limit", f"{value:g} s: must be above 0 and at most {most:g} s"))
    return value


def _order(
    asked: _Asked, entry: Entry, settings: ExecTable, by: str, more: Mapping[str, object], found: list[Violation]
) -> bytes:
    body = {
        **more,
        "rank": asked.rank if asked.HasField("rank") else None,
        "argv": list(asked.argv),
        "env": dict(asked.env),
        "workdir": asked.workdir,
        "grace_s": settings.grace_s,
        "max_sessions": settings.max_sessions,
        "by": by,
    }
    encoded = json.dumps(body, ensure_ascii=False).encode()
    if not found and len(encoded) > MAX_REQUEST:
        found.append(Violation("argv", f"with env has {len(encoded)} bytes as JSON: at most {MAX_REQUEST} are allowed"))
    if found:
        raise InvalidRequest(found)
    if entry.job.state != State.RUNNING:
        raise RankNotRunning.of_job(entry.job_id, entry.job.state)
    return encoded
