"""What a cause is, and how sure one is of it."""

from dataclasses import dataclass
from enum import StrEnum

from muster.agent.why.log_signs import Sign
from muster.probes.checks.codes import UnknownCode, explain

CERTAIN, HIGH, MEDIUM, LOW, NONE = "certain", "high", "medium", "low", "none"


class SeenIn(StrEnum):
    """Where a cause was seen."""

    #: What the job wrote.
    OUTPUT = "output"
    #: What a card's driver or the node reported.
    CARD = "card"
    NODE = "node"
    #: A limit of the job was reached.
    LIMIT = "limit"
    #: What a launcher reports of a worker.
    LAUNCHER = "launcher"
    #: What the records of the job say.
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Cause:
    """`kind` as in signatures (agent/why/signatures.py), or "stop", "admission", "hang", "muster", "unknown". `steps`:
    what to do, sentences. `signature` is empty where no log told it; `sign` what in a log did."""

    text: str
    confidence: str
    kind: str
    steps: tuple[str, ...] = ()
    signature: str = ""
    sign: Sign | None = None
    evidence: tuple[str, ...] = ()
    seen: SeenIn = SeenIn.RECORDS

    @property
    def is_root(self) -> bool:
        """A log says it, and it does not follow from something else."""
        return self.sign is not None and self.sign.hit.signature.role == "root"


def remedy(code: str) -> str:
    """What an operator does about a finding of this code; "" where there is nothing to do, or no such code."""
    try:
        _, row = explain(code)
    except UnknownCode:
        return ""
    return "" if row.remedy.startswith("Nothing") else row.remedy
