"""The daemon's share in keeping output: it holds a read end of every FIFO of its live jobs.

When a rank ends, what it wrote last may still be in its FIFO, and the kernel throws that away with the last
descriptor. The supervisor and the nursery hold one as well; with the daemon's, any two of the three may be killed.
"""

import contextlib
import os

from muster.supervisors.model.states import JOB
from muster.supervisors.output.tee import make_fifo, open_reader
from muster.supervisors.paths import JobPaths


class Holds:
    """Read ends of the FIFOs of one job; never read from."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self._fds: dict[int, int] = {}

    def take(self, ranks: list[int], create: bool) -> None:
        """Opens what is there of these ranks and of the job's own log; `create` for a job that no supervisor has had
        yet, whose FIFOs are made here, so that they are held before anybody writes. Raises OSError, with nothing held,
        where they cannot be made."""
        if self._fds:
            return
        try:
            paths = {JOB: self._paths.job_fifo} | {rank: self._paths.fifo(rank) for rank in ranks}
            for number, path in paths.items():
                if create:
                    make_fifo(path, os.geteuid(), os.getegid())
                with contextlib.suppress(FileNotFoundError):  # drained to its end and put away
                    self._fds[number] = open_reader(path)
        except OSError:
            self.release()
            raise

    def hand_over(self) -> dict[int, int]:
        """What is held, by rank; the caller closes it."""
        held, self._fds = self._fds, {}
        return held

    def release(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])
