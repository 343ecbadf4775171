"""The journal in the hands of the supervisor: what is committed moves the job, and is told to whoever watches."""

import time
from collections.abc import Callable

from supervisors.journal import Contents, Record, Writer
from supervisors.lifecycle import Job
from supervisors.paths import JobPaths
from supervisors.replay import apply, refuse_illegal, replay


class Ledger:
    """The job as its records add up to, and the only way to add one. The caller holds the job's lock."""

    def __init__(self, paths: JobPaths, contents: Contents, publish: Callable[[int], None]) -> None:
        """`publish` is called with the size of the journal after each commit. Raises OSError."""
        self.job: Job = replay(contents.records)
        self._writer = Writer(paths.journal, contents)
        self._publish = publish

    def reserve(self, ranks: int) -> None:
        """Sets space for the records of another attempt aside. Raises OSError where the disk has none."""
        self._writer.reserve(ranks)

    def commit(self, *records: Record, sync: bool = True, tell: bool = True) -> None:
        """Appends to the journal, then moves the job, then tells the watchers. Raises OSError with nothing changed.

        `sync`: onto the disk, for what others may rely on. `tell`: at once, else with the next record; each telling
        wakes the daemon up, which costs more than the record.
        """
        refuse_illegal(self.job, records[0])  # a defect of ours is not to get into the journal
        now = time.time()
        number = self._writer.next_number
        stamped = [{"t": now} | record for record in records]
        self._writer.append(stamped, sync=sync)
        for i, record in enumerate(stamped):
            apply(self.job, {"n": number + i} | record)
        if tell:
            self._publish(self._writer.size)
