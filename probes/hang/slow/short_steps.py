"""Steps of less than a reading: what a card shows is the mean of work and waiting. The card of a rank that is late
idles for a part of each step, and those of its peers wait for that long at full utilization, which takes less power."""

from collections.abc import Collection, Mapping, Sequence

from muster.probes.hang.hang_records import CardReading, Record
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.slow.looks import SPAN, CardEvidence, RankLook, cards_by_rank, few, moved
from muster.probes.hang.slow.slow_settings import SlowSettings
from muster.probes.hang.tracks.card_track import CardTrack, median
from muster.probes.hang.tracks.state import JobState


def mark(found: RankLook, record: Record, job: JobState, s: HangSettings) -> None:
    """Notes of a look which ranks' cards idle for a part, and which are pinned at full utilization while data move."""
    for rank, cards in cards_by_rank(record, job).items():
        utils = [card.util for card, track in cards if card.util is not None and track.util_at == job.now]
        if len(utils) < len(cards):
            continue
        if all(s.low_percent < util < s.high_percent for util in utils):
            found.partly[rank] = sum(utils) / len(utils)
        elif all(util >= s.high_percent for util in utils) and all(moved(track, s) for _, track in cards):
            found.pinned[rank] = all(_draws_less(card, track, s) for card, track in cards)


def _draws_less(card: CardReading, track: CardTrack, s: HangSettings) -> bool:
    usual = track.active_power(s)
    return card.power_w is not None and usual is not None and card.power_w < s.power_alive_ratio * usual


def judge(looks: Sequence[RankLook], s: SlowSettings, slow: Collection[int]) -> Mapping[int, CardEvidence]:
    """The slow ranks. `slow`: those that are SLOW already; what is usual has become another meanwhile, so that the
    power of their peers does not count any more."""
    if not looks or looks[-1].at - looks[0].at < SPAN * s.window_s or len(looks) < s.min_readings:
        return {}
    found = {}
    for rank in sorted({rank for look in looks for rank in look.partly}):
        already = rank in slow
        late = [look for look in looks if _is_late(look, rank, already=already)]
        factor = 100 / median([look.partly[rank] for look in late]) if late else 1.0
        share = len(late) / len(looks)
        if share < s.alone_share / (2 if already else 1) or factor < (s.clear_factor if already else s.factor):
            continue
        found[rank] = CardEvidence(
            rank=rank,
            peers=tuple(sorted({peer for look in late for peer in look.pinned})),
            factor=factor,
            surely=factor,
            readings=len(looks),
            waited=len(late),
            waits=len(late),
            alone=share,
            idle=True,
            since=late[0].t,
        )
    return found


def _is_late(look: RankLook, rank: int, *, already: bool) -> bool:
    """All ranks but a few are pinned, and wait for a part of the time; the card of this one idles for a part."""
    if rank not in look.partly or not look.pinned or len(look.partly) > few(len(look.partly) + len(look.pinned)):
        return False
    seen = {*look.waits, *look.goes, *look.partly, *look.pinned}
    return seen == {*look.partly, *look.pinned} and (already or all(look.pinned.values()))
