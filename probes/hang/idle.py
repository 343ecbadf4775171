"""The verdict where cards idle, or are not seen: then the processes decide."""

from muster.probes.hang.sight import UNSEEN, Finding, Host, Sight, tracks
from muster.probes.hang.tracks.card_look import Eye, State
from muster.probes.hang.tracks.rank_track import Held
from muster.probes.hang.verdicts import Kind, Verdict


def idle_cards(sight: Sight, low: list[str], since: float) -> Finding | None:
    """Some cards idle or are not seen; the others, if there are any, wait for them."""
    job, s, now = sight.job, sight.s, sight.now
    # What the rank of a spinning card does says nothing, also where it has other cards that it never used.
    spinning = sight.ranks_of(sight.spins)
    unused = [key for key in sight.low if key not in low and sight.rank_of(key) not in spinning]
    host = sight.host_of([*low, *sight.dark, *unused])
    blind = not low and not sight.spins and not any(sight.looks[key].state is State.DIM for key in sight.dark)
    dim = bool(sight.dark) and not blind and not low and not sight.spins
    missing = sight.missing(sight.looks)
    if not host.known:
        missing.append("processes")
    held = [h for found in host.held.values() for h in found]
    stopped = max((h.since for h in held if h.state == "T"), default=None)
    blocked = [h for h in held if h.state == "D"]
    limit, why, confidence = _limit(sight, low, host, blocked, missing, since, blind or dim)
    odd = sight.odd(low if sight.spins or len(host.held) else [], host)
    if not sight.spins and not host.held:
        odd = sight.left() or sight.waits_otherwise()
    if sight.spins or not host.held:
        ranks = tuple(odd) or sight.all_ranks()
    else:
        odd = {rank: words for rank, words in odd.items() if rank in host.held}
        ranks = tuple(sorted(rank for rank in host.held if rank >= 0)) or sight.all_ranks()
    quick = why.startswith("npu_hung_s")
    kind = Kind.DEADLOCK
    if stopped is not None:
        kind = Kind.STOPPED
    elif blocked:
        kind = Kind.IO_BLOCKED
    elif sight.spins:
        kind = Kind.SPIN
    elif low and all(sight.card(key).kind == "ascend" for key in low) and _fabric_fell_silent(sight, low, since):
        kind = Kind.NOTIFY_WAIT
    asleep = max(since, host.busy_at, host.weak_at)
    done = max(since, host.busy_at)
    if blind:
        # Nothing else tells work from a hang, so a little is enough.
        asleep = done = max(asleep, sight.stirred_at())
    busy = now - host.busy_at <= s.recent_s
    finding = Finding(
        Verdict.HUNG,
        "",
        since,
        kind,
        ranks,
        odd,
        limit,
        why,
        confidence,
        missing,
        [
            "IO of a rank above its floor",
            "a card's utilization that changes",
            f"{s.cpu_busy_s:g} s of CPU a minute",
        ],
        asleep=True,
    )
    weak, starting = max(limit, s.weak_s), not job.active
    if starting and not sight.spins:
        return _never_active(sight, finding, host, busy, blind or dim)
    begun = job.begun_at + (s.startup_busy_s if busy else s.startup_s)
    may = host.known and (not starting or now >= begun)
    if may and stopped is not None and now - max(since, stopped) >= min(limit, s.hung_s):
        finding.kind, finding.rule = Kind.STOPPED, "processes: one is stopped by a signal"
    elif _peers_are_unsure(sight) and (starting or not sight.fell_silent(since)):
        finding.verdict, finding.kind, finding.confidence = Verdict.UNKNOWN, None, 0.2
        finding.rule = "cards: a flat utilization as usual here, and nothing that tells work from waiting"
        finding.limit_s, finding.limit_why = None, "never: the others may compute"
    elif may and (now - asleep >= limit or (now - done >= weak and now - asleep >= weak - s.suspect_s)):
        # Weak evidence that ended soon after all else says nothing of what goes on since.
        finding.rule = _words(sight, finding, quick)
        finding.since = asleep
    elif may and now - done >= weak:
        finding.kind = Kind.IO_BLOCKED if blocked else Kind.LIVELOCK
        finding.rule = f"processes: nothing but weak evidence of life ({host.weak}), cards idle"
        finding.since, finding.limit_s, finding.limit_why = done, weak, "weak_s: only weak evidence"
        finding.confidence -= 0.15
    elif may and not blind and now - max(since, host.log_at) >= max(s.busy_s, limit):
        # Who computes and writes lines is at work. A little IO is that of helpers as well, so it is only less certain.
        finding.kind, finding.asleep, finding.since = Kind.LIVELOCK, False, max(since, host.log_at)
        finding.rule = "processes: busy on the CPU for too long, no lines of a log, cards idle"
        finding.limit_s, finding.limit_why = max(s.busy_s, limit), "busy_s: a rank computes on the CPU"
        finding.confidence -= 0.5 if now - host.io_at <= s.window_s else 0.25
        computing = [t.rank for t in tracks(job) if t.rank >= 0 and now - t.busy_at <= s.recent_s]
        if not sight.spins and 0 < 2 * len(computing) < len(sight.all_ranks()):
            finding.odd = dict.fromkeys(computing, "computes on the CPU")
            finding.ranks = tuple(computing)
    elif busy:
        return _busy(sight, finding, host, blind)
    elif starting and now - since >= s.suspect_s:
        finding.verdict, finding.kind = Verdict.WAITING, None
        finding.rule = "start: cards wait, none was active yet"
    elif now - asleep >= min(s.suspect_s, s.npu_suspect_ratio * limit) or now - done >= max(s.suspect_s, s.weak_s / 2):
        finding.verdict, finding.rule = Verdict.SUSPECT, _words(sight, finding, quick)
        finding.since = done if now - asleep < min(s.suspect_s, s.npu_suspect_ratio * limit) else asleep
        if (blind or dim) and sight.looks:
            finding.verdict, finding.kind = Verdict.UNKNOWN, None
            finding.rule = "processes are silent, and no utilization is told"
    else:
        return None
    return finding


