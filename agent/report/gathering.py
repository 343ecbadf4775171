"""Collects all that the report of a job shows."""

import platform
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import anyio

from muster.agent.events.event_store import Event
from muster.agent.hang import kept_stacks
from muster.agent.host import build
from muster.agent.jobs.entry import Entry
from muster.agent.node.node_notes import CLEARED, CONDITION, EVENT
from muster.agent.report import lanes, moments, plots
from muster.agent.report.job_report import (
    Axis,
    CloseUp,
    CulpritWords,
    JobReport,
    NodeCheckLine,
    Plot,
    ReportCard,
    Said,
    StackGroup,
    StackSet,
)
from muster.agent.report.on_disk import OnDisk
from muster.agent.telemetry import job_processes
from muster.agent.text import command_line, local, numbers, plain, ranks, span
from muster.agent.why import around
from muster.agent.why import facts as why_facts
from muster.agent.why import report as why_report
from muster.agent.why.around import Happening
from muster.agent.why.facts import Facts
from muster.agent.why.known import Known
from muster.agent.why.report import Report, Row
from muster.agent.why.words import of_this_attempt, shown
from muster.probes import stacks
from muster.probes.calls import watched
from muster.supervisors.model.spec import FIELDS
from muster.supervisors.model.states import Outcome, State

#: Limits: events, lines of a stack, groups of a set of stacks, last lines, characters of a command.
MAX_EVENTS, MAX_STACK_LINES, MAX_GROUPS, MAX_LINES, MAX_COMMAND = 400, 200, 24, 60, 4000
#: Seconds that reading the stored stacks may take.
STACKS_S = 5.0
#: What the node reported.
_NODE_KINDS = frozenset({EVENT, CONDITION, CLEARED})
#: Fields of a spec that the report shows elsewhere.
_SHOWN_ELSEWHERE = frozenset({"job_id", "command", "env"})


async def collect(known: Known, entry: Entry, *, node: str = "") -> JobReport:
    """The report of a job in any state, damaged ones too. `node`: the name of the node, if it is not this one.

    Takes half a minute at most, if a disk does not answer. Raises only cancellation.
    """
    config = known.config()
    folder = config.why.signatures_dir
    facts = await why_facts.gather(known, entry, Path(folder) if folder else None)
    damage: list[str] = []
    sets = await _stacks(entry, damage)
    said = why_report.made(facts, known.root, "")
    axis = axis_of(facts, config.telemetry.readings_s)
    hangs = lanes.hangs(_own(facts), _end(facts))
    culprits = {bar.rank: "hangs" for bar in hangs if bar.rank is not None}
    if said.first is not None:
        culprits = {said.first.rank: "hung" if said.first.outcome is Outcome.HUNG else "failed first"}
    shown_again = moments.around(axis, _end(facts) or facts.now, _failure(facts), hangs, config.telemetry.readings_s)
    limit = anyio.current_time() + plots.READ_S
    drawn, missing = await plots.read(known.telemetry.history, entry, axis, culprits, limit)
    moment = None
    if shown_again is not None and drawn:
        closer, why = await plots.read(known.telemetry.history, entry, shown_again[1], culprits, limit)
        moment, missing = CloseUp(*shown_again, closer) if closer else None, missing or why
    damage += [missing, plain(entry.damaged), *(known.damage() if isinstance(known, OnDisk) else ())]
    return made(facts, said, axis, drawn, moment, sets, damage, node or socket.gethostname())


