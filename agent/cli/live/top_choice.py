"""What a person has chosen to see of `muster top`, by keys. Pure."""

from collections.abc import Sequence
from typing import TypeVar

from muster.probes.kernel.dataclass import dataclass
from muster.v1 import telemetry_pb2

T = TypeVar("T")

#: Seconds that the curves show; the first at the begin.
SPANS = (300, 900, 3600, 60)
#: The keys; the first of these that fits is shown.
HELPS = (
    "j job  c card  r rank  a all  s sort  t time  q quit",
    "j job  c card  r rank  a all  q quit",
    "keys: j c r a s t q",
)


@dataclass(slots=True)
class TopChoice:
    """The view: a card, a rank of a job, or all of it, of one job if one is named."""

    job: str = ""
    card: int | None = None
    rank: tuple[str, int] | None = None
    by_number: bool = False
    span: int = SPANS[0]
    over: bool = False

    def press(self, key: str, now: telemetry_pb2.GetTelemetryResponse) -> None:
        """A key: a letter goes on to the next job, card or rank, a capital one back; behind the last come all again."""
        match key:
            case "j" | "J":
                jobs = [job.job_id for job in now.jobs]
                self.job = _next(jobs, self.job or None, key == "J") or ""
                self.card = self.rank = None
            case "c" | "C":
                cards = [card.index for card in now.cards if not self.job or card.job_id == self.job]
                self.card, self.rank = _next(sorted(cards), self.card, key == "C"), None
            case "r" | "R":
                ranks = [
                    (job.job_id, rank.rank) for job in now.jobs for rank in job.ranks if self.job in ("", job.job_id)
                ]
                self.rank, self.card = _next(ranks, self.rank, key == "R"), None
            case "a" | "A" | "escape":
                self.job, self.card, self.rank = "", None, None
            case "s":
                self.by_number = not self.by_number
            case "t":
                self.span = SPANS[(SPANS.index(self.span) + 1) % len(SPANS)]
            case "q" | "Q":
                self.over = True


def _next(values: Sequence[T], present: T | None, back: bool) -> T | None:
    ring: list[T | None] = [None, *values]
    place = ring.index(present) if present in ring else 0
    return ring[(place + (-1 if back else 1)) % len(ring)]


def keys(typed: bytes) -> list[str]:
    """Names of the keys that send these bytes; those of the cursor and others that are not used are left out."""
    if typed == b"\x1b":
        return ["escape"]
    found, rest = [], typed.decode("ascii", "ignore")
    while rest:
        if rest[0] == "\x1b":  # ESC [ 1 ; 5 A, ESC O P
            end = 2 if rest[1:2] in ("[", "O") else 1
            while end < len(rest) and not rest[end].isalpha() and rest[end] != "~":
                end += 1
            rest = rest[end + 1 :]
            continue
        found.append(rest[0])
        rest = rest[1:]
    return found
