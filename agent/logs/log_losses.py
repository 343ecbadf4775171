"""Lost output: files that somebody deleted, moved or cut, and how much of a job's output is missing."""

from collections.abc import Mapping, Sequence

from muster.agent.logs import log_reading
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.states import JOB
from muster.supervisors.output.gaps import read_counts
from muster.supervisors.output.log_removals import removals
from muster.supervisors.paths import JobPaths

#: The reason for output missing at the end of a file, if no supervisor recorded one.
GONE = "somebody deleted, moved or truncated the file"


@dataclass(frozen=True, slots=True)
class Missing:
    """Output of a rank (JOB: lines of the job's own log) that cannot be read any more, in bytes, and why."""

    rank: int
    bytes: int
    why: str


def ends(job: Job, paths: JobPaths) -> dict[int, int]:
    """Where the output of each rank ends, by the amount written; only ranks for which that is known. Blocks."""
    if job.state.final:
        return job.log_ends
    numbers = [*(rank.rank for rank in job.ranks), JOB, *(service.rank for service in job.services)]
    counts = zip(numbers, read_counts(paths.lost, paths.ends, paths.spare_counts), strict=False)
    return {number: count.end for number, count in counts if count.end >= 0}


def missing(
    files: Sequence[log_reading.RankLogFile],
    starts: Mapping[int, int],
    stops: Mapping[int, int],
    ends: Mapping[int, int],
) -> list[Missing]:
    """The missing parts of these logs. Output that a setting or a command removed does not count.

    `starts`, `stops`: the part that was read of each log, in bytes; a rank without `stops` should be read to its end,
    which `ends` gives. Blocks. Raises OSError.
    """
    found = []
    for file, layout in zip(files, log_reading.look(list(files)), strict=True):
        start, stop = starts.get(file.rank, 0), stops.get(file.rank)
        removed = removals(file.path)
        for gone in removed:
            count = min(gone.end, gone.end if stop is None else stop) - max(gone.start, start)
            if gone.lost and count > 0:
                found.append(Missing(file.rank, count, gone.why))
        # What muster removes it records before: a hole without a record is a segment that somebody took away.
        known = [*((piece.start, piece.end) for piece in layout.pieces), *((gone.start, gone.end) for gone in removed)]
        if count := uncovered(start, layout.end if stop is None else min(stop, layout.end), known):
            found.append(Missing(file.rank, count, GONE))
        end = ends.get(file.rank, 0)
        if stop is None and end > max(layout.end, start):
            found.append(Missing(file.rank, end - max(layout.end, start), GONE))
    return found


def uncovered(begin: int, end: int, spans: Sequence[tuple[int, int]]) -> int:
    """How many of the bytes from `begin` to `end` lie in none of these spans, which may overlap."""
    count = 0
    for start, stop in sorted(spans):
        if start > begin:
            count += max(0, min(start, end) - begin)
        begin = max(begin, stop)
    return count + max(0, end - begin)