def made(
    facts: Facts,
    said: Report,
    axis: Axis,
    drawn: list[Plot],
    moment: CloseUp | None,
    sets: list[StackSet],
    damage: list[str],
    node: str,
) -> JobReport:
    """Puts the parts together."""
    entry, job, end = facts.entry, facts.job, _end(facts)
    own, attempts = _own(facts), lanes.attempts(entry)
    happened = _chosen(facts.happenings)
    left_out = len(facts.happenings) - len(happened)
    more = [text for text in dict.fromkeys(damage) if text and not any(text in known for known in said.unknown)]
    if left_out:
        more.append(f"{left_out} older events are left out: `muster events {said.job_id}`")
    return JobReport(
        job_id=said.job_id,
        node=_text(job.node_name or node),
        node_rank=job.node_rank,
        node_count=job.node_count,
        made_at=facts.now,
        said=_said(said),
        axis=axis,
        facts=_facts(said) | plots.card_hours([(attempts, len(job.cards))], end or facts.now, drawn),
        attempts=attempts,
        steps=lanes.steps(own, end),
        ranks=[lanes.of_rank(rank, job) for rank in job.ranks],
        rank_bars=lanes.rank_bars(entry, own),
        hangs=lanes.hangs(own, end),
        events=[_row(one, facts.zero) for one in happened if one.kind not in _NODE_KINDS],
        plots=drawn,
        moment=moment,
        checks=[_check(one) for one in job.checks],
        warnings=said.notes,
        node_reports=[
            *(_row(one, facts.zero) for one in happened if one.kind in _NODE_KINDS),
            *(Row(crash.at, round(crash.at - facts.zero, 3), "kernel", _text(crash.text)) for crash in facts.crashes),
        ],
        stacks=sets,
        last_words=_last_words(said),
        command=shown(command_line(entry.spec.command), MAX_COMMAND),
        settings=_settings(entry),
        environment=sorted(_text(name, 200) for name in entry.spec.env),
        cards=_cards(entry),
        versions=_versions(),
        remarks=said.telemetry.remarks,
        unknown=[*said.unknown, *more],
    )


def axis_of(facts: Facts, readings_s: float) -> Axis:
    """From the acceptance to the end (until now, if there was none), whatever the clock did meanwhile."""
    job = facts.job
    times = [job.accepted_at, job.started_at, job.ended_at, job.last_time]
    times += [time for past in job.past for time in (past.started_at, past.ended_at)]
    times += [time for rank in job.ranks for time in (rank.started_at, rank.ended_at)]
    if not job.state.final:
        times.append(facts.now)
    told = [one for one in times if one > 0] or [facts.now]
    begin, end = min(told), max(told)
    return plots.axis(begin, end, readings_s, time.localtime(begin).tm_gmtoff)


def _end(facts: Facts) -> float | None:
    job = facts.job
    return (job.ended_at or job.last_time or None) if job.state.final else None


def _failure(facts: Facts) -> tuple[str, float] | None:
    """Of a job that has failed: what `why` counts from, and when that was."""
    return (facts.around, facts.zero) if facts.job.state in (State.FAILED, State.LOST) else None


def _own(facts: Facts) -> list[Event]:
    return [event for event in facts.events.kept if event.job_id == facts.entry.job_id]


def _said(said: Report) -> Said:
    reached = said.verdict
    ended = bool(said.ended_at) and reached is not None
    advised = ended and reached is not None and reached.recommendation not in ("NONE", "UNSPECIFIED")
    return Said(
        str(said.state),
        said.headline,
        reached.recommendation if advised and reached is not None else "",
        shown(plain(reached.recommendation_reason), 500) if advised and reached is not None else "",
        reached.exit_code if ended and reached is not None else None,
        said.cause,
        said.other_causes,
        said.repeated,
        said.next_steps,
    )


def _facts(said: Report) -> dict[str, str]:
    """What the head of `why` and `status` say in a line each."""
    job, found = said.job, {}
    last = f"attempt {job.attempt} " if job.past else ""  # the one that these times are of
    found["accepted"] = local(job.accepted_at)
    found[f"{last}started"] = local(job.started_at)
    if said.ended_at:
        found["ended"] = local(said.ended_at)
    if job.started_at:
        end = (said.end_of_ranks if said.ended_at else 0.0) or said.now
        found[last + ("ran for" if said.ended_at else "has run for")] = span(max(0.0, end - job.started_at))
    if said.ended_at and said.verdict is not None:
        found["exit code"] = str(said.verdict.exit_code)
    if said.first is not None:
        title = "ended first, by muster" if said.first.outcome is Outcome.HUNG else "first failure"
        title += f", one of ranks {numbers(said.unordered)} (unknown which)" if said.unordered else ""
        found[title] = f"rank {said.first.rank} on device {said.first.device} {said.first_status}"
    if said.verdict is not None and said.verdict.victims:
        found["victims"] = f"rank {numbers(said.verdict.victims)} (ended because another rank had failed)"
    if said.verdict is not None and said.verdict.stopped_by:
        found["stopped by"] = _text(said.verdict.stopped_by)
    if said.max_restarts:
        found["attempt"] = f"{job.attempt} of at most {said.max_restarts}"
    if job.node_count > 1:
        found["node"] = f"{job.node_rank} of {job.node_count}"
    return {name: value for name, value in found.items() if value not in ("", "-")}


