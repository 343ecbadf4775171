"""When the stacks of a job that is suspected to hang are taken: three dumps, then three more, ever more rarely."""

from collections.abc import Iterator

#: Dumps of a series.
DUMPS = 3
#: From the begin of the first series to that of the second, in distances of dumps; then twice as long each time, up to
#: the last. A dump costs 15 ms of CPU time per process (py-spy 0.4.3), and the process nothing.
_FIRST, _LAST = 6, 60


def dump_times(apart_s: float) -> Iterator[float]:
    """Seconds since the first dump, without end; `apart_s`: between the dumps of a series."""
    begin, distance = 0.0, _FIRST * apart_s
    while True:
        yield from (begin + number * apart_s for number in range(DUMPS))
        begin, distance = begin + distance, min(2 * distance, _LAST * apart_s)
