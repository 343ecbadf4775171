"""The rule over recorded telemetry: lines in, changes of verdict out, in constant room."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from probes.hang.plain import PlainDetector
from probes.hang.records import BadRecord, parse
from probes.hang.rule import Detector
from probes.hang.settings import Settings
from probes.hang.verdicts import Change

#: So many jobs are kept at a time; of more, the one that was heard of least lately is forgotten.
MAX_JOBS = 1000
#: No record of a node is longer: a line beyond this is none. (8 ranks with 1,000 processes make 300 KB.)
MAX_LINE = 16 << 20


def replay(
    lines: Iterable[bytes], settings: Settings, bad: Callable[[int, str], None] | None = None
) -> Iterator[Change]:
    """The changes of verdict of all jobs in these lines. `bad` is told the number (from 1) of each line that is no
    record, and why; such lines are left out, empty ones silently."""
    detectors: OrderedDict[str, Detector | PlainDetector] = OrderedDict()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if len(line) > MAX_LINE:
                raise BadRecord(f"longer than {MAX_LINE} bytes")
            record = parse(line)
        except BadRecord as error:
            if bad is not None:
                bad(number, str(error))
            continue
        if record is None:
            continue
        found = detectors.get(record.job)
        if found is None:
            found = PlainDetector(settings) if settings.rule == "plain" else Detector(settings)
            detectors[record.job] = found
            if len(detectors) > MAX_JOBS:
                detectors.popitem(last=False)
        detectors.move_to_end(record.job)
        yield from found.feed(record)
