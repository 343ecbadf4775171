"""Which ranks stand out, and what each of them does that the others do not."""

from collections import Counter
from collections.abc import Iterable

from muster.probes.hang.facts.host import Host
from muster.probes.hang.facts.readings import Readings


def idle(r: Readings, keys: Iterable[str], host: Host) -> dict[int, str]:
    """What each rank of these cards does; without ranks that ended long ago, and cards that were never used."""
    found: dict[int, str] = {}
    for key in keys:
        rank = r.rank_of(key)
        track = r.job.ranks.get(rank)
        if rank < 0 or r.is_unused(key) or (track is not None and r.was_left_behind(track)):
            continue
        found[rank] = _does(r, rank, host)
    return found


def held(r: Readings, keys: Iterable[str], host: Host) -> dict[int, str]:
    """Of these, the ranks that cannot go on."""
    return {rank: words for rank, words in idle(r, keys, host).items() if rank in host.held}


def ended(r: Readings) -> dict[int, str]:
    """Of ranks that all wait, the few that have ended."""
    odd = [track.rank for track in r.ranks if r.is_reason(track.rank)]
    return dict.fromkeys(odd, "its process has ended") if 2 * len(odd) < len(r.ranks) else {}


def waits_otherwise(r: Readings) -> dict[int, str]:
    """Of ranks that all wait, the few that wait for something else than the most of them, or that just sleep."""
    waits = {t.rank: t.waits_in() for t in r.ranks if not t.has_ended()}
    counts = Counter(waits.values())
    places = sorted(counts, key=lambda place: (counts[place], place))
    if len(places) != 2 or not all(places):
        return {}
    few, most = places
    odd = [rank for rank, place in waits.items() if place == few]
    if 2 * len(odd) == len(waits):
        few, most = sorted(places, key=lambda place: "nanosleep" not in place)
        odd = [rank for rank, place in waits.items() if place == few] if "nanosleep" in few else []
    return dict.fromkeys(odd, f"waits in {few}, the others in {most}")


def _does(r: Readings, rank: int, host: Host) -> str:
    track = r.job.ranks.get(rank)
    if track is None or not track.is_known:
        return "the records have no process of it, its card idles"
    if r.has_ended(track):
        return "its process has ended"
    if held := host.held.get(rank):
        words = "is stopped" if held[0].state == "T" else f"cannot leave the kernel ({held[0].wchan or 'state D'})"
        return f"process {held[0].pid} {words}"
    cpu = track.doings(r.now, r.s).cpu
    return f"its card idles, {'CPU time unknown' if cpu is None else f'{cpu:g} s of CPU a minute'}"
