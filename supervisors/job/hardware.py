"""Whether the hardware is at fault, for the verdict of a job that failed.

Two sources: the device nodes of its cards, and `faults.json` in the state folder, in which the daemon keeps the faults
of the node and each card (agent/node/health.py). The supervisor reads the file because the daemon may not run.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.probes.kernel import process
from muster.probes.kernel.known_names import ASCEND, NVIDIA, device_node
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.system import trust

#: Seconds after the end of a rank in which kernel log and driver may still say why: a card that is lost breaks its rank
#: before its Xid is read.
SETTLE_S = 1.0
#: Bytes of the file that are read, at most, and sentences that a verdict holds.
_MAX_BYTES = 1 << 20
_MAX_TOLD = 4


def may_speak(job: Job) -> bool:
    """Whether anybody watches hardware of this job."""
    return bool(job.cards) and job.card_kind in (NVIDIA, ASCEND)


def fault(job: Job, faults: Path) -> str:
    """A sentence about what is wrong; empty where nothing is known against cards and node."""
    told = gone(job.card_kind, job.cards, job.card_nodes) + _written(job, faults)
    more = f"; and {len(told) - _MAX_TOLD} more" if len(told) > _MAX_TOLD else ""
    return "; ".join(told[:_MAX_TOLD]) + more


def gone(card_kind: str, cards: Sequence[int], nodes: dict[int, str] | None) -> list[str]:
    """A sentence if device nodes of the job's cards were removed."""
    if nodes is None:  # the journal does not tell them
        nodes = {card: f"/dev/{name}" for card in cards if (name := device_node(card_kind, card))}
    missing = [nodes[card] for card in cards if nodes.get(card) and not os.path.exists(nodes[card])]
    return [f"{', '.join(missing)}: the card no longer exists"] if missing else []


def _written(job: Job, faults: Path) -> list[str]:
    """What the daemon wrote down in this boot of the node as a whole and of the job's cards: by their UUIDs, as the
    driver may have given them other numbers since; of cards without one, by number. Not what happened before the job
    and is over."""
    with contextlib.suppress(OSError, ValueError):
        found: Any = json.loads(trust.read(faults, _MAX_BYTES))
        if isinstance(found, dict) and found.get("boot") == process.boot_id():
            by_card, by_uuid = found.get("cards", {}), found.get("uuids", {})
            over = {text for text, up in found.get("ups", {}).items() if up < job.accepted_up}
            named = {text for texts in by_uuid.values() for text in texts}
            told = []
            for card in job.hardware:
                uuid, texts = job.card_uuids.get(card, ""), by_card.get(str(card), ())
                its = [*by_uuid.get(uuid, ()), *(text for text in texts if text not in named)] if uuid else texts
                told += [f"card {card}: {text}" for text in its if text not in over]
            return told + [str(text) for text in found.get("node", ()) if text not in over]
    return []
