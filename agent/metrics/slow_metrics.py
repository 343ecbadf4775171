"""Metrics of slow ranks: how many jobs have one, and on which card it runs."""

from collections.abc import Callable, Sequence
from typing import Protocol

from muster.agent.exposition import Catalogue, Page
from muster.agent.jobs.entry import Entry
from muster.agent.metrics.card_metrics import CARD_LABELS, names
from muster.agent.metrics.exporter import CountedCards
from muster.agent.telemetry.job_processes import rank_of_card
from muster.probes.hang.slow import SlowChange
from muster.supervisors.model.card_identity import numbers_now

OWN = Catalogue()
JOBS = OWN.gauge("muster_jobs_slow", "Jobs with a SLOW rank, for which its peers wait.")
CARD = OWN.gauge("muster_card_slow", "1 while the rank on the card is SLOW; without a sample otherwise.", *CARD_LABELS)


class Watched(Protocol):
    """The part of the hang watch that this module needs."""

    def slow(self, entry: Entry) -> SlowChange | None:
        """The ranks of a job that are SLOW now."""


class SlowMetrics:
    """Fills the page."""

    def __init__(self, watch: Watched, live: Callable[[], Sequence[Entry]], cards: CountedCards) -> None:
        """`live`: the jobs that have not ended."""
        self._watch, self._live, self._cards = watch, live, cards

    def fill(self, page: Page) -> None:
        """Adds the metrics."""
        found = [(entry, slow) for entry in self._live() if (slow := self._watch.slow(entry)) is not None]
        page.add(JOBS, len(found))
        view = self._cards.view
        for entry, slow in found:
            now = numbers_now(entry.job, entry.job.cards, view.uuids)
            for place, own in enumerate(entry.job.cards):
                card = view.cards.get(now.get(own, -1))
                if card is not None and rank_of_card(entry, place) in slow.ranks:
                    page.add(CARD, 1, *names(card))
