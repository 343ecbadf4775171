"""The verdict on a job at one moment: docs/hang.md has the rule in words."""

from collections.abc import Sequence

from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.idle import idle_cards, npus_wait
from muster.probes.hang.sight import UNSEEN, Finding, Sight, tracks
from muster.probes.hang.tracks.card_look import CardLook, State
from muster.probes.hang.tracks.card_track import NEVER, median
from muster.probes.hang.tracks.rank_track import RankTrack
from muster.probes.hang.verdicts import Kind, Verdict


def find(sight: Sight) -> Finding | None:
    """None where there is nothing to say yet: what was said stands."""
    finding, others = _find(sight), sight.job.others
    if others and finding and finding.verdict in (Verdict.SUSPECT, Verdict.HUNG) and not _is_its_own(finding, sight):
        finding.confidence -= UNSEEN
        finding.rule += f"; {others} other node{'s are' if others > 1 else ' is'} not seen"
        finding.missing.append("other nodes")
    return finding


def _is_its_own(finding: Finding, sight: Sight) -> bool:
    """The hang has its reason in a rank that is seen, whatever ranks of other nodes do: one that sleeps may wait for
    them."""
    if finding.kind in (Kind.STOPPED, Kind.IO_BLOCKED) or (finding.kind is Kind.LIVELOCK and sight.spins):
        return True
    return any(sight.has_left(rank) for rank in finding.odd)


def _find(sight: Sight) -> Finding | None:
    job, s = sight.job, sight.s
    hanging = [key for key, card in job.cards.items() if card.hangs]
    if job.driver_hangs or hanging:
        return Finding(
            Verdict.DRIVER_HANG,
            "driver: a call does not return",
            sight.now,
            ranks=sight.ranks_of(hanging),
            odd=dict.fromkeys(sight.ranks_of(hanging), "a call of the driver for its card does not return"),
            clears=["an answer of the driver"],
        )
    if not sight.looks and (alone := waited_for(sight)):
        return alone
    since = sight.silent_since()
    silent = sight.now - since
    quick = silent >= s.npu_suspect_ratio * s.npu_hung_s and npus_wait(sight, sight.low)
    if sight.works or (silent < s.suspect_s and not quick):
        return _alive(sight, since)
    low = [key for key in sight.low if not sight.is_unused(key)] or ([] if sight.spins or sight.dark else sight.low)
    spinning = sight.ranks_of(sight.spins)
    if sight.spins and not low and all(sight.rank_of(key) in spinning for key in sight.dark):
        return _all_spin(sight, since)
    return idle_cards(sight, low, since)


def _alive(sight: Sight, since: float) -> Finding | None:
    job, s, now = sight.job, sight.s, sight.now
    spinning = [key for key in sight.spins if sight.looks[key].state is State.SPINS]
    waiting = [key for key in spinning if now - sight.looks[key].since >= s.suspect_s]
    lively = sight.works or now - max((t.strong_at for t in job.ranks.values()), default=NEVER) <= s.recent_s
    if waiting and lively and len(waiting) < len(sight.looks):
        others = [key for key in sight.looks if key not in sight.spins]
        return Finding(
            Verdict.WAITING,
            "per rank: some cards wait while another rank works",
            min(sight.looks[key].since for key in waiting),
            ranks=sight.ranks_of(others),
            odd=dict.fromkeys(sight.ranks_of(others), "is waited for"),
            clears=["the waiting cards compute again"],
        )
    if job.slow_since is not None and now - job.slow_since >= s.window_s:
        slow = [key for key in sight.works if sight.looks[key].state is State.SLOW]
        return Finding(
            Verdict.SLOW,
            f"rate: {sight.looks[slow[0]].why}" if slow else "rate",
            job.slow_since,
            ranks=sight.ranks_of(slow),
            confidence=0.7,
            clears=["power and fabric at their usual rate"],
        )
    if sight.life_at() <= job.begun_at and not sight.works:
        return None
    rule, confidence = "processes: IO, or the network, in the last minutes", 0.95
    if sight.works:
        rule = f"cards: {sight.looks[sight.works[0]].why}"
    elif not sight.looks:
        rule, confidence = "processes: signs of life, and there is no card to tell more", 0.7
    return Finding(Verdict.ALIVE, rule, since, ranks=sight.all_ranks(), confidence=confidence)


def _does(track: RankTrack, now: float, s: HangSettings) -> str:
    return "computes on the CPU" if now - track.busy_at <= s.recent_s else "gives signs of life"


def waited_for(sight: Sight) -> Finding | None:
    """Of a job without cards: ranks that have fallen silent wait for others, which do nothing but compute, or do."""
    job, s, now = sight.job, sight.s, sight.now
    ranks = [t for t in tracks(job) if t.rank >= 0 and not t.has_ended() and not t.is_gone(now, s)]
    silent = [t for t in ranks if now - t.stirred_at >= s.suspect_s and t.stirred_at - t.stirs_since >= s.established_s]
    others = [t for t in ranks if t not in silent]
    does = [max(t.weak_at, t.log_at, t.some_cpu_at) for t in others]
    if not silent or not others or now - min(does) > s.recent_s:
        return None
    since = max(t.stirred_at for t in silent)
    finding = Finding(
        Verdict.WAITING,
        "per rank: some have fallen silent while another does not",
        since,
        ranks=tuple(t.rank for t in others),
        odd={t.rank: f"{_does(t, now, s)}, and is waited for" for t in others},
        limit_s=s.busy_s,
        limit_why="busy_s: a rank computes on the CPU",
        missing=["cards"],
        clears=["IO, or lines of a log", "the others' CPU time"],
    )
    done = max([since, sight.job.net_at, *(max(t.weak_at, t.log_at) for t in others)])
    steady = all(t.stirred_at - t.stirs_since >= s.hung_s for t in silent)
    if steady and now - done >= s.busy_s:
        finding.verdict, finding.kind, finding.since, finding.confidence = Verdict.HUNG, Kind.LIVELOCK, done, 0.4
        finding.rule = "per rank: some have fallen silent, another is busy on the CPU for too long, no IO"
    return finding


