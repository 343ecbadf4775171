"""The present verdict of a job that hangs: its sentence, its event, and whom it blames."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from muster.agent.events.event_store import Event
from muster.agent.hang.kept_stacks import JobStacks
from muster.agent.text import ranks as named
from muster.agent.text import time_of_day
from muster.probes.hang import Change, HangVerdict
from muster.probes.kernel.dataclass import dataclass
from muster.probes.waits import blame, place
from muster.supervisors.model.lifecycle import Job

#: Limit of a sentence of evidence, in characters.
_SHOWN = 300

#: Verdicts about a job that is silent.
QUIET = (HangVerdict.SUSPECT, HangVerdict.HUNG)
_KINDS = {
    HangVerdict.SUSPECT: "job.suspected_hang",
    HangVerdict.HUNG: "job.hung",
    HangVerdict.DRIVER_HANG: "job.driver_hang",
}
_RECOVERED = "job.recovered"


@dataclass(frozen=True, slots=True)
class CurrentHang:
    """The present verdict of a job. `since` and `at` in seconds since the epoch. `now`: the evidence of the last
    record; None: there is none but that of the change."""

    change: Change
    since: float
    at: float
    now: Mapping[str, Any] | None = None

    @property
    def evidence(self) -> Mapping[str, Any]:
        """Of the last record, if that has some."""
        if self.now is None:
            return self.change.evidence
        blamed = self.change.evidence.get("culprit")
        return self.now if blamed is None or "culprit" in self.now else {**self.now, "culprit": blamed}

    @property
    def is_proven(self) -> bool:
        """Whether the job hangs, and is not only suspected to."""
        return self.change.verdict in (HangVerdict.HUNG, HangVerdict.DRIVER_HANG)

    @property
    def reason(self) -> str:
        """One sentence: the culprit, as soon as stacks show it, or the rule, and what it saw."""
        evidence = self.evidence
        known = self.change if "culprit" not in evidence else dataclasses.replace(self.change, evidence=evidence)
        return sentence(known)


def sentence(change: Change) -> str:
    """For people: the culprit, where stacks show it; else the verdict, the ranks, and why."""
    if blamed := change.evidence.get("culprit"):
        since = change.evidence.get("since")
        text = _blaming(blamed, since if isinstance(since, (int, float)) else change.t)
        return (text if change.verdict is HangVerdict.HUNG else f"{change.verdict}: {text}")[:_SHOWN]
    kind = f" ({change.kind})" if change.kind else ""
    odd = change.evidence.get("odd_ranks") or {}
    who = f"; {named(change.ranks)}" if change.ranks else ""
    words = "; ".join(f"rank {rank}: {text}" for rank, text in list(odd.items())[:3])
    silent = change.evidence.get("silent_s")
    how_long = f" for {silent:.0f} s" if isinstance(silent, (int, float)) and change.verdict in QUIET else ""
    text = f"{change.verdict}{kind}{how_long}{who if not words else ''}: {change.evidence.get('rule', '')}"
    return (text + (f"; {words}" if words else ""))[:_SHOWN]


def _blaming(culprit: Mapping[str, Any], since: float) -> str:
    """ "rank 2 sleeps in guilty (train.py:11) since 10:04:11; ranks 0,1,3 wait for it in all_reduce".

    `culprit`: as the evidence of a verdict has it; `since` in seconds since the epoch."""
    at = time_of_day(since)
    ranks, peers, where = tuple(culprit["ranks"]), tuple(culprit["peers"]), culprit["waits_in"]
    verb, whom = "wait" if len(peers) > 1 else "waits", "them" if len(ranks) > 1 else "it"
    text = f"{named(ranks)} {culprit['does']} since {at}"
    return f"{text}; {named(peers)} {verb} for {whom}" + (f" in {where}" if where else "") if peers else text


def event_kind(change: Change) -> str:
    """The kind of the event about a change; empty: no event."""
    return _KINDS.get(change.verdict, _RECOVERED if "recovered" in change.evidence else "")


def event_of(kind: str, change: Change, attempt: int, at: float) -> Event:
    """The event of this kind about a change in this attempt. `at`: in seconds since the epoch."""
    attributes = {
        "verdict": str(change.verdict),
        "kind": str(change.kind or ""),
        "ranks": ",".join(map(str, change.ranks)),
        "confidence": f"{change.confidence:g}",
        "attempt": str(attempt),
    }
    attributes = {name: value for name, value in attributes.items() if value}
    text = sentence(change)
    if kind == _RECOVERED:
        how = (change.evidence.get("recovered") or {}).get("how", "")
        calm = change.verdict in (HangVerdict.WAITING, HangVerdict.IDLE) and how != "restarted"
        text = f"does not hang: {text}" if calm else f"works again ({how or change.verdict})"
    return Event(at, kind, change.job, message=text, attributes=attributes)


def with_culprit(change: Change, taken: JobStacks, job: Job) -> Change:
    """With the culprit, if the stacks show it. A rank that has exited has none, and stays the one to blame."""
    seen = {process.rank for process in taken.processes}
    if any(rank not in seen for rank in change.ranks):
        return change
    found = blame({stack.rank: place(stack) for stack in taken.of_ranks(job)})
    if found is None:
        return change
    told = found.as_evidence() | {"stacks_at": taken.at}
    return dataclasses.replace(change, ranks=found.ranks, evidence={**change.evidence, "culprit": told})
