"""Each change of verdict on the corpus, line by line: what a change of the rule must not change, two runs tell by diff.

python -m tests.corpus --changes --seeds 3 > before    # ... change the rule
python -m tests.corpus --changes --seeds 3 > after; diff before after
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from muster.probes.hang import Change, HangSettings, detector
from muster.probes.hang.hang_records import read
from tests.corpus.measure import changes_of, trace
from tests.corpus.scenarios import Scenario


def lines(scenarios: Iterable[Scenario], seeds: Iterable[int], *, harsh: bool) -> Iterator[str]:
    """A JSON object for each change, in the order of the scenarios and seeds."""
    for scenario in scenarios:
        for seed in seeds:
            told, records = trace(scenario, seed, harsh=harsh)
            found = detector(HangSettings())
            name = f"{scenario.name} {seed}{' harsh' if harsh else ''}"
            for change in changes_of(found, told.play, [read(record) for record in records]):
                line = {"trace": name, "t": round(change.t - records[0]["t"], 1)} | _told(change)
                yield json.dumps(line, ensure_ascii=False)


def _told(change: Change) -> dict[str, Any]:
    """Without the readings, which are those of the trace, and the names of rows, which may be renamed."""
    names = ("rule", "silent_s", "limit_s", "limit", "odd_ranks", "missing", "would_clear", "recovered")
    found = change.as_dict()
    return {name: found[name] for name in ("verdict", "kind", "ranks", "confidence")} | {
        name: change.evidence[name] for name in names if name in change.evidence
    }
