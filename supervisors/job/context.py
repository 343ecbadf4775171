"""What all parts of a supervisor share, and how they handle an error of disk or node."""

import contextlib
import os
import sys
import time
from dataclasses import replace

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import FULL
from muster.supervisors.launch import environment
from muster.supervisors.launch.containment import Containment
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind
from muster.supervisors.output.job_output import Output
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.supervision_errors import Exhausted
from muster.supervisors.system.descriptors import lowered_to
from muster.supervisors.system.loop import Loop
from muster.supervisors.system.spare import Spare
from muster.supervisors.wire.link import NurseryLink

#: Descriptors in reserve, for looks at processes and a client at the limit; and seconds until they are taken again.
SPARE, SPARE_AGAIN_S = 8, 30.0


class Refusals:
    """What the disk or the node refuses this supervisor. It says so in the nursery's log, as it belongs in no journal,
    and at the limit of descriptors it makes room with those in reserve: what was refused is tried again."""

    def __init__(self, job_id: str) -> None:
        """To be made before anything else, so that the reserve holds low numbers."""
        self._job_id = job_id
        self.spare = Spare(SPARE, self.say)

    def begin(self, loop: Loop, link: NurseryLink) -> None:
        """From now on the reserve is filled again, and what it does not do for is left to a successor."""
        self._loop, self._link = loop, link
        self.spare.on_exhausted = self._make_way
        loop.later(SPARE_AGAIN_S, self._refill)

    def say(self, text: str) -> None:
        """A line in the nursery's log. Best effort."""
        with contextlib.suppress(OSError):
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            print(f"{now} supervisor {self._job_id}: {text}", file=sys.stderr, flush=True)

    def note(self, error: OSError) -> None:
        """The caller tries it again."""
        if error.errno in FULL:
            self.spare.make_room()
        self.say(f"{error}; trying again")

    def makes_room(self, error: Exception) -> bool:
        """Whether descriptors ran out, and some are free for another try now."""
        if not isinstance(error, OSError) or error.errno not in FULL or not self.spare.make_room():
            return False
        self.say(f"{error}; trying again")
        return True

    def _make_way(self) -> None:
        """For a successor, to which the nursery gives a limit of its own, where somebody has lowered ours, we may not
        raise it, and the reserve does not do. Raises Exhausted."""
        limit = lowered_to()
        if limit is not None and self._link.is_up:
            raise Exhausted(
                f"somebody lowered the limit of open files of this supervisor to {limit}, and it may not raise it: a "
                "successor takes over the job"
            )

    def _refill(self) -> None:
        """Takes the reserve again, if there is room for all of it."""
        if not self.spare.fill():
            self.spare.release()
        self._loop.later(SPARE_AGAIN_S, self._refill)


@dataclass(frozen=True, slots=True)
class JobContext:
    """One job under this supervisor. `containment` is of the present attempt."""

    root: Root
    given: JobSpec
    loop: Loop
    ledger: Ledger
    link: NurseryLink
    output: Output
    containment: Containment
    refusals: Refusals

    @property
    def job(self) -> Job:
        """As the records add up."""
        return self.ledger.job

    @property
    def spec(self) -> JobSpec:
        """With what was found beside the boot file; what was given wins."""
        found = {name: path for name, path in self.job.beside.items() if not getattr(self.given, name)}
        return replace(self.given, **found) if found else self.given  # type: ignore[arg-type]  # both are paths

    @property
    def paths(self) -> JobPaths:
        """The job's files."""
        return self.root.job(self.given.job_id)

    @property
    def nonce(self) -> str:
        """See environment.nonce."""
        return environment.nonce(self.root, self.spec.job_id, self.job)

    def warn(self, text: str) -> None:
        """A warning of the job, once; nothing for an empty text."""
        if text and text not in self.job.warnings:
            self.ledger.owe({"kind": Kind.WARNING, "text": text}, sync=False)

    def open_output_again(self) -> None:
        """The output of a job whose supervisor died. Raises OSError where a FIFO cannot be opened; what could be opened
        is, and another call opens the rest."""
        if self.job.state.final or self.output.closed:
            return
        ranks = self.job.ranks
        owner = self.output.owner(ranks) or (os.geteuid(), os.getegid())
        try:
            self.output.open_job(owner)
            try:
                self.output.open(self.job.services, owner, fresh=False)
            finally:
                self.output.open(ranks, owner, fresh=False)
        finally:
            self.link.hold(self.output.fds())
