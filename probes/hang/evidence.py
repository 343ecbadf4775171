"""What a verdict rests on, for people and programs: readings, thresholds, windows, what is missing."""

from collections.abc import Mapping
from typing import Any

from muster.probes.hang.facts.moment import Decision, JobMoment
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.hang.verdicts import HangVerdict

_ALWAYS = ("period_s", "window_s", "suspect_s", "hung_s", "write_floor_bytes", "read_floor_bytes")
_CPU = ("cpu_idle_s", "cpu_busy_s", "low_percent")
_CARDS = (
    *("flat_variance", "high_percent", "power_hung_ratio", "power_alive_ratio", "mem_dead_percent"),
    *("fabric_floor_bytes", "fabric_dead_ratio"),
)
#: Verdicts of which stacks may show for whom the others wait.
_NAMES_A_CULPRIT = (HangVerdict.SUSPECT, HangVerdict.HUNG, HangVerdict.WAITING, HangVerdict.BUSY_HOST)


def evidence(m: JobMoment, decision: Decision) -> dict[str, Any]:
    """As JSON takes it. Times are those of the records, in seconds since the epoch; durations in seconds."""
    job, s = m.job, m.s
    found: dict[str, Any] = {
        "at": round(job.t, 3),
        "row": decision.row,
        "rule": decision.rule,
        "since": round(_wall(m, decision.since), 3),
        "silent_s": round(job.now - (decision.since if decision.kind else m.since), 1),
        "limit_s": None if decision.limit.seconds is None else round(decision.limit.seconds, 1),
        "limit": decision.limit.why,
        "limit_rows": decision.limit.rows,
        "odd_ranks": {str(rank): words for rank, words in decision.odd.items()},
        "processes": {str(track.rank): _rank(m, track.rank) for track in m.tracks},
        "cards": [_card(m, key) for key in m.looks],
        "net_at": _or_none(m, job.net_at),
        "last_work": _or_none(m, job.work_at),
        "active": job.active,
        "survived_s": round(job.survived_s, 1),
        "missing": decision.limit.missing,
        "would_clear": list(decision.clears),
        "thresholds": _thresholds(s, decision),
    }
    if decision.verdict in _NAMES_A_CULPRIT and (blamed := m.stacks.culprit) is not None:
        found["culprit"] = blamed.as_evidence()
    if job.library_text and job.library_at >= m.stacks.since:
        found["library"] = job.library_text
    return found


def _wall(m: JobMoment, at: float) -> float:
    return m.job.t - (m.job.now - at)


def _or_none(m: JobMoment, at: float) -> float | None:
    return None if at <= NEVER else round(_wall(m, at), 3)


def _rank(m: JobMoment, rank: int) -> Mapping[str, Any]:
    track = m.job.ranks[rank]
    doings = track.doings(m.now, m.s)
    held = track.held(m.now, 0.0, m.s.gone_s)
    return {
        "write_bytes_per_min": doings.written,
        "read_bytes_per_min": doings.read,
        "cpu_s_per_min": doings.cpu,
        "log_bytes_per_min": doings.log,
        "last_io": _or_none(m, track.strong_at),
        "last_weak_io": _or_none(m, track.weak_at),
        "last_log": _or_none(m, track.log_at),
        "gone": track.is_gone(m.now, m.s) or track.has_ended(),
        "waits": _waits(m, rank),
        "held": [{"pid": h.pid, "state": h.state, "wchan": h.wchan, "since": _or_none(m, h.since)} for h in held],
    }


def _waits(m: JobMoment, rank: int) -> Mapping[str, Any] | None:
    """By the last dumps of stacks of this silence."""
    wait = m.stacks.waits.get(rank)
    if wait is None:
        return None
    return {
        "kind": str(wait.kind),
        "call": wait.call,
        "line": wait.line,
        "since": _or_none(m, wait.since),
        "looks": wait.looks,
        "still_since": _or_none(m, wait.still_since),
        "still_looks": wait.still_looks,
        "barren_since": _or_none(m, wait.barren_since),
        "barren_looks": wait.barren_looks,
    }


def _card(m: JobMoment, key: str) -> Mapping[str, Any]:
    track, look = m.job.cards[key], m.looks[key]

    to_minute = 60 / m.s.period_s

    def rounded(value: float | None, factor: float = 1.0) -> float | None:
        return None if value is None else round(value * factor, 2)

    return {
        "index": track.index,
        "rank": track.rank,
        "kind": track.kind,
        "state": str(look.state),
        "why": look.why,
        "since": _or_none(m, look.since),
        "samples": look.samples,
        "util_median": rounded(look.util),
        "util_variance": rounded(look.variance),
        "power_w_median": rounded(look.power),
        "power_w_active": rounded(look.power_active),
        "mem_util_median": rounded(look.mem),
        "fabric_bytes_per_min": rounded(look.fabric, to_minute),
        "fabric_bytes_per_min_active": rounded(look.fabric_active, to_minute),
    }


def _thresholds(s: HangSettings, decision: Decision) -> Mapping[str, Any]:
    names = [*_ALWAYS, *(_CARDS if decision.on_cards else _CPU)]
    return {name: getattr(s, name) for name in names}