def _chosen(happened: Sequence[Happening]) -> list[Happening]:
    """At most MAX_EVENTS: the grave ones, those of hangs, and the newest."""
    if len(happened) <= MAX_EVENTS:
        return list(happened)
    first = sorted(happened, key=lambda one: (not (one.grave or one.kind in around.HANG), -one.at))[:MAX_EVENTS]
    return sorted(first, key=lambda one: one.at)


def _row(one: Happening, zero: float) -> Row:
    return Row(one.at, round(one.at - zero, 3), one.kind, _text(one.text), one.rank, one.card, one.code, one.grave)


def _check(check: dict[str, Any]) -> NodeCheckLine:
    item, status, code, reason = (_text(str(check.get(name, ""))) for name in ("item", "status", "code", "reason"))
    return NodeCheckLine(item, status, code, reason)


def _last_words(said: Report) -> CulpritWords:
    """What `why` prints: of the worker that failed first, as its launcher tells, else of the rank."""
    whose = "" if said.first is None else f"rank {said.first.rank}"
    if said.worker_words.lines:
        return CulpritWords(said.worker_words.whose or whose, said.first_log, said.worker_words.lines[-MAX_LINES:])
    written = of_this_attempt(said.verdict.last_lines) if said.verdict is not None else ()
    return CulpritWords(whose, plain(said.first_log), [shown(plain(line)) for line in written[-MAX_LINES:]])


def _settings(entry: Entry) -> dict[str, str]:
    """The fields of the spec that are set, as `status -o json` may show them: secrets are hidden by their field."""
    found = {}
    for field in FIELDS.values():
        value = getattr(entry.spec, field.name)
        if field.name in _SHOWN_ELSEWHERE or value == field.default or not value:
            continue
        shown_as = f"{value:03o}" if field.name == "umask" else _words(field.hide(value) if field.hide else value)
        found[field.name] = _text(shown_as, 1000)
    return {name: text for name, text in found.items() if text}


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={one}" if one != "" else str(key) for key, one in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return "yes" if value is True else str(value)


def _cards(entry: Entry) -> list[ReportCard]:
    job = entry.job
    return [
        ReportCard(card, job.card_kind, _text(job.card_uuids.get(card, "")), job_processes.rank_of_card(entry, place))
        for place, card in enumerate(job.cards)
    ]


def _versions() -> dict[str, str]:
    return {"muster": build.FULL, "Python": platform.python_version(), "kernel": platform.release()}


async def _stacks(entry: Entry, missing: list[str]) -> list[StackSet]:
    """`missing` gets a sentence about what cannot be read."""
    folder, told = entry.paths.folder, list[str]()
    with anyio.move_on_after(STACKS_S) as reading:
        try:
            taken = await watched.call(f"kept stacks in {folder}", lambda: kept_stacks.read_all(folder, told))
            missing += told
            return [_stack_set(one) for one in taken]
        except (OSError, watched.StillHanging) as error:
            if not isinstance(error, FileNotFoundError):  # a job that never ran has no folder of them
                missing.append(f"{folder}: stacks cannot be read: {error}")
    if reading.cancelled_caught:
        missing.append(f"{folder}: stacks could not be read within {STACKS_S:g} s")
    return []


def _stack_set(taken: kept_stacks.JobStacks) -> StackSet:
    groups, count = [], len(taken.processes)
    for group in stacks.grouped(taken.processes)[:MAX_GROUPS]:
        head = f"{ranks({owner.rank for owner in group.owners})}: {len(group.owners)} of {count} processes"
        groups.append(StackGroup(head, [_text(line) for line in group.lines[:MAX_STACK_LINES]]))
    return StackSet(taken.at, _text(taken.occasion), taken.attempt, groups, [_text(note) for note in taken.notes])


def _text(text: str, width: int = 500) -> str:
    return shown(plain(text), width)