def _busy(sight: Sight, finding: Finding, host: Host, blind: bool) -> Finding | None:
    if sight.now - finding.since < sight.s.suspect_s:
        return None
    finding.verdict, finding.kind, finding.confidence = Verdict.BUSY_HOST, None, 0.8
    finding.rule = "processes: a rank computes on the CPU, cards idle"
    finding.limit_s, finding.limit_why = (
        max(sight.s.busy_s, finding.limit_s or 0),
        "busy_s: a rank computes on the CPU",
    )
    busy = tuple(sorted(r for r, t in sight.job.ranks.items() if r >= 0 and sight.now - t.busy_at <= sight.s.recent_s))
    if sight.spins:
        busy = tuple(rank for rank in busy if rank not in sight.ranks_of(sight.spins))
    else:
        finding.ranks, finding.odd = busy or finding.ranks, {}
        if blind:
            finding.limit_s, finding.limit_why = None, "without any reading of a card work is not told from a loop"
            if sight.looks:
                finding.verdict, finding.confidence = Verdict.UNKNOWN, 0.3
        return finding
    finding.verdict, finding.ranks = Verdict.WAITING, busy or finding.ranks
    finding.rule = "per rank: cards wait for a rank that computes on the CPU"
    finding.odd = dict.fromkeys(finding.ranks, "computes on the CPU, and is waited for")
    return finding


def _never_active(sight: Sight, finding: Finding, host: Host, busy: bool, unseen: bool) -> Finding | None:
    """Nothing of this attempt was active yet, and nobody spins."""
    job, s, now = sight.job, sight.s, sight.now
    finding.limit_s, finding.limit_why = None, "never: no card was active yet"
    if host.held:
        return _stuck_at_start(sight, finding, host)
    if now - host.weak_at <= s.recent_s and host.weak == "some IO":
        finding.verdict, finding.kind, finding.rule = (
            Verdict.ALIVE,
            None,
            "processes: some IO, cards not yet active",
        )
        finding.confidence = 0.7
    elif busy:
        return _busy(sight, finding, host, unseen)
    elif now - max(finding.since, host.busy_at) < s.suspect_s:
        return None
    elif job.active_before and not unseen and now - max(job.begun_at, host.busy_at, host.weak_at) >= s.startup_s:
        finding.rule = "start: cards were never active in this attempt, in another they were; processes sleep"
        finding.limit_s, finding.limit_why = s.startup_s, "startup_s: no card was active yet"
        finding.confidence -= 0.3
    elif unseen and sight.looks:
        finding.verdict, finding.kind, finding.confidence = Verdict.UNKNOWN, None, 0.3
        finding.rule = "processes are silent, and no utilization is told"
    else:
        finding.verdict, finding.kind, finding.confidence = Verdict.IDLE, None, 0.8
        finding.rule = "start: cards were never active, processes sleep"
        finding.ranks, finding.odd = sight.all_ranks(), {}
    return finding


