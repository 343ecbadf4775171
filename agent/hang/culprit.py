"""Who is to blame for a hang, from the stacks of its ranks: those that are elsewhere than their peers."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.agent.text import ranks as named
from muster.probes.stacks import ProcessStacks
from muster.probes.stacks.waits import WORDS, WaitKind, WaitPlace, place_of

#: Most ranks that are blamed, as a share of all: of two halves nobody knows which is right.
_FEW = 1 / 3
#: What a rank may do in which others wait for it. One that waits for a socket or at a prompt may be idle.
_ELSEWHERE = frozenset(WaitKind) - {WaitKind.COLLECTIVE, WaitKind.RENDEZVOUS, WaitKind.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Culprit:
    """`ranks` are elsewhere, at `place` (of the first of them), while `peers` wait for them, at `waits`."""

    ranks: tuple[int, ...]
    place: WaitPlace
    peers: tuple[int, ...]
    waits: WaitPlace

    def sentence(self, since: float) -> str:
        """ "rank 2 sleeps in guilty (train.py:11) since 10:04:11; ranks 0, 1 and 3 wait for it in all_reduce". `since`
        in seconds since the epoch."""
        at = time.strftime("%H:%M:%S", time.localtime(since))
        verb, whom = ("wait", "it") if len(self.peers) > 1 else ("waits", "it")
        whom = "them" if len(self.ranks) > 1 else whom
        where = self.waits.call or self.waits.line
        text = self.place.text if len(self.ranks) == 1 else _plural(self.place)
        return f"{named(self.ranks)} {text} since {at}; {named(self.peers)} {verb} for {whom}" + (
            f" in {where}" if where else ""
        )


def find(processes: Iterable[ProcessStacks], leaders: Mapping[int, int]) -> Culprit | None:
    """None where the stacks do not show it. `leaders`: the ranks' own processes, by rank; of a rank without one the
    first process counts."""
    places: dict[int, WaitPlace] = {}
    for process in processes:
        if process.rank not in places or process.pid == leaders.get(process.rank):
            places[process.rank] = place_of(process)
    waiting = [rank for rank, place in places.items() if place.kind in (WaitKind.COLLECTIVE, WaitKind.RENDEZVOUS)]
    others = [rank for rank in places if rank not in waiting]
    if waiting and others and _all_elsewhere(others, places):
        # All but a few are in a collective; of two ranks one may be.
        if len(others) <= max(1, int(_FEW * len(places))):
            return _culprit(others, waiting, places)
        return None
    if not waiting:
        return _apart(places)
    return None


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


def _plural(place: WaitPlace) -> str:
    words = WORDS[place.kind]
    for one, many in (("waits", "wait"), ("sleeps", "sleep"), ("runs", "run"), ("compiles", "compile"),
                      ("saves or loads", "save or load"), ("is ", "are ")):  # fmt: skip
        if words.startswith(one):
            words = many + words[len(one) :]
            break
    where = place.line or place.call
    return f"{words} in {where}" if where else words
