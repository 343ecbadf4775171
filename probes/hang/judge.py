"""The verdict on a job at one moment: docs/hang.md has the rule in words."""

from probes.hang.card_look import State
from probes.hang.card_track import NEVER
from probes.hang.idle import NPU_SUSPECT, idle_cards, npus_wait
from probes.hang.sight import RECENT, Finding, Sight
from probes.hang.verdicts import Kind, Verdict


def find(sight: Sight) -> Finding | None:
    """None where there is nothing to say yet: what was said stands."""
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
    since = sight.silent_since()
    silent = sight.now - since
    quick = silent >= NPU_SUSPECT * s.npu_hung_s and npus_wait(sight, sight.low)
    if sight.works or (silent < s.suspect_s and not quick):
        return _alive(sight, since)
    low = [key for key in sight.low if not sight.is_unused(key)] or ([] if sight.spins or sight.dark else sight.low)
    if sight.spins and not low and not sight.dark:
        return _all_spin(sight, since)
    return idle_cards(sight, low, since)


def _alive(sight: Sight, since: float) -> Finding | None:
    job, s, now = sight.job, sight.s, sight.now
    spinning = [key for key in sight.spins if sight.looks[key].state is State.SPINS]
    waiting = [key for key in spinning if now - sight.looks[key].since >= s.suspect_s]
    lively = sight.works or now - max((t.strong_at for t in job.ranks.values()), default=NEVER) <= RECENT * s.period_s
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
    rule = (
        f"cards: {sight.looks[sight.works[0]].why}"
        if sight.works
        else "processes: IO, or the network, in the last minutes"
    )
    return Finding(Verdict.ALIVE, rule, since, ranks=sight.all_ranks(), confidence=0.95)


def _all_spin(sight: Sight, since: float) -> Finding | None:
    """All cards are at full utilization and none shows that it computes."""
    job, s, now = sight.job, sight.s, sight.now
    looks = [sight.looks[key] for key in sight.spins]
    spinning = [look for look in looks if look.state is State.SPINS]
    confirmed = 2 * sum(look.confirmed for look in looks) >= len(looks)
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
            limit, why, confidence = 2 * s.weak_s, "twice weak_s: neither power nor a log is told", 0.35
    if 2 * sum(look.mid for look in looks) > len(looks):
        limit, why = limit * s.mid_factor, f"{why}, times mid_factor"
    if job.burst_at >= since - s.save_before_s and s.save_s > limit:
        limit, why = s.save_s, "save_s: a burst of writes came before"
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
    if now - since >= limit:
        return finding
    finding.verdict = Verdict.SUSPECT
    if not job.active:
        finding.verdict, finding.kind = Verdict.WAITING, None
        finding.rule = "start: cards wait, none was active yet"
    elif now - since < (s.suspect_s if limit <= s.hung_s else max(s.suspect_s, s.weak_s / 2)):
        return None
    return finding