def _stuck_at_start(sight: Sight, finding: Finding, host: Host) -> Finding | None:
    """A process that cannot go on is not idle, also where nothing was active yet."""
    since = max(finding.since, min(h.since for found in host.held.values() for h in found))
    if sight.now - since < sight.s.suspect_s:
        return None
    stopped = any(h.state == "T" for found in host.held.values() for h in found)
    finding.kind = Kind.STOPPED if stopped else Kind.IO_BLOCKED
    finding.rule = (
        f"processes: one {'is stopped by a signal' if stopped else 'cannot leave the kernel'}, from the start"
    )
    finding.since, finding.limit_s, finding.limit_why = since, sight.s.startup_s, "startup_s: no card was active yet"
    finding.verdict = Verdict.HUNG if sight.now - since >= sight.s.startup_s else Verdict.SUSPECT
    finding.confidence -= 0.3
    return finding


def _limit(
    sight: Sight, low: list[str], host: Host, blocked: list[Held], missing: list[str], since: float, unseen: bool
) -> tuple[float, str, float]:
    """Seconds of sleep after which it is HUNG, the reason, and the confidence then."""
    s = sight.s
    limit, why, confidence = s.hung_s, "hung_s", 0.9
    quick = low and not sight.spins and not sight.dark and not host.held and host.io_known and host.cpu_known
    if quick and npus_wait(sight, low):
        limit, why = s.npu_hung_s, "npu_hung_s: the fabric of all NPUs fell silent after steady work"
    if not host.io_known or not host.cpu_known:
        missing += [name for name, known in (("io", host.io_known), ("cpu_s", host.cpu_known)) if not known]
        confidence -= 0.2
        if s.weak_s > limit:
            limit, why = s.weak_s, f"weak_s: {' and '.join(missing)} not told"
    if any(not h.wchan for h in blocked):
        # It may be a file server that lets it wait.
        missing.append("wchan")
        confidence -= UNSEEN
    if not sight.looks and sight.all_stopped_stirring(since):
        confidence = min(confidence, 0.6)
    elif sight.dark or not sight.looks:
        confidence = min(confidence, 0.4) if unseen else confidence - 0.2
        if s.weak_s > limit:
            limit, why = s.weak_s, "weak_s: utilization is not told"
    if _peers_are_unsure(sight) and s.weak_s > limit:
        limit, why, confidence = s.weak_s, "weak_s: nothing tells that the other cards wait", confidence - 0.4
    # Of what cards do that are not seen, the processes tell when the save was over.
    long = _long_wait(sight, blocked, max(sight.life_at(), sight.stirred_at()) if unseen else sight.life_at())
    if long and s.save_s > limit:
        limit, why = s.save_s, long
    limit, why = sight.patient(limit, why)
    return limit, why, confidence


def _peers_are_unsure(sight: Sight) -> bool:
    """That the cards that do not idle wait is not known: they may as well compute."""
    peers = [sight.looks[key] for key in sight.spins]
    return bool(peers) and not any(look.state is State.SPINS or look.confirmed for look in peers)


def _long_wait(sight: Sight, blocked: list[Held], life: float) -> str:
    """Why it may take long, or nothing."""
    if sight.waits_for_files(blocked):
        return "save_s: a process waits for a file system"
    if sight.job.burst_at >= life - sight.s.save_before_s:
        return "save_s: a burst of writes came before"
    return ""


def npus_wait(sight: Sight, low: list[str]) -> bool:
    """All NPUs idle after steady work, none of their fabrics moves data, all ranks wait for a lock."""
    job, s = sight.job, sight.s
    return (
        bool(low)
        and len(low) == len(sight.looks)
        and job.spell_at - job.spell_since >= s.established_s
        and all(sight.card(key).kind == "ascend" for key in low)
        and _fabric_fell_silent(sight, low, sight.silent_since())
        and all(t.waits_in_futex() for t in job.ranks.values() if t.is_known and t.rank >= 0)
    )


def _fabric_fell_silent(sight: Sight, keys: list[str], since: float) -> bool:
    return all(Eye(sight.card(key), sight.now, sight.s).fabric_dead(since) for key in keys)


def _words(sight: Sight, finding: Finding, quick: bool) -> str:
    if finding.kind is Kind.STOPPED:
        return "processes: one is stopped by a signal"
    if finding.kind is Kind.IO_BLOCKED:
        return "processes: one cannot leave the kernel, no IO, cards idle"
    if finding.kind is Kind.SPIN:
        return "per rank: cards wait for a rank that does nothing"
    if quick:
        return "npu: utilization, fabric and CPU time all near 0"
    return "processes: no IO and no CPU time" + (", cards idle" if sight.looks else "")
