"""The driver's numbers of the job's cards in this attempt, if the driver has renumbered them since the last attempt.

The daemon writes them into a file; the supervisor reads the file because the daemon may not run.
"""

import json
from pathlib import Path

from muster.probes.kernel import process
from muster.probes.kernel.process import FULL
from muster.supervisors.model.card_identity import CardsNow
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.system import trust

#: Bytes of the file that are read, at most.
_MAX_BYTES = 1 << 20


def read(path: Path, job: Job) -> CardsNow | None:
    """None where nothing is known beyond the journal. Raises OSError at the limit of descriptors."""
    try:
        found = CardsNow.of_written(json.loads(trust.read(path, _MAX_BYTES)), process.boot_id())
    except ValueError:
        return None
    except OSError as error:
        if error.errno in FULL:
            raise
        return None
    return found if found is not None and found.is_of(job) else None


def counted_anew(job: Job, cards: CardsNow | None) -> tuple[Record, str]:
    """What the record `preparing` is to say of it, and the job's log; both empty where nothing has changed."""
    if cards is None or cards.missing:
        return {}, ""
    before = {card: job.card_visible.get(card, str(card)) for card in job.cards}
    if cards.words == before:
        return {}, ""
    words, nodes = ({str(card): text for card, text in texts.items()} for texts in (cards.words, cards.nodes))
    now = ", ".join(f"{card} is {cards.words[card]}" for card in job.cards if cards.words[card] != before[card])
    said = f"the driver renumbered the cards: card {now} in this attempt"
    return {"card_visible": words, "card_nodes": nodes}, said
