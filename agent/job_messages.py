"""Jobs as messages, kept until their journal grows: who asks often does not have the same thousand ranks put into words
each time."""

from collections import OrderedDict

from agent import convert
from agent.entry import Entry
from muster.v1 import job_pb2
from supervisors.lifecycle import Job
from supervisors.paths import Root

#: Ranks of messages that are kept, at 0.4 KB each; a page of a listing has as many at most (MAX_PAGE_BYTES).
MAX_RANKS = 8192


class JobMessages:
    """What `convert.job_to` made of jobs, those that were asked for last."""

    def __init__(self, root: Root) -> None:
        self._root = root
        #: By job id, the one asked for last at the end: what it was made of, and the message.
        self._kept: OrderedDict[str, tuple[Job, int, str, job_pb2.Job]] = OrderedDict()
        self._ranks = 0

    def of(self, entry: Entry) -> job_pb2.Job:
        """The job as its journal tells it; to be copied, not changed.

        A job changes by records alone; one that is read from its begin again, or given up, is another object.
        """
        kept = self._kept.get(entry.job_id)
        if kept is not None:
            job, records, damaged, message = kept
            if job is entry.job and records == entry.records and damaged == entry.damaged:
                self._kept.move_to_end(entry.job_id)
                return message
            self._forget(entry.job_id)
        message = convert.job_to(entry, self._root)
        self._kept[entry.job_id] = entry.job, entry.records, entry.damaged, message
        self._ranks += len(message.ranks) + 1
        while self._ranks > MAX_RANKS and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))
        return message

    def _forget(self, job_id: str) -> None:
        message = self._kept.pop(job_id)[-1]
        self._ranks -= len(message.ranks) + 1
