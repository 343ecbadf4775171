"""Table 2, continued: rows that table 3 names, and rows that count once it has decided."""

from muster.probes.hang.facts.moment import Moment, Scene
from muster.probes.hang.tables.explanation import QUIET, UNSEEN, Explanation, Sets, Step, always
from muster.probes.hang.verdicts import Kind, Verdict


def _may_wait_for_others(m: Moment) -> bool:
    """The job has nodes that are not seen, and no rank that is seen is the reason: one that sleeps may wait for
    them."""
    finding = m.finding
    if not m.job.others or finding is None or finding.verdict not in (Verdict.SUSPECT, Verdict.HUNG):
        return False
    if finding.kind in (Kind.STOPPED, Kind.IO_BLOCKED) or (finding.kind is Kind.LIVELOCK and m.cards.spins):
        return False
    return not any(m.is_reason(rank) for rank in finding.odd)


def _others_are_not_seen(m: Moment) -> str:
    return f"; {m.job.others} other node{'s are' if m.job.others > 1 else ' is'} not seen"


EXPLANATIONS_NAMED: tuple[Explanation, ...] = (
    # --- named by rows of table 3 -------------------------------------------------------------------------------------
    Explanation(
        "weak evidence",
        Step.NAMED,
        QUIET,
        words="there is nothing but weak evidence of life",
        when=always,
        scenario="U13",
        limit="weak_s",
        reason="weak_s: only weak evidence",
    ),
    Explanation(
        "a loop or work",
        Step.NAMED,
        (Scene.IDLE,),
        words="no card tells anything",
        when=lambda m: m.blind,
        scenario="P19",
        limit="never",
        amount=lambda _: None,
        sets=Sets.IS,
        reason="without any reading of a card work is not told from a loop",
    ),
    Explanation(
        "a loop or work",
        Step.NAMED,
        (Scene.STARTING,),
        words="no card tells its utilization",
        when=lambda m: m.unseen,
        scenario="P27",
        limit="never",
        amount=lambda _: None,
        sets=Sets.IS,
        reason="without any reading of a card work is not told from a loop",
    ),
    Explanation(
        "a busy host, some IO",
        Step.NAMED,
        (Scene.IDLE,),
        words="a rank computes on the CPU and does some IO, as helpers do: nobody is stopped for it",
        when=lambda m: m.now - m.host.io_at <= m.s.window_s,
        scenario="P42",
        limit="busy_s",
        reason="busy_s: a rank computes on the CPU",
        less=0.25,
    ),
    Explanation(
        "a busy host",
        Step.NAMED,
        (Scene.IDLE,),
        words="a rank computes on the CPU",
        when=always,
        scenario="H8",
        limit="busy_s",
        reason="busy_s: a rank computes on the CPU",
    ),
    Explanation(
        "a busy host",
        Step.NAMED,
        (Scene.STARTING,),
        words="a rank computes on the CPU",
        when=always,
        scenario="H10",
        limit="busy_s",
        sets=Sets.IS,
        reason="busy_s: a rank computes on the CPU",
    ),
    Explanation(
        "a busy rank",
        Step.NAMED,
        tuple(Scene),
        words="the job has no card, and a rank goes on",
        when=always,
        scenario="P20",
        limit="busy_s",
        sets=Sets.IS,
        reason="busy_s: a rank computes on the CPU",
        missing=lambda _: ["cards"],
    ),
    Explanation(
        "never active",
        Step.NAMED,
        (Scene.STARTING,),
        words="no card was active in this attempt, and nobody waits",
        when=always,
        scenario="H13",
        limit="never",
        amount=lambda _: None,
        sets=Sets.IS,
        reason="never: no card was active yet",
    ),
    Explanation(
        "a start",
        Step.NAMED,
        (Scene.STARTING,),
        words="no card was active in this attempt",
        when=always,
        scenario="P21",
        limit="startup_s",
        sets=Sets.IS,
        reason="startup_s: no card was active yet",
    ),
    Explanation(
        "the others may compute",
        Step.NAMED,
        (Scene.IDLE,),
        words="nothing says that the cards at full utilization wait",
        when=always,
        scenario="P16",
        limit="never",
        amount=lambda _: None,
        sets=Sets.IS,
        reason="never: the others may compute",
    ),
    Explanation(
        "flat utilization",
        Step.NAMED,
        (Scene.SPINNING,),
        words="a flat utilization is usual, and nothing tells work from waiting",
        when=always,
        scenario="P23",
        limit="never",
        amount=lambda _: None,
        sets=Sets.IS,
    ),
    # --- once table 3 has decided -------------------------------------------------------------------------------------
    Explanation(
        "other nodes",
        Step.AFTER,
        tuple(Scene),
        words="it is SUSPECT or HUNG, the job has nodes that are not seen, and no rank that is seen is the reason",
        when=_may_wait_for_others,
        scenario="P22",
        less=UNSEEN,
        missing=lambda _: ["other nodes"],
        adds=_others_are_not_seen,
    ),
)
