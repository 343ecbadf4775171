"""Metrics of slow ranks."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from muster.agent.exposition import Page
from muster.agent.jobs.entry import Entry
from muster.agent.metrics.slow_metrics import SlowMetrics
from muster.probes.cards.accelerator import NVIDIA, Card
from muster.probes.cards.driver import View
from muster.probes.hang.slow import SlowChange, SlowVerdict
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import State
from muster.supervisors.paths import JobPaths

CARDS = {i: Card(i, NVIDIA, f"GPU-{i}", "H100", 80 << 30, f"0000:{i + 0x9D:02x}:00.0", 1) for i in range(4)}


class FakeDriver:
    """Shows these cards."""

    view = View(kind=NVIDIA, cards=CARDS)


class Watch:
    """Says of these jobs that these ranks are slow."""

    def __init__(self, **slow: int) -> None:
        self._slow = slow

    def slow(self, entry: Entry) -> SlowChange | None:
        rank = self._slow.get(entry.job_id)
        return None if rank is None else SlowChange(2.0, entry.job_id, SlowVerdict.SLOW, (rank,), 1.0, 0.9)


def job(name: str, *cards: int) -> Entry:
    ranks = [Rank(r, r, card) for r, card in enumerate(cards)]
    return Entry(name, JobSpec(name, ()), Job(state=State.RUNNING, ranks=ranks, cards=cards), JobPaths(Path("/no")))


def shown(watch: Watch, *jobs: Entry) -> list[tuple[str, str, float]]:
    page = Page()
    SlowMetrics(watch, lambda: jobs, FakeDriver()).fill(page)
    families = text_string_to_metric_families(page.text(openmetrics=False).decode())
    return [(one.name, one.labels.get("card", ""), one.value) for family in families for one in family.samples]


def test_jobs_and_the_cards_of_slow_ranks() -> None:
    assert shown(Watch(), job("a", 0, 1)) == [("muster_jobs_slow", "", 0)]
    found = shown(Watch(b=1), job("a", 0, 1), job("b", 2, 3))
    assert found == [("muster_jobs_slow", "", 1), ("muster_card_slow", "3", 1)]
