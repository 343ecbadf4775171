"""The jobs that have ended. Each costs an index entry in memory. Everything else is read from disk on request, and a
bounded number of recently requested jobs stays in memory.

The journals are the only thing that is stored. The index is built from them at each start, in the background, the jobs
that ended last first. Even before that, the daemon knows that an id is taken, and answers questions about its job.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import anyio
import structlog

from muster.agent import threads
from muster.agent.changes import Changes
from muster.agent.errors import JobNotFound
from muster.agent.jobs.cards.leasing import OnCards
from muster.agent.jobs.ended import ended_scan
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.ended.ended_scan import Summary
from muster.agent.jobs.entry import Entry, load
from muster.supervisors.model.states import State
from muster.supervisors.paths import Root

#: Limits of the entries that stay in memory after a request: jobs, and ranks of all of them together.
MAX_LOADED, MAX_RANKS = 32, 1024
#: Journals that one thread hop reads: completely, and for a summary.
LOAD_AT_ONCE, INDEX_AT_ONCE = 32, 250

_log = structlog.get_logger(__name__)


def _nothing(_: Entry) -> None:
    """Nobody asked."""


class EndedJobs:
    """Belongs to one event loop."""

    def __init__(self, root: Root, pool: threads.Pool) -> None:
        """`pool`: the threads that read journals."""
        self._root = root
        self._threads = pool
        #: By id; None while only the id is known.
        self._index: dict[str, Ended | None] = {}
        #: Entries that are in use: one job is never two objects.
        self._held: WeakValueDictionary[str, Entry] = WeakValueDictionary()
        self._recent: OrderedDict[str, Entry] = OrderedDict()
        self._recent_ranks = 0
        self._newest_first: list[Ended] | None = None
        #: The number of indexed jobs in each state.
        self.states: Counter[State] = Counter()
        #: Why a job's record cannot be trusted, by job.
        self.damaged: dict[str, str] = {}
        #: Those among them that could not be read: that may be temporary.
        self.unread: set[str] = set()
        #: Tells of another one.
        self.unread_grown = Changes()
        #: Set once the index has all jobs that had ended before the daemon started.
        self.indexed = anyio.Event()
        #: Called with each job that ends, and with the id of each job whose record is removed.
        self.on_ended: list[Callable[[Entry], None]] = []
        self.on_removed: list[Callable[[str], None]] = []
        #: Called with each job whose record cannot be trusted.
        self.on_damaged: Callable[[Entry], None] = _nothing
        #: Called with each job that ended before the daemon started, and whose logs may lack the line of a gap.
        self.on_lacking: list[Callable[[Entry], None]] = []

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._index

    def find(self, job_id: str) -> Entry | None:
        """A job that is in memory."""
        return self._held.get(job_id)

    def row(self, job_id: str) -> Ended | None:
        """None for a job that is not in the index, or not yet."""
        return self._index.get(job_id)

    def rows(self) -> Sequence[Ended]:
        """The jobs indexed so far, newest accepted first. Read only."""
        if self._newest_first is None:
            known = (row for row in self._index.values() if row is not None)
            self._newest_first = sorted(known, key=lambda row: row.key, reverse=True)
        return self._newest_first

    async def get(self, job_id: str) -> Entry:
        """A complete job, from memory or from disk. Raises JobNotFound."""
        if (entry := self._held.get(job_id)) is None:
            if job_id not in self._index:
                raise JobNotFound(job_id)
            read: Entry
            read, _ = await self._threads.run(load, job_id, self._root.job(job_id))
            if (entry := self._held.get(job_id)) is None:  # no other task read it first
                if job_id not in self._index:
                    raise JobNotFound(job_id)
                row = self._index[job_id]
                if read.unread and row is not None and not row.damaged:
                    return read  # the next request finds out whether that has passed
                entry = self._held[job_id] = read
        self._keep(entry)
        return entry

    def add(self, entry: Entry) -> None:
        """Adds a job that has ended or is damaged."""
        self._held[entry.job_id] = entry
        self._note_unread(entry)
        self._put(Ended.of(entry))
        self._keep(entry)
        if entry.damaged:
            self.on_damaged(entry)
        for call in self.on_ended:
            call(entry)

    def _note_unread(self, entry: Entry) -> None:
        if entry.unread:
            self.unread.add(entry.job_id)
            self.unread_grown.tell()

    def expect(self, job_id: str) -> None:
        """Notes a job that has ended: `index` reads more of it."""
        self._index[job_id] = None

    def remove(self, job_id: str) -> None:
        """The job's record was removed."""
        if (row := self._index.pop(job_id, None)) is not None:
            self.states[row.state] -= 1
        self._held.pop(job_id, None)
        self.damaged.pop(job_id, None)
        self.unread.discard(job_id)
        if (entry := self._recent.pop(job_id, None)) is not None:
            self._recent_ranks -= len(entry.job.ranks)
        self._newest_first = None
        for call in self.on_removed:
            call(job_id)

    async def index(self, order: Sequence[str]) -> list[OnCards]:
        """Reads jobs that are not indexed yet, in this order; returns jobs of this boot whose cards may not be free.

        Damaged jobs are in the index, and are logged.
        """
        on_cards: list[OnCards] = []
        for start in range(0, len(order), INDEX_AT_ONCE):
            wanted = [job_id for job_id in order[start : start + INDEX_AT_ONCE] if self._is_open(job_id)]
            found: list[tuple[str, Summary | None]] = await self._threads.run(ended_scan.summaries, self._root, wanted)
            for job_id, summary in found:
                if not self._is_open(job_id):
                    continue  # it was removed meanwhile
                if summary is None:  # unexpected content: reading the whole job finds out what it is
                    entry = await self.get(job_id)
                    if self._is_open(job_id):
                        self._note_unread(entry)
                        self._put(Ended.of(entry))
                        self._tell_lacking(entry)
                        if entry.damaged:
                            self.on_damaged(entry)
                        if (one := OnCards.of(entry)) is not None:
                            on_cards.append(one)
                else:
                    self._put(summary.row)
                    if summary.lacks_lines:
                        self._tell_lacking(await self.get(job_id))
                    if summary.cards:
                        on_cards.append(OnCards(job_id, summary.cards, summary.row.ended_at, summary.uuids))
        self.indexed.set()
        return on_cards

    def _tell_lacking(self, entry: Entry) -> None:
        if entry.job.missing_lines:
            for call in self.on_lacking:
                call(entry)

    def _is_open(self, job_id: str) -> bool:
        return job_id in self._index and self._index[job_id] is None

    def _put(self, row: Ended) -> None:
        if (before := self._index.get(row.job_id)) is not None:
            self.states[before.state] -= 1
        self.states[row.state] += 1
        self._index[row.job_id] = row
        self._newest_first = None
        if row.damaged:
            self.damaged[row.job_id] = row.damaged
            _log.error("journal.damaged", job=row.job_id, error=row.damaged)

    def _keep(self, entry: Entry) -> None:
        if self._recent.pop(entry.job_id, None) is None:
            self._recent_ranks += len(entry.job.ranks)
        self._recent[entry.job_id] = entry
        while len(self._recent) > 1 and (len(self._recent) > MAX_LOADED or self._recent_ranks > MAX_RANKS):
            _, oldest = self._recent.popitem(last=False)
            self._recent_ranks -= len(oldest.job.ranks)
