"""What the daemon keeps of slow ranks, and tells of them."""

import json

from muster.agent.hang.slow_watch import SlowWatch, event
from muster.probes.hang import Detector, HangSettings, PlainDetector, Record
from muster.probes.hang.hang_records import read
from muster.probes.hang.slow import SlowSettings
from tests.corpus.measure import trace
from tests.corpus.slow import ALL


def until_slow() -> tuple[SlowWatch, Detector, Record]:
    """A watch that has found a slow rank, at its last record."""
    watch, detector = SlowWatch.begun(SlowSettings(), {}), Detector()
    for line in trace(ALL["L1"], 1)[1]:
        record = read(line)
        detector.feed(record)
        if watch.take(record, detector, enabled=True):
            return watch, detector, record
    raise AssertionError("nothing was told")


def test_it_goes_on_from_what_is_stored() -> None:
    watch, _, _ = until_slow()
    again = SlowWatch.begun(SlowSettings(), json.loads(json.dumps(watch.stored())))
    assert again.stored() == watch.stored()
    assert again.found is not None and again.found == again.untold


def test_of_what_cannot_be_read_it_begins_anew() -> None:
    assert SlowWatch.begun(SlowSettings(), {"state": {"version": 0}}).found is None


def test_switched_off_it_clears() -> None:
    watch, detector, record = until_slow()
    assert watch.take(record, detector, enabled=False)
    assert watch.found is None and watch.untold is not None and watch.untold.ranks == ()
    assert not watch.take(record, detector, enabled=False)


def test_beside_the_plain_rule_nothing_is_reported() -> None:
    watch, _, record = until_slow()
    assert watch.take(record, PlainDetector(HangSettings(rule="plain")), enabled=True)
    assert watch.found is None


def test_the_events() -> None:
    watch, detector, record = until_slow()
    assert watch.found is not None
    begins = event(watch.found, 2)
    assert begins.kind == "job.slow_rank" and begins.attributes["attempt"] == "2"
    assert begins.attributes["ranks"] == str(watch.found.ranks[0])
    watch.take(record, detector, enabled=False)
    assert watch.untold is not None
    ends = event(watch.untold, 2)
    assert (ends.kind, ends.attributes) == ("job.slow_rank_cleared", {"attempt": "2"})
