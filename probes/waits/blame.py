"""The ranks to blame for a hang: those that are elsewhere than their peers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from muster.probes.kernel.dataclass import dataclass
from muster.probes.waits.wait_places import WaitKind, WaitPlace

#: Most ranks that are blamed, as a share of all: of two halves nobody knows which is right.
_FEW = 1 / 3
#: Where a process waits for other ranks.
IN_COLLECTIVE = (WaitKind.COLLECTIVE, WaitKind.RENDEZVOUS)
#: What a rank may do while others wait for it.
_ELSEWHERE = frozenset(WaitKind) - {*IN_COLLECTIVE, WaitKind.UNKNOWN}
#: Where a program waits that has nothing to do until somebody asks it: no hang, however long that is.
AT_REST = frozenset({WaitKind.SERVER, WaitKind.PROMPT})


@dataclass(frozen=True, slots=True)
class LibraryWait:
    """Where a communication library says that ranks wait at `t` (seconds since the epoch), by two looks between which
    nothing moved.

    `inside`: ranks that wait in a collective, and its name; `absent`: ranks that did not come and wait in none; both
    empty where something moved, or where that is not known. `text`: one sentence.
    """

    t: float
    text: str
    inside: tuple[tuple[int, str], ...] = ()
    absent: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Culprit:
    """`ranks` are elsewhere, at `place` (of the first of them), while `peers` wait for them, at `waits`."""

    ranks: tuple[int, ...]
    place: WaitPlace
    peers: tuple[int, ...]
    waits: WaitPlace

    @property
    def does(self) -> str:
        """Behind the names of the ranks: "sleeps in guilty (train.py:11)"."""
        return self.place.text if len(self.ranks) == 1 else self.place.plural

    def as_evidence(self) -> dict[str, Any]:
        """As JSON takes it. `waits_in`: where the peers wait, a function or a line."""
        return {
            "ranks": list(self.ranks),
            "does": self.does,
            "kind": str(self.place.kind),
            "at": self.place.line or self.place.call,
            "peers": list(self.peers),
            "waits_in": self.waits.call or self.waits.line,
        }


def blame(places: Mapping[int, WaitPlace], wait_on_card: Collection[int] = ()) -> Culprit | None:
    """None where the places do not show it. `wait_on_card`: ranks whose cards are known to wait in a collective,
    wherever their processes are."""
    waiting = [rank for rank, place in places.items() if waits_for_others(place, on_card=rank in wait_on_card)]
    others = [rank for rank in places if rank not in waiting]
    if waiting and others and _all_elsewhere(others, places):
        # All but a few are in a collective; of two ranks one may be.
        if len(others) <= max(1, int(_FEW * len(places))):
            return _culprit(others, waiting, places)
        return None
    if not waiting:
        return _apart(places)
    return None


def waits_for_others(place: WaitPlace, *, on_card: bool) -> bool:
    """In a collective, by its frames or by its card (`on_card`)."""
    held = (WaitKind.STOPPED, WaitKind.TRACED, WaitKind.BLOCKED)
    return place.kind in IN_COLLECTIVE or (on_card and place.kind not in held)


def _apart(places: Mapping[int, WaitPlace]) -> Culprit | None:
    """Where no frame of a library shows a collective: most ranks wait at one line of the program, a few elsewhere."""
    by_place: dict[tuple[WaitKind, str], list[int]] = {}
    for rank, place in places.items():
        by_place.setdefault((place.kind, place.line), []).append(rank)
    most = max(by_place.values(), key=len, default=[])
    others = [rank for rank in places if rank not in most]
    if not others or not most or len(others) > int(_FEW * len(places)):
        return None
    if places[most[0]].kind is not WaitKind.LOCK or not _all_elsewhere(others, places):
        return None
    return _culprit(others, most, places)


def _all_elsewhere(others: Sequence[int], places: Mapping[int, WaitPlace]) -> bool:
    return all(places[rank].kind in _ELSEWHERE for rank in others)


def _culprit(odd: Sequence[int], peers: Sequence[int], places: Mapping[int, WaitPlace]) -> Culprit:
    odd, peers = sorted(odd), sorted(peers)
    first = next((rank for rank in peers if places[rank].call), peers[0])
    return Culprit(tuple(odd), places[odd[0]], tuple(peers), places[first])