def _share(look: CardLook) -> float | None:
    """Of its own active power."""
    return look.power / look.power_active if look.power is not None and look.power_active else None


def _one_computes(looks: Sequence[CardLook], s: HangSettings) -> bool:
    """A card draws far more than the others: they may wait for it. Where no power is told, its memory says so."""
    shares = sorted(share for look in looks if (share := _share(look)) is not None)
    if len(shares) > 1:
        return shares[-1] >= s.power_apart_factor * median(shares[:-1])
    return any(not look.confirmed and look.mem is not None and look.mem > s.mem_dead_percent for look in looks)


def _draws_much(looks: Sequence[CardLook], s: HangSettings) -> bool:
    """Most cards draw less than usual, but not as little as one that waits beyond doubt."""
    return 2 * sum((_share(look) or 0.0) >= s.power_strict_ratio for look in looks) > len(looks)


def _all_spin(sight: Sight, since: float) -> Finding | None:
    """All cards are at full utilization and none shows that it computes."""
    job, s, now = sight.job, sight.s, sight.now
    looks = [sight.looks[key] for key in sight.spins]
    spinning = [look for look in looks if look.state is State.SPINS]
    confirmed = 2 * sum(look.confirmed for look in looks) >= len(looks) and not _one_computes(looks, s)
    missing = sight.missing(sight.spins)
    if not confirmed and not spinning and not sight.fell_silent(since):
        return Finding(
            Verdict.UNKNOWN,
            "cards: a flat utilization as usual here, and nothing that tells work from waiting",
            since,
            confidence=0.2,
            missing=missing,
            clears=["power, memory utilization or fabric bytes of a card", "a utilization that changes"],
        )
    log_at = max((t.log_at for t in job.ranks.values()), default=NEVER)
    limit, why, confidence = s.hung_s, "hung_s", 0.95
    if not confirmed or 2 * len(spinning) < len(looks):
        # Nothing else speaks for a hang, so whatever speaks against it counts.
        since = max(since, log_at)
        limit, why, confidence = s.weak_s, "weak_s: no second sign", 0.6 if spinning else 0.45
        if not spinning and not confirmed:
            limit, why, confidence = s.busy_s, "busy_s: neither power nor memory utilization is told", 0.3
        elif not spinning and not job.has_log:
            limit, why = s.weak_factor * s.weak_s, "weak_s, times weak_factor: neither power nor a log is told"
            confidence = 0.35
    elif len(looks) == 1 or _draws_much(looks, s):
        # Nobody else is there to be waited for, or the power may be that of small kernels: who writes lines is at work.
        since = max(since, log_at)
        if len(looks) == 1 and any(now - t.wrote_at <= s.window_s for t in job.ranks.values()):
            # Its lines may go to a file.
            confidence -= UNSEEN
    if 2 * sum(look.mid for look in looks) > len(looks):
        limit, why = limit * s.mid_factor, f"{why}, times mid_factor"
    host = sight.host_of(sight.spins)
    if job.burst_at >= since - s.save_before_s and s.save_s > limit:
        limit, why = s.save_s, "save_s: a burst of writes came before"
    if sight.waits_for_files(h for found in host.held.values() for h in found) and s.save_s > limit:
        limit, why = s.save_s, "save_s: a process waits for a file system"
    if not job.active:
        began = job.begun_at + s.startup_s - since
        if began > limit:
            limit, why = began, "startup_s: no card was active yet"
        confidence -= 0.3
    limit, why = sight.patient(limit, why)
    finding = Finding(
        Verdict.HUNG,
        "cards: " + (spinning or looks)[0].why,
        since,
        Kind.SPIN,
        sight.all_ranks(),
        {},
        limit,
        why,
        confidence - 0.05 * len(missing),
        missing,
        ["IO of a rank above the strong floor", "power near the active median", "memory or fabric in use"],
    )
    if odd := {rank: words for rank, words in sight.odd(sight.spins, host).items() if rank in host.held}:
        # These cannot go on, though their cards have not done yet what they were given.
        stopped = any(h.state == "T" for rank in odd for h in host.held[rank])
        finding.kind, finding.odd, finding.ranks = Kind.STOPPED if stopped else Kind.IO_BLOCKED, odd, tuple(sorted(odd))
    if now - since >= limit:
        return finding
    finding.verdict = Verdict.SUSPECT
    if not job.active:
        finding.verdict, finding.kind = Verdict.WAITING, None
        finding.rule = "start: cards wait, none was active yet"
    elif now - since < (s.suspect_s if limit <= s.hung_s else max(s.suspect_s, s.weak_s / 2)):
        return None
    return finding
