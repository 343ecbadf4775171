"""A new dump of the flight recorder of each rank, in a time that is bounded whatever hangs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from muster.probes.kernel.dataclass import dataclass
from muster.probes.library.dump_files import DumpSource, DumpStamp, ask_for_dump, dump_stamps, fresh_dump
from muster.probes.library.flight_recorder import DumpUnreadable, FlightDump
from muster.probes.library.job_files import PROC

#: Ranks whose dumps are read at the same time: to read a large one takes a second of a CPU.
AT_ONCE = 2
#: Seconds for looking at the files of a rank, or writing into its pipe.
FILE_S = 5.0


@dataclass(frozen=True, slots=True)
class TakenDumps:
    """By rank: its dump, or why there is none, in one sentence."""

    dumps: Mapping[int, FlightDump]
    missing: Mapping[int, str]


async def take_dumps(sources: Sequence[DumpSource], deadline_s: float, proc: Path = PROC) -> TakenDumps:
    """Asks each rank for a dump by its pipe, all at once, and returns what was written within `deadline_s` seconds.

    For `find_laggards` take them twice, some seconds apart. A rank looks at its pipe once a second; the dump of a large
    job takes some more. Raises nothing but cancellation.
    """
    run = _DumpTake(proc, anyio.current_time() + deadline_s)
    async with anyio.create_task_group() as group:
        for source in sources:
            group.start_soon(run.rank, source)
    return TakenDumps(dict(sorted(run.dumps.items())), dict(sorted(run.missing.items())))


class _DumpTake:
    """One take."""

    def __init__(self, proc: Path, end: float) -> None:
        """`end`: on the loop's clock."""
        self._proc = proc
        self._end = end
        self._limiter = anyio.CapacityLimiter(AT_ONCE)
        self.dumps: dict[int, FlightDump] = {}
        self.missing: dict[int, str] = {}

    async def rank(self, source: DumpSource) -> None:
        try:
            before = await dump_stamps(source, self._left(FILE_S), self._proc)
            why = await ask_for_dump(source, self._left(FILE_S), self._proc)
            if why:
                self.missing[source.rank] = why
            else:
                self.dumps[source.rank] = await self._wait(source, before)
        except DumpUnreadable as error:
            self.missing[source.rank] = str(error)

    async def _wait(self, source: DumpSource, before: Mapping[str, DumpStamp]) -> FlightDump:
        return await fresh_dump(source, before, self._left(), self._proc, self._limiter)

    def _left(self, most: float = float("inf")) -> float:
        return max(0.0, min(most, self._end - anyio.current_time()))
