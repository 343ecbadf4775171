"""A stop that is not in the journal, and what the next supervisor must know about it. Either the daemon carries it out
because no supervisor does, or a supervisor does while the journal takes no record.

The order is a small file in the run folder, which has room even if the disk of the state folder is full. muster writes
it before it sends a signal. The supervisor reads it after it has seen which ranks ended, and before it judges their
ends: so it knows every signal that a rank was sent. The next daemon continues the stop.
"""

import contextlib
import errno
import json
from dataclasses import asdict
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import FULL
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.states import Kind, StopCause
from muster.supervisors.system import trust
from muster.supervisors.system.atomic_file import replace_file

#: Two stops that would send SIGKILL at times no further apart are the same one, said twice; in seconds.
SAME_S = 0.1


@dataclass(slots=True)
class StopOrder:
    """`nonce`: of which job of that name (environment.nonce). `steps`: of the grace, in seconds. `up`: when it began,
    seconds of CLOCK_BOOTTIME. `sent`: the signals that were sent so far. `cause`: REQUESTED, or that of the stop in the
    journal that the daemon goes on with, in the place of a supervisor that is late; `up` is then its `since`."""

    nonce: str
    steps: tuple[float, ...]
    by: str
    reason: str
    up: float
    sent: tuple[str, ...] = ()
    cause: str = StopCause.REQUESTED

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked for it; else it only tells what was sent."""
        return self.cause == StopCause.REQUESTED


def covers(job: Job, order: StopOrder) -> bool:
    """Whether the records of the job say all that the order does: who goes by them need not know it."""
    return job.state.final or (_is_under_way(job, order) and not unrecorded(job, order.sent))


def due(job: Job, order: StopOrder) -> list[Record]:
    """What the records of the job do not say of an order."""
    if job.state.final or job.concluded is not None:
        return []
    records = list[Record]()
    if order.is_asked and not _is_under_way(job, order):
        stop: Record = {"kind": Kind.STOPPING, "cause": StopCause.REQUESTED, "by": order.by, "reason": order.reason}
        records.append(stop | {"steps": list(order.steps), "up": order.up})
    elif not order.is_asked and (job.stop is None or job.stop.since != order.up):
        return []  # it is of an attempt before this one
    names = unrecorded(job, order.sent)
    return records + [{"kind": Kind.ESCALATED, "signal": name, "processes": 0} for name in names]


def _is_under_way(job: Job, order: StopOrder) -> bool:
    stop = job.stop
    if stop is None or not job.halted:
        return False
    return stop.up + sum(stop.steps) <= order.up + sum(order.steps) + SAME_S


def unrecorded(job: Job, sent: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the signals that were sent to the processes of a stop of which the records of the job do not tell."""
    return tuple(name for name in sent if not (job.killed if name == "SIGKILL" else job.terminated))


def write(path: Path, order: StopOrder) -> None:
    """Replaces an earlier order. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    replace_file(path, json.dumps(asdict(order)).encode())


def read(path: Path, nonce: str, begins: bool = False) -> StopOrder | None:
    """None where there is no order for this very job, or none that can be read. `begins`: no more of the nonce is known
    than how it begins. Raises OSError where there is no descriptor or memory to read it with: another try may work."""
    try:
        fields = json.loads(trust.read(path))
        order = StopOrder(**fields | {"steps": tuple(fields["steps"]), "sent": tuple(fields["sent"])})
    except OSError as error:
        if error.errno in (*FULL, errno.ENOMEM):
            raise
        return None
    except (ValueError, TypeError, KeyError):
        return None
    return order if order.nonce == nonce or (begins and order.nonce.startswith(nonce)) else None


def remove(path: Path) -> None:
    """The order was carried out and recorded. Best effort: an order that stays belongs to an ended job."""
    with contextlib.suppress(OSError):
        path.unlink()
