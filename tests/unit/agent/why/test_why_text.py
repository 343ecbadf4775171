"""The page and its words: what is shown, in which order, fit for a terminal."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.agent.api import report_json
from muster.agent.text import ranks
from muster.agent.why import page as why_page
from muster.agent.why import report
from muster.agent.why import words as why_words
from muster.agent.why.around import Events
from muster.agent.why.curves import Curve, Minutes
from muster.agent.why.facts import Facts
from muster.agent.why.log_signs import Searched
from muster.agent.why.words import apart, shown, spark
from muster.supervisors.model.lifecycle import Attempt, Rank, Verdict
from muster.supervisors.model.states import STEP, Outcome, State
from muster.supervisors.paths import Root
from tests.unit.why_facts import ZERO, facts, happening, rank, sign, victim


def page(known: Facts, stacks: str = "", *, colour: bool = False) -> str:
    return why_page.page(report.made(known, Root.system(), stacks), colour=colour)


def as_json(known: Facts, stacks: str = "") -> dict[str, Any]:
    root = Root.system()
    found: dict[str, Any] = json.loads(report_json.encode(report.made(known, root, stacks), known.entry, root))
    return found


def changed(known: Facts, **fields: object) -> Facts:
    return Facts(**({name: getattr(known, name) for name in known.__slots__} | fields))


@pytest.fixture
def failed() -> Facts:
    verdict = Verdict(
        1,
        "rank 0 (device 0) exited with code 1",
        0,
        ("first line", "[muster: attempt 1 2026-11-21T11:00:00]", "last \x1b[31mline\x1b[0m\x07"),
        (1, 2, 3),
        "FAIL",
        "the job ended by itself",
    )
    known = facts(
        rank(0, Outcome.EXITED, code=1),
        *(victim(number) for number in range(1, 4)),
        signs=(sign("cuda-out-of-memory", 0, 0.5),),
        happenings=(
            happening("job.running", "all ranks have started", 100),
            happening("node.event", "card 0: \x1b[2Jodd\nlines", 50.0, card=0, code="GPU_TEMPERATURE"),
            happening("node.event", "card 3: Xid 79 (CRITICAL)", 2.0, card=3, code="GPU_OFF_BUS", grave=True),
        ),
        past={0: (sign("cuda-out-of-memory", 0, 90.0),)},
        verdict=verdict,
        spec={"max_restarts": 2},
    )
    known.job.past = [Attempt(0, ZERO - 190, ZERO - 105, 7, "rank 0 exited with code 7", 0, {0: 10})]
    known.job.attempt = 1
    known.job.warnings = ["something to know"]
    known.job.takeovers = 1
    known.job.checks = [{"item": "dns", "status": "WARN", "code": "DNS_SERVER_FAILED", "reason": "slow"}]
    curves = (Curve(0, 0, (100.0, 50.0, 0.0), (99.0,) * 3, (500.0,) * 3), Curve(None, None, cpu=(5.0,), memory=(1.0,)))
    return changed(
        known,
        minutes=Minutes(ZERO - 90, 30.0, curves),
        searched=Searched(known.signs, ("x.txt: cannot be read: Permission denied",)),
        events=Events((), True),
    )


def test_the_most_useful_stands_first(failed: Facts) -> None:
    text = page(failed)
    order = [
        "j: FAILED at ",
        "rank 0 (device 0) exited with code 1",
        "attempt 1 of at most 2",
        "Probable cause (high confidence, cuda-out-of-memory): the memory of a card was full",
        "rank 0, 0.50s before its end:",
        "| a line of cuda-out-of-memory",
        "the memory of card 0 (rank 0) was full",
        "Also possible (medium confidence): a card of the job failed: card 3: Xid 79 (CRITICAL)",
        "attempt 0 ended in the same way",
        "Recommendation: RETRY_ELSEWHERE: a card of the job has a fault",
        "What to do:",
        "1. Use a smaller batch",
        "First failure: rank 0 on device 0 (pid 4000) exited with code 1 at ",
        "log: /var/log/muster/j-proc-rank-0-device-0.txt",
        "Last lines:",
        "Victims: rank 1-3 (ended because another rank had failed)",
        "What happened (times from the end of rank 0, ",
        "-2.00s  ! card 3: Xid 79 (CRITICAL)",
        "Telemetry of the 1m30s before",
        "card 0  0     █▅▁",
        "its processes: 5 %",
        "Stored stacks:",
        "Attempts before (1 of 2 restarts used):",
        "0: code 7: rank 0 exited with code 7",
        "cuda-out-of-memory: a line of cuda-out-of-memory",
        "Checks of the node:",
        "dns: WARN (DNS_SERVER_FAILED): slow",
        "Also:",
        "something to know",
        "a supervisor died 1 time(s)",
        "Not known:",
        "x.txt: cannot be read: Permission denied",
    ]
    places = [text := page(failed, "MainThread\n  lock.acquire()"), *order]
    at = 0
    for words in places[1:]:
        assert words in text[at:], f"{words!r} is not behind what comes before it in:\n{text}"
        at = text.index(words, at)
    assert text.endswith("\n") and len(text.splitlines()) < 75


def test_titles_and_the_state_stand_out_where_there_are_colours(failed: Facts) -> None:
    text = page(failed, "stack", colour=True)
    assert text.startswith("j: \x1b[31;1mFAILED\x1b[0m at ")
    titles = [line for line in text.splitlines()[1:] if line and not line.startswith(" ")]
    assert len(titles) > 10 and all(line.startswith("\x1b[1m") for line in titles)
    assert text.replace("\x1b[31;1m", "").replace("\x1b[1m", "").replace("\x1b[0m", "") == page(failed, "stack")


def test_it_is_fit_for_a_terminal(failed: Facts) -> None:
    text = page(failed, "a\x1b[2J\x07b")
    assert "\x1b" not in text and "\x07" not in text
    assert "  | last line\\x07\n" in text
    assert "card 0: odd\\nlines" in text
    # Of the attempt before there are no last lines.
    assert "first line" not in text


def test_the_object_has_the_keys_that_it_always_had(failed: Facts) -> None:
    found = as_json(failed, "stacks")
    old = {"jobId", "state", "endedAt", "verdict", "firstFailure", "warnings", "pastAttempts", "checks"}
    new = {
        "headline", "zero", "zeroIs", "cause", "otherCauses", "repeated", "nextSteps", "failed", "timeline",
        "telemetry", "stacks", "notes", "unknown", "damaged", "workers", "workerWords",
    }  # fmt: skip
    assert set(found) == old | new
    documented = (Path(__file__).parents[4] / "docs" / "guides/why.md").read_text()
    assert [name for name in old | new if f"`{name}`" not in documented] == []
    assert (found["state"], found["verdict"]["exitCode"]) == ("JOB_STATE_FAILED", 1)
    assert (found["firstFailure"]["rank"], found["firstFailure"]["exitCode"]) == (0, 1)
    assert found["checks"][0]["item"] == "dns" and found["pastAttempts"][0]["number"] == 0
    assert found["cause"]["signature"] == "cuda-out-of-memory" and found["cause"]["seconds"] == -0.5
    assert found["cause"]["rank"] == 0 and found["cause"]["line"] == "a line of cuda-out-of-memory"
    assert found["timeline"][-1]["grave"] is True and found["timeline"][-1]["seconds"] == -2.0
    assert found["telemetry"]["series"][0]["utilization"] == [100.0, 50.0, 0.0]
    assert found["pastAttempts"][0]["cause"]["signature"] == "cuda-out-of-memory"


def test_a_job_that_runs_well_is_reported_so() -> None:
    known = changed(facts(rank(0), state=State.RUNNING), zero=ZERO, around="now")
    text = page(known)
    assert text.startswith("j: RUNNING\n  it has not ended; no problem is known\n  the ranks have run for 1m45s\n")
    assert "cause" not in text and "Recommendation" not in text
    assert as_json(known)["endedAt"] is None


def test_a_part_says_that_other_nodes_were_not_asked() -> None:
    known = changed(
        facts(rank(0), state=State.RUNNING, spec={"node_count": 2, "node_rank": 1}), zero=ZERO, around="now"
    )
    assert "no problem is known on this node, 1 of 2: `muster why j --hosts A,B` asks all\n" in page(known)


def test_of_a_job_that_runs_with_warnings_it_is_not_said_that_nothing_is_known() -> None:
    known = changed(facts(rank(0), state=State.RUNNING), zero=ZERO, around="now")
    known.entry.note("supervisor", "SUPERVISOR_CRASHING: it died 3 times")
    text = page(known)
    assert text.startswith("j: RUNNING\n  it has not ended; 1 warning about it, listed below\n")
    assert "no problem is known" not in text and "Also:\n  SUPERVISOR_CRASHING: it died 3 times\n" in text


def test_a_line_is_reported_as_one_cause() -> None:
    step = Rank(STEP, 0, 0, 5, outcome=Outcome.EXITED, status=1 << 8, ended_at=ZERO, role="pre_start")
    known = facts(ranks=[Rank(0, 0, 0)], step=step, step_name="pre_start", signs=(sign("no-space", None),))
    text = page(known)
    assert text.count("a line of no-space") == 1 and "Also possible" not in text


def test_who_was_ended_for_a_hang_has_not_failed_first() -> None:
    known = facts(
        rank(0, Outcome.HUNG, killed=15), rank(1, Outcome.HUNG, killed=15), verdict=Verdict(143, "the job hung", 0)
    )
    text = page(known)
    assert "Ended first, by muster: rank 0" in text and "First failure" not in text
    assert "Last lines: none" in text and "muster logs" not in text


def test_a_job_that_succeeded_needs_few_words() -> None:
    known = facts(
        rank(0, Outcome.EXITED),
        state=State.SUCCEEDED,
        verdict=Verdict(0, "rank 0 exited with code 0"),
        happenings=(happening("job.running", "let go", 100), happening("rank.exited", "rank 0", 0)),
    )
    assert len(page(known).splitlines()) == 3
    grave = changed(known, happenings=(happening("node.event", "card 0: sick", 5, grave=True),))
    assert "! card 0: sick" in page(grave)


def test_damage_is_reported() -> None:
    known = facts(state=State.LOST, damaged="jobs/j/journal: record 3 is damaged", verdict=Verdict(125, "damaged"))
    text = page(known)
    assert "the job's record on disk is damaged" in text and "jobs/j/journal: record 3 is damaged" in text


def test_many_of_a_kind_do_not_fill_the_page() -> None:
    many = [rank(number, Outcome.EXITED, code=1) for number in range(300)]
    known = facts(
        *many,
        happenings=tuple(happening("job.warning", f"warning {number}", number) for number in range(99)),
        verdict=Verdict(1, "all failed", 0, tuple(f"line {number}" for number in range(20))),
    )
    known.job.past = [Attempt(number, 0, 0, 1, f"attempt {number}", None, {}) for number in range(40)]
    curves = tuple(Curve(number, number, (50.0,), (1.0,), (1.0,)) for number in range(64))
    text = page(changed(known, minutes=Minutes(ZERO, 1.0, curves)), "stack\n" * 500)
    assert len(text.splitlines()) < 140
    for words in ("then 295 more", "more: `muster events j`", "48 more cards", "460 more lines"):
        assert words in text, words


# --- words ------------------------------------------------------------------------------------------------------------


def test_moments_and_ranks() -> None:
    assert (apart(-0.5), apart(65.0)) == ("-0.50s", "+1m05s")
    assert (ranks([3]), ranks([0, 1]), ranks([5, 0, 1, 2])) == ("rank 3", "ranks 0-1", "ranks 0-2,5")


def test_sparks() -> None:
    assert spark([0.0, 50.0, 100.0, None, 120.0, -5.0]) == "▁▅█·█▁"
    assert spark([1.0], 0.0) == "▁"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\tb", "a    b"),
        ("\x1b]0;title\x07x\x1b[1;31my\x1b(B", "xy"),
        ("a\nb\r\x00", "a\\nb\\r\\x00"),
        ("\u202eabc", "\\u202eabc"),
        ("x" * 5000, "x" * (why_words.MAX_LINE - 1) + "…"),
        ("\x1b]" + "a" * 5000, None),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_job_writes_is_harmless(text: str, line: str | None) -> None:
    found = shown(text)
    assert found.isprintable() and len(found) <= why_words.MAX_LINE
    if line is not None:
        assert found == line
