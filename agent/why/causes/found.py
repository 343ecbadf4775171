"""What a cause is, and how certain it is."""

from enum import StrEnum

from muster.agent.why.log_signs import Sign
from muster.probes.checks.codes import UnknownCode, explain
from muster.probes.checks.result import Status
from muster.probes.kernel.dataclass import dataclass

CERTAIN, HIGH, MEDIUM, LOW, NONE = "certain", "high", "medium", "low", "none"


#: Consequences of what happened in the same rank.
_OF_ITSELF = frozenset({"abort", "killed", "data-loader"})


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
    #: The signal from outside that ended a process of the job, by the records.
    SIGNAL = "signal"
    #: What the records of the job say.
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Cause:
    """`kind` as in signatures (agent/why/signatures.py), or "stop", "admission", "hang", "slow", "muster", "unknown".
    `steps`: what to do, as sentences. `signature`: empty if no log named the cause; `sign`: the place in a log that
    did. `rank`: the rank that is the cause, where no log says so. `tied`: another rank may be the cause as well."""

    text: str
    confidence: str
    kind: str
    steps: tuple[str, ...] = ()
    signature: str = ""
    sign: Sign | None = None
    evidence: tuple[str, ...] = ()
    seen: SeenIn = SeenIn.RECORDS
    rank: int | None = None
    tied: bool = False

    @property
    def is_root(self) -> bool:
        """A log names it, and it is not the consequence of another cause."""
        return self.sign is not None and self.sign.hit.signature.role == "root"

    @property
    def culprit(self) -> int | None:
        """The rank that is the cause; None if the cause is no rank, or it is not known which."""
        if self.rank is not None or self.sign is None:
            return self.rank
        own = self.is_root or self.sign.hit.signature.id in _OF_ITSELF
        return self.sign.rank if own and self.confidence != LOW and not self.tied else None


def warns(code: str) -> bool:
    """Whether a finding of this code is more than a piece of information."""
    try:
        return explain(code)[1].status in (Status.WARN, Status.CRITICAL)
    except UnknownCode:
        return False


def remedy(code: str, card: int | None = None) -> str:
    """What an operator does about a finding of this code, about this card; "" if nothing, or if the code is unknown."""
    try:
        _, row = explain(code)
    except UnknownCode:
        return ""
    text = "" if row.remedy.startswith("Nothing") else row.remedy
    return text if card is None else text.replace("node reset CARD", f"node reset {card}")
