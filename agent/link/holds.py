"""The daemon's part in protecting output: it holds a read end of every FIFO of its live jobs.

When a rank ends, its last output may still be in its FIFO, and the kernel discards it with the last descriptor.
Supervisor and nursery hold a read end as well; with the daemon's, any two of the three may be killed.
"""

import contextlib
import os

from muster.supervisors.model.job_logs import fifo_of
from muster.supervisors.model.states import JOB
from muster.supervisors.output.tee import make_fifo, open_reader
from muster.supervisors.paths import JobPaths


class Holds:
    """Read ends of the FIFOs of one job; never read from."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self._fds: dict[int, int] = {}

    @property
    def is_taken(self) -> bool:
        """Whether FIFOs are held."""
        return bool(self._fds)

    def take(self, ranks: list[int], create: bool, at: JobPaths | None = None) -> None:
        """Opens the existing FIFOs of these ranks and services, and of the job's own log. `create`: makes the FIFOs of
        a job that had no supervisor yet, so that they are held before any process writes. `at`: where the job's folder
        is at the moment. Raises OSError, with nothing held, if they cannot be made."""
        if self._fds:
            return
        try:
            paths = {number: fifo_of(at or self._paths, number) for number in (JOB, *ranks)}
            for number, path in paths.items():
                if create:
                    make_fifo(path, os.geteuid(), os.getegid())
                with contextlib.suppress(FileNotFoundError):  # drained to its end and removed
                    self._fds[number] = open_reader(path)
        except OSError:
            self.release()
            raise

    def hand_over(self) -> dict[int, int]:
        """Passes the held descriptors to the caller, by rank; the caller closes them."""
        held, self._fds = self._fds, {}
        return held

    def release(self) -> None:
        """Closes the descriptors that are still held."""
        while self._fds:
            os.close(self._fds.popitem()[1])
