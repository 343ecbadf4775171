"""A cache of jobs as API messages, valid until the journal grows: frequent calls do not convert the same thousand ranks
each time."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from muster.agent.host.state_folder import digest_key
from muster.agent.jobs.entry import Entry, Version, load
from muster.agent.messages import convert
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.paths import JobPaths, Root
from muster.v1 import job_pb2

#: Bytes of memory for the cache: 8,000 ranks of some large jobs, or 1,000 jobs of a rank or two.
MAX_BYTES = 4 << 20
#: Bytes of memory of each message, and for each byte of it as it is sent (measured: 2.9 KB for one of 209 bytes, 107
#: for 29,601).
_OWN, _EACH = 2200, 3.5


@dataclass(frozen=True, slots=True)
class Made:
    """A message, and the entry that it was made from."""

    entry: Entry
    message: job_pb2.Job


@dataclass(frozen=True, slots=True)
class _Kept:
    """A message, its size in memory in bytes, and the version that it was made from (`Entry.version`)."""

    message: job_pb2.Job
    size: float
    version: Version


class JobMessages:
    """The results of `convert.job_to` for the jobs that were requested last."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._digest_key = digest_key(root.state)
        #: By job id, in order of the last request.
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.held_bytes = 0.0

    def of(self, entry: Entry) -> job_pb2.Job:
        """The job as its journal describes it. Copy it; do not change it.

        What was made before is good as long as the entry is of the same version.
        """
        kept = self._kept.get(entry.job_id)
        if kept is not None:
            if kept.version == entry.version:
                self._kept.move_to_end(entry.job_id)
                return kept.message
            self._forget(entry.job_id)
        message = convert.job_to(entry, self._root, self._digest_key)
        size = _OWN + _EACH * message.ByteSize()
        self._kept[entry.job_id] = _Kept(message, size, entry.version)
        self.held_bytes += size
        while self.held_bytes > MAX_BYTES and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))
        return message

    def read(self, job_ids: Iterable[str], labels: Mapping[str, str]) -> dict[str, Made]:
        """Messages of the jobs with these labels, read from disk, by id. Call it in a thread. Not cached."""
        found = {}
        for job_id in job_ids:
            paths = self._root.job(job_id)
            if labels and not _may_have(paths, labels):
                continue
            entry, _ = load(job_id, paths)
            if all(entry.spec.labels.get(key) == value for key, value in labels.items()):
                found[job_id] = Made(entry, convert.job_to(entry, self._root, self._digest_key))
        return found

    def forget(self, job_id: str) -> None:
        """Drops the message of a deleted job, if the cache has one."""
        if job_id in self._kept:
            self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        self.held_bytes -= self._kept.pop(job_id).size


def _may_have(paths: JobPaths, labels: Mapping[str, str]) -> bool:
    """Whether a job has these labels, by its spec only; True also if the spec cannot be read."""
    try:
        had = JobSpec.from_json(paths.spec.read_text(encoding="utf-8")).labels
    except (OSError, ValueError, TypeError):
        return True
    return all(had.get(key) == value for key, value in labels.items())
