"""A stop that the daemon carries out because no supervisor takes it: what the next supervisor must know of it.

It is a small file in the run folder, which has room where the disk of the state folder has none: the daemon writes it
before it signals anything, the supervisor reads it before it judges an end, and the next daemon goes on with it.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.supervisors.model.lifecycle import Job
from muster.supervisors.system import trust

#: Two stops that would send SIGKILL at times no further apart are the same one, said twice; in seconds.
SAME_S = 0.1


@dataclass(slots=True)
class StopOrder:
    """`nonce`: of which job of that name (environment.nonce). `steps`: of the grace, in seconds. `up`: when it began,
    seconds of CLOCK_BOOTTIME. `sent`: the signals that were sent so far."""

    nonce: str
    steps: tuple[float, ...]
    by: str
    reason: str
    up: float
    sent: tuple[str, ...] = ()


def covers(job: Job, order: StopOrder) -> bool:
    """Whether the records of the job say all that the order does: who goes by them need not know it."""
    stop = job.stop
    if job.state.final or stop is None or not job.halted:
        return job.state.final
    sooner = stop.up + sum(stop.steps) <= order.up + sum(order.steps) + SAME_S
    return sooner and (job.terminated or not order.sent)


def write(path: Path, order: StopOrder) -> None:
    """Replaces what was there. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(asdict(order), file)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read(path: Path, nonce: str, begins: bool = False) -> StopOrder | None:
    """None where there is no order for this very job, or none that can be read. `begins`: no more of the nonce is known
    than how it begins."""
    try:
        fields = json.loads(trust.read(path))
        order = StopOrder(**fields | {"steps": tuple(fields["steps"]), "sent": tuple(fields["sent"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return order if order.nonce == nonce or (begins and order.nonce.startswith(nonce)) else None


def remove(path: Path) -> None:
    """It was carried out and recorded. Best effort: one that stays is of a job that has ended."""
    with contextlib.suppress(OSError):
        path.unlink()
