"""The rule over recorded telemetry: lines in, changes of verdict out, in constant room."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from muster.probes.hang.hang_records import BadRecord, Record, parse
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.joined import MAX_JOBS, joined
from muster.probes.hang.plain import PlainDetector
from muster.probes.hang.rule import Detector
from muster.probes.hang.slow import SlowChange, SlowRule, SlowSettings
from muster.probes.hang.verdicts import Change

#: No record of a node is longer: a line beyond this is none. (8 ranks with 1,000 processes make 300 KB.)
MAX_LINE = 16 << 20

#: Takes the number (from 1) of each line that is no record, and why.
Bad = Callable[[int, str], None]


def replay(
    records: Iterable[Record], settings: HangSettings, slow_settings: SlowSettings | None = None
) -> Iterator[Change | SlowChange]:
    """The changes of verdict of all jobs in these records, and of their slow ranks. The plain rule tells of no slow
    rank."""
    detectors: OrderedDict[str, tuple[Detector | PlainDetector, SlowRule]] = OrderedDict()
    for record in records:
        if record.job not in detectors:
            found = PlainDetector(settings) if settings.rule == "plain" else Detector(settings)
            detectors[record.job] = found, SlowRule(slow_settings)
            if len(detectors) > MAX_JOBS:
                detectors.popitem(last=False)
        detectors.move_to_end(record.job)
        detector, slow = detectors[record.job]
        yield from detector.feed(record)
        if isinstance(detector, Detector):
            change = slow.feed(record, detector.job, settings)
            if change is not None:
                yield change


def records_of(files: Sequence[tuple[Iterable[bytes], Bad]]) -> Iterator[Record]:
    """The records in these lines: of one file as they are, of several, which are those of several nodes, joined."""
    if len(files) == 1:
        return parsed(*files[0])
    return joined([parsed(*file) for file in files])


def parsed(lines: Iterable[bytes], bad: Bad) -> Iterator[Record]:
    """Reports lines that are no records to `bad` and skips them; skips empty lines silently."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if len(line) > MAX_LINE:
                raise BadRecord(f"longer than {MAX_LINE} bytes")
            record = parse(line)
        except BadRecord as error:
            bad(number, str(error))
            continue
        if record is not None:
            yield record
