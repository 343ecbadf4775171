"""Which node of a job failed first, by what each of them reports."""

from pathlib import Path
from typing import Any

import pytest

from muster.agent.cli.client.address import Address
from muster.agent.cli.nodes.hosts import GangHost
from muster.agent.cli.nodes.merged_why import NodeClock, NodeReport, as_json, merged, page

START = 1_795_841_850.0


def report(
    node: str, at: float, state: str = "FAILED", kind: str = "job", ahead: float = 0.0, doubt: float = 0.001
) -> NodeReport:
    """`at`: seconds after START, by a right clock; the node's own is `ahead` of it."""
    found: dict[str, Any] = {
        "state": f"JOB_STATE_{state}",
        "zero": START + at + ahead,
        "headline": f"headline of {node}",
        "verdict": {"summary": f"summary of {node}", "firstFailedRank": 3},
        "cause": {"text": f"cause on {node}", "kind": kind},
    }
    return NodeReport(GangHost(node, node, Address(None)), found, f"page of {node}\n", NodeClock(ahead, doubt))


def silent(node: str) -> NodeReport:
    return NodeReport(GangHost(node, node, Address(None)), failure="no daemon answers")


@pytest.mark.parametrize(
    ("reports", "first"),
    [
        # By their own clocks b, which is behind, came first.
        ([report("a", 0.0, ahead=3.0), report("b", 2.0, ahead=-4.0), report("c", 1.0)], ["a"]),
        # One that was stopped is a victim, and one that says nothing tells nothing.
        ([report("a", 0.0, "STOPPED"), report("b", 5.0), silent("c")], ["b"]),
        # A lost peer is the consequence of a cause elsewhere, even where it was noticed first.
        ([report("a", 0.0, kind="peer"), report("b", 0.2, kind="device"), report("c", 0.1, kind="network")], ["b"]),
        # Where all name a lost peer, the first of them.
        ([report("a", 1.0, kind="peer"), report("b", 0.0, kind="peer")], ["b"]),
        # Closer than the clocks are known.
        ([report("a", 0.0, doubt=0.4), report("b", 0.3), report("c", 3.0)], ["a", "b"]),
        ([report("a", 0.0, "STOPPED"), report("b", 0.0, "SUCCEEDED")], []),
        ([report("a", 0.0, "LOST"), report("b", 9.0, "RUNNING")], ["a"]),
    ],
    ids=range(7),
)
def test_who_is_to_blame(reports: list[NodeReport], first: list[str]) -> None:
    found = merged("j", reports)
    assert [one.host.label for one in found.first] == first
    assert {one.host.label for one in (*found.first, *found.rest)} == {one.host.label for one in reports}


def test_the_commands_of_the_page_name_their_daemon() -> None:
    text = "Read it: `muster logs j -r 1 --tail 200`, `muster logs jj`; `muster why j --hosts A,B` asks all\n"
    found = {"jobId": "j", "state": "JOB_STATE_FAILED", "headline": "", "zero": START}
    host = GangHost("h2", "h2", Address(Path("/run/b/muster.sock")))
    told = page(merged("j", [NodeReport(host, found, text), silent("c")]))
    assert (
        "`muster logs j --address unix:/run/b/muster.sock -r 1 --tail 200`, `muster logs jj`; `muster why j -" in told
    )


def test_the_page_begins_with_the_blame_and_ends_with_the_page_of_the_first() -> None:
    found = merged("j", [report("a", 2.0, "STOPPED", ahead=-4.0), report("b", 0.0, ahead=3.5), silent("c")])
    text = page(found)
    assert text.startswith("job j: first failed rank 3 on b at ") and "cause on b\n" in text
    assert "    +2.00s  a rank 3: STOPPED: summary of a" in text
    assert "          -  c: no daemon answers" in text
    assert "the clock of b is 3.5 s ahead of this node's" in text
    assert "the clock of a is 4.0 s behind this node's" in text
    assert text.endswith("page of b\n") and "page of a" not in text
    told = as_json(found)
    assert [one["node"] for one in told["first"]] == ["b"] and told["first"][0]["at"] == START
    assert [one["report"] is None for one in told["others"]] == [True, False]
