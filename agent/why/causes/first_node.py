"""Which node of a job of several is to blame. Pure."""

from collections.abc import Sequence

from muster.probes.kernel.dataclass import dataclass

#: Kinds of causes that lie elsewhere: where two parts failed, the other one is to blame.
ELSEWHERE = frozenset(("peer", "network", "rendezvous"))
#: Two failures closer than this, or than the doubt of their clocks, are not put in an order.
_TOGETHER_S = 0.05


@dataclass(frozen=True, slots=True)
class NodePart:
    """A node's part: whether it `failed` (not where it succeeded, runs or was stopped), the kind of its cause, and when
    its first rank failed: seconds since the epoch by one clock, wrong by at most `doubt`."""

    failed: bool
    kind: str
    at: float
    doubt: float = 0.0


def first(parts: Sequence[NodePart]) -> list[int]:
    """The places of those to blame; more than one where their order cannot be told, none where none has failed. A part
    that failed comes before one that was stopped or says nothing; of several the one whose cause lies in itself before
    those that name a lost peer, the network or the rendezvous; then the earlier one."""
    failed = [place for place, part in enumerate(parts) if part.failed]
    own = [place for place in failed if parts[place].kind not in ELSEWHERE]
    choice = sorted(own or failed, key=lambda place: parts[place].at)
    if not choice:
        return []
    begin = parts[choice[0]]
    return [
        place for place in choice if parts[place].at - begin.at <= max(_TOGETHER_S, parts[place].doubt + begin.doubt)
    ]
