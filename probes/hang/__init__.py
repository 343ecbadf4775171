"""Does a job hang? A rule over telemetry records, without clock and without IO: docs/concepts/hang.md explains it.

`Detector` takes the records of one job and returns each change of verdict; `HangSettings` has every number; the rule is
three tables in `tables/`. `hang_replay` runs it over a file of records; `dump_schedule` says when stacks are taken.
"""

from typing import TYPE_CHECKING

from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.verdicts import Change, HangKind, HangVerdict
from muster.probes.kernel import late_import

if TYPE_CHECKING:
    from muster.probes.hang.hang_records import BadRecord, Record, parse
    from muster.probes.hang.plain import PlainDetector
    from muster.probes.hang.rule import Detector

__all__ = [
    "BadRecord",
    "Change",
    "Detector",
    "HangKind",
    "HangSettings",
    "HangVerdict",
    "PlainDetector",
    "Record",
    "detector",
    "parse",
]

_MODULES = {"BadRecord": "hang_records", "Record": "hang_records", "parse": "hang_records"}
_MODULES |= {"PlainDetector": "plain", "Detector": "rule"}
__getattr__ = late_import.names(__name__, _MODULES)


def detector(settings: HangSettings) -> "Detector | PlainDetector":
    """The detector that `settings.rule` names, for one job."""
    from muster.probes.hang.plain import PlainDetector
    from muster.probes.hang.rule import Detector

    return PlainDetector(settings) if settings.rule == "plain" else Detector(settings)
