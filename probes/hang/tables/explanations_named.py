"""Table 2, continued: rows that table 3 names, and rows that count once it has decided."""

from muster.probes.hang.facts.moment import JobMoment, Scene
from muster.probes.hang.tables.explanation import QUIET, UNSEEN, ExplanationRow, RowSets, RowStep, always
from muster.probes.hang.verdicts import HangKind, HangVerdict


def _may_wait_for_others(m: JobMoment) -> bool:
    """The job has nodes that are not seen, and no rank that is seen is the reason: one that sleeps may wait for
    them."""
    decision = m.decision
    if not m.job.others or decision is None or decision.verdict not in (HangVerdict.SUSPECT, HangVerdict.HUNG):
        return False
    loops = decision.kind is HangKind.LIVELOCK and bool(m.cards.spins)
    if loops or m.is_proven or decision.kind in (HangKind.STOPPED, HangKind.IO_BLOCKED):
        return False
    return not any(m.is_reason(rank) for rank in decision.odd)


def _others_are_not_seen(m: JobMoment) -> str:
    return f"; {m.job.others} other node{'s are' if m.job.others > 1 else ' is'} not seen"


EXPLANATIONS_NAMED: tuple[ExplanationRow, ...] = (
    # --- named by rows of table 3 -------------------------------------------------------------------------------------
    ExplanationRow(
        "proof",
        RowStep.NAMED,
        tuple(Scene),
        words="the stacks prove who does not go on",
        when=always,
        scenario="S1",
        limit="proof_s or hung_s, the shorter one",
        amount=lambda m: min(m.s.proof_s, m.s.hung_s),
        sets=RowSets.IS,
        reason="proof_s: the stacks prove it",
    ),
    ExplanationRow(
        "a call that makes nothing",
        RowStep.NAMED,
        tuple(Scene),
        words="a rank stays in one call and touches no memory anew: a loop of C, or a computation in place, and until "
        "then too unsure to act",
        when=always,
        scenario="S32",
        limit="busy_s",
        sets=RowSets.IS,
        reason="busy_s: a rank computes in one call",
    ),
    ExplanationRow(
        "a call that does not return",
        RowStep.NAMED,
        tuple(Scene),
        words="a rank stays in one call, on one CPU, and never waits, and the others wait for it: too unsure to act",
        when=lambda m: m.stacks.one_call is not None,
        scenario="S30",
        limit="hung_s",
        sets=RowSets.IS,
        reason="hung_s: a rank stays in one call",
    ),
    ExplanationRow(
        "a loop in one place",
        RowStep.NAMED,
        tuple(Scene),
        words="a rank runs through the same lines, and the others wait for it: too unsure to act",
        when=always,
        scenario="S24",
        limit="weak_s",
        sets=RowSets.IS,
        reason="weak_s: a rank runs through the same lines",
    ),
    ExplanationRow(
        "weak evidence",
        RowStep.NAMED,
        QUIET,
        words="the only evidence of life is weak",
        when=always,
        scenario="U13",
        limit="weak_s",
        reason="weak_s: only weak evidence",
    ),
    ExplanationRow(
        "a loop or work",
        RowStep.NAMED,
        (Scene.IDLE,),
        words="no card reports anything",
        when=lambda m: m.blind,
        scenario="P19",
        limit="never",
        amount=lambda _: None,
        sets=RowSets.IS,
        reason="without readings of a card, a loop looks like work",
    ),
    ExplanationRow(
        "a loop or work",
        RowStep.NAMED,
        (Scene.STARTING,),
        words="no card reports utilization",
        when=lambda m: m.unseen,
        scenario="P27",
        limit="never",
        amount=lambda _: None,
        sets=RowSets.IS,
        reason="without readings of a card, a loop looks like work",
    ),
    ExplanationRow(
        "a busy host, some IO",
        RowStep.NAMED,
        (Scene.IDLE,),
        words="a rank computes on the CPU and does some IO, as helpers do: too unsure to act",
        when=lambda m: m.now - m.host.io_at <= m.s.window_s,
        scenario="P42",
        limit="busy_s",
        reason="busy_s: a rank computes on the CPU",
        less=0.25,
    ),
    ExplanationRow(
        "a busy host, no log",
        RowStep.NAMED,
        (Scene.IDLE,),
        words="a rank computes on the CPU, and the records have no log, which would tell a loop from work: too unsure "
        "to act",
        when=lambda m: not m.host.log_known,
        scenario="P48",
        limit="busy_s",
        reason="busy_s: a rank computes on the CPU, {missing} unknown",
        less=0.25,
        missing=("log",),
    ),
    ExplanationRow(
        "a busy host",
        RowStep.NAMED,
        (Scene.IDLE,),
        words="a rank computes on the CPU",
        when=always,
        scenario="H8",
        limit="busy_s",
        reason="busy_s: a rank computes on the CPU",
    ),
    ExplanationRow(
        "a busy host",
        RowStep.NAMED,
        (Scene.STARTING,),
        words="a rank computes on the CPU",
        when=always,
        scenario="H10",
        limit="busy_s",
        sets=RowSets.IS,
        reason="busy_s: a rank computes on the CPU",
    ),
    ExplanationRow(
        "a busy rank",
        RowStep.NAMED,
        tuple(Scene),
        words="the job has no card, and a rank goes on",
        when=always,
        scenario="P20",
        limit="busy_s",
        sets=RowSets.IS,
        reason="busy_s: a rank computes on the CPU",
        missing=("cards",),
    ),
    ExplanationRow(
        "never active",
        RowStep.NAMED,
        (Scene.STARTING,),
        words="no card was active in this attempt, and none waits",
        when=always,
        scenario="H13",
        limit="never",
        amount=lambda _: None,
        sets=RowSets.IS,
        reason="never: no card was active yet",
    ),
    ExplanationRow(
        "a start",
        RowStep.NAMED,
        (Scene.STARTING,),
        words="no card was active in this attempt",
        when=always,
        scenario="P21",
        limit="startup_s",
        sets=RowSets.IS,
        reason="startup_s: no card was active yet",
    ),
    ExplanationRow(
        "the others may compute",
        RowStep.NAMED,
        (Scene.IDLE,),
        words="nothing says that the cards at full utilization wait",
        when=always,
        scenario="P16",
        limit="never",
        amount=lambda _: None,
        sets=RowSets.IS,
        reason="never: the others may compute",
    ),
    ExplanationRow(
        "flat utilization",
        RowStep.NAMED,
        (Scene.SPINNING,),
        words="a flat utilization is usual, and nothing distinguishes work from waiting",
        when=always,
        scenario="P23",
        limit="never",
        amount=lambda _: None,
        sets=RowSets.IS,
    ),
    # --- once table 3 has decided -------------------------------------------------------------------------------------
    ExplanationRow(
        "other nodes",
        RowStep.AFTER,
        tuple(Scene),
        words="the verdict is SUSPECT or HUNG, the job has nodes without records, and no rank here is the reason",
        when=_may_wait_for_others,
        scenario="P22",
        less=UNSEEN,
        missing=("other nodes",),
        adds=_others_are_not_seen,
    ),
)
