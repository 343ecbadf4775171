"""The supervisor's writer of the journal: a committed record changes the job and goes to all watchers."""

import time
from collections.abc import Callable

from muster.supervisors.model.journal import Contents, Record, Writer
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.replay import apply, refuse_illegal, replay
from muster.supervisors.paths import JobPaths


class Ledger:
    """The job as its records add up to, and the only way to add one. The caller holds the job's lock.

    `commit` is for what others rely on: a record is on disk, or nothing has happened. `owe` is for what has happened
    whether or not it can be written: while the disk takes no record the job moves all the same, watchers are sent the
    records that are owed, and the next commit writes them first.
    """

    def __init__(
        self,
        paths: JobPaths,
        contents: Contents,
        publish: Callable[[int, list[Record], int, list[Record]], None],
        job: Job | None = None,
    ) -> None:
        """`publish` is called after each change with the size of the journal, the records that are owed to it, the
        size at the time before and the records that were written since. `job`: what the records of `contents` add up
        to, if the caller knows that."""
        self.job: Job = replay(contents.records) if job is None else job
        self._path = paths.journal
        self.writer = Writer(paths.journal, contents)
        self._publish = publish
        self._owed: list[Record] = []
        #: Written since the last telling, behind this size.
        self._told_to, self._written = self.writer.size, list[Record]()
        #: Why the journal takes no record; None while it does.
        self.trouble: OSError | None = None

    @property
    def owes(self) -> bool:
        """Whether a record is not on disk yet."""
        return bool(self._owed)

    @property
    def refusal(self) -> str:
        """Why the journal takes no record, with its path; empty while it does."""
        return "" if self.trouble is None else f"{self._path}: {self.trouble.strerror or self.trouble}"

    def reserve(self, ranks: int) -> None:
        """Sets space for the records of another attempt aside. Raises OSError where the disk has none."""
        self.writer.reserve(ranks)

    def commit(self, *records: Record, sync: bool = True, tell: bool = True) -> None:
        """Appends to the journal, then moves the job, then tells the watchers. Raises OSError with nothing changed.

        `sync`: onto the disk, for what others may rely on. `tell`: at once, else with the next record; each telling
        wakes the daemon up, which costs more than the record.
        """
        refuse_illegal(self.job, records[0])  # a defect of ours is not to get into the journal
        now = time.time()
        self._write([*self._owed, *({"t": now} | record for record in records)], sync)
        self._apply([{"t": now} | record for record in records])
        if tell:
            self._tell()

    def owe(self, *records: Record, sync: bool = True, tell: bool = True) -> None:
        """As `commit`, except that records which the journal does not take now are written later, in this order."""
        try:
            self.commit(*records, sync=sync, tell=tell)
        except OSError:
            now = time.time()
            stamped = [{"t": now} | record for record in records]
            self._owed += stamped
            self._apply(stamped)
            self._tell()

    def settle(self) -> None:
        """Writes what is owed. Raises OSError where the journal still takes no record."""
        if self._owed:
            self._write(self._owed, sync=True)
            self._tell()

    def _write(self, records: list[Record], sync: bool) -> None:
        owed, first = bool(self._owed), self.writer.next_number
        try:
            self.writer.append(records, sync=sync or owed)
        except OSError as error:
            self.trouble = error
            raise
        self._written += [{"n": first + i} | record for i, record in enumerate(records)]
        self._owed, self.trouble = [], None

    def _apply(self, records: list[Record]) -> None:
        number = self.writer.next_number + len(self._owed) - len(records)
        for i, record in enumerate(records):
            apply(self.job, {"n": number + i} | record)

    def _tell(self) -> None:
        first, before, written = self.writer.next_number, self._told_to, self._written
        self._told_to, self._written = self.writer.size, []
        owed = [{"n": first + i} | record for i, record in enumerate(self._owed)]
        self._publish(self.writer.size, owed, before, written)
