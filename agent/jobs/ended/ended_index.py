"""The jobs that have ended. Each costs an index entry in memory; everything else of it is read from disk when somebody
asks, and a bounded number of those that were asked for last is kept.

The journals are the truth and the only thing that is stored: the index is built from them at each start, in the
background, the jobs that ended last first. An id is known to be taken before that, and a job can be asked for by it.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import anyio
import structlog

from muster.agent import threads
from muster.agent.errors import JobNotFound
from muster.agent.jobs.cards.leasing import OnCards
from muster.agent.jobs.ended import ended_scan
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.ended.ended_scan import Summary
from muster.agent.jobs.entry import Entry, load
from muster.supervisors.model.states import State
from muster.supervisors.paths import Root

#: Entries that are kept for the next who asks: as many jobs, and as many ranks in all of them.
MAX_LOADED, MAX_RANKS = 32, 1024
#: Journals that are read in one thread hop: when all of one is needed, and when a summary is.
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
        #: By id; None as long as only the id is known.
        self._index: dict[str, Ended | None] = {}
        #: Entries that somebody holds: one job is never two objects.
        self._held: WeakValueDictionary[str, Entry] = WeakValueDictionary()
        self._recent: OrderedDict[str, Entry] = OrderedDict()
        self._recent_ranks = 0
        self._newest_first: list[Ended] | None = None
        #: How many there are of each state, of those that are indexed.
        self.states: Counter[State] = Counter()
        #: What cannot be trusted, by job.
        self.damaged: dict[str, str] = {}
        #: Of these, jobs that could not be read, which may pass.
        self.unread: set[str] = set()
        #: Set once all that had ended before the daemon started is in the index.
        self.indexed = anyio.Event()
        #: Called with each job that ends, and with the id of each whose record is removed.
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
        """One that is in memory."""
        return self._held.get(job_id)

    def row(self, job_id: str) -> Ended | None:
        """None for one that is not in the index, or not yet."""
        return self._index.get(job_id)

    def rows(self) -> Sequence[Ended]:
        """Those that are indexed by now, newest accepted first; not to be changed."""
        if self._newest_first is None:
            known = (row for row in self._index.values() if row is not None)
            self._newest_first = sorted(known, key=lambda row: row.key, reverse=True)
        return self._newest_first

    async def get(self, job_id: str) -> Entry:
        """All of a job, from memory or from disk. Raises JobNotFound."""
        if (entry := self._held.get(job_id)) is None:
            if job_id not in self._index:
                raise JobNotFound(job_id)
            read: Entry
            read, _ = await self._threads.run(load, job_id, self._root.job(job_id))
            if (entry := self._held.get(job_id)) is None:  # nobody else came first
                if job_id not in self._index:
                    raise JobNotFound(job_id)
                row = self._index[job_id]
                if read.unread and row is not None and not row.damaged:
                    return read  # who asks next finds out whether that has passed
                entry = self._held[job_id] = read
        self._keep(entry)
        return entry

    def add(self, entry: Entry) -> None:
        """A job that has ended, or one that is damaged."""
        self._held[entry.job_id] = entry
        if entry.unread:
            self.unread.add(entry.job_id)
        self._put(Ended.of(entry))
        self._keep(entry)
        if entry.damaged:
            self.on_damaged(entry)
        for call in self.on_ended:
            call(entry)

    def expect(self, job_id: str) -> None:
        """A job that is known to have ended: `index` reads more of it."""
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
        """Reads what is not indexed yet, in this order; returns jobs of this boot whose cards may not be free.

        Damage is in the index, and is logged.
        """
        on_cards: list[OnCards] = []
        for start in range(0, len(order), INDEX_AT_ONCE):
            wanted = [job_id for job_id in order[start : start + INDEX_AT_ONCE] if self._is_open(job_id)]
            found: list[tuple[str, Summary | None]] = await self._threads.run(ended_scan.summaries, self._root, wanted)
            for job_id, summary in found:
                if not self._is_open(job_id):
                    continue  # it was removed meanwhile
                if summary is None:  # something is not as it should be: all of it is read, and says what
                    entry = await self.get(job_id)
                    if self._is_open(job_id):
                        if entry.unread:
                            self.unread.add(job_id)
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
