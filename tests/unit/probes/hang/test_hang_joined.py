"""Records of one job from several nodes: joined, they tell what none of them tells alone."""

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from muster.agent.cli.commands.hang import hang
from muster.agent.cli.exits import CommandFailed
from muster.probes.hang import Change, HangSettings, Record
from muster.probes.hang.hang_records import read
from muster.probes.hang.hang_replay import replay
from muster.probes.hang.joined import joined
from tests.corpus.measure import trace
from tests.corpus.scenarios import BY_NAME

Line = dict[str, Any]


def halves(lines: list[Line]) -> list[list[Line]]:
    """What two nodes would have recorded of it, with cards from 0 each, looks at different seconds and a record lost
    here and there."""
    rng = random.Random(1)
    ranks = sorted({card["rank"] for card in lines[0]["cards"]})
    nodes: list[list[Line]] = []
    for mine in (ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :]):
        nodes.append(
            [
                line
                | {
                    "t": line["t"] + 6 * len(nodes),
                    "procs": [proc for proc in line["procs"] if proc["rank"] in mine],
                    "cards": [
                        card | {"index": card["rank"] - mine[0]} for card in line["cards"] if card["rank"] in mine
                    ],
                    "log_bytes": {rank: size for rank, size in line["log_bytes"].items() if int(rank) in mine},
                }
                for line in lines
                if rng.random() > 0.03
            ]
        )
    return nodes


def test_of_a_job_of_which_all_nodes_are_seen_nothing_is_missing() -> None:
    _, lines = next(jobs_of_8("U1"))
    two = [[line | {"nodes": 2} for line in half] for half in halves(lines)]
    four = [[line | {"nodes": 4} for line in half] for half in two]

    def missing(found: Iterator[Record]) -> list[bool]:
        hung = [change for change in replay(found, HangSettings()) if change.verdict == "HUNG"]
        assert hung
        return ["other nodes" in change.evidence["missing"] for change in hung]

    assert not any(missing(joined([map(read, half) for half in two])))
    assert all(missing(joined([map(read, half) for half in four])))
    assert all(missing(map(read, two[0])))
    # A node of which nothing comes any more is not one that was never seen.
    died = [line for line in two[1] if line["t"] < two[1][-1]["t"] - 600]
    assert list(joined([map(read, two[0]), map(read, died)]))[-1].others == 0


def jobs_of_8(name: str) -> Iterator[tuple[int | None, list[Line]]]:
    """Some traces with 8 ranks: which one is the culprit, and the records."""
    for seed in range(1, 13):
        told, lines = trace(BY_NAME[name], seed)
        if len(lines[0]["cards"]) == 8:
            yield told.culprit, lines


def changes(lines: list[Line]) -> list[Change]:
    return [one for one in replay(map(read, lines), HangSettings()) if isinstance(one, Change)]


def changes_of(nodes: list[list[Line]]) -> list[Change]:
    seen = joined([list(map(read, lines)) for lines in nodes])
    return [one for one in replay(seen, HangSettings()) if isinstance(one, Change)]


def test_the_culprit_is_a_rank_of_another_node():
    """One rank exits, its peers spin: their node sees nobody but ranks that wait."""
    culprit, lines = next((culprit, lines) for culprit, lines in jobs_of_8("U10") if culprit is not None)
    nodes = halves(lines)
    other = nodes[0] if culprit >= 4 else nodes[1]
    alone = changes(other)[-1]
    assert (alone.verdict, len(alone.ranks)) == ("HUNG", 4)
    together = changes_of(nodes)
    assert [change.verdict for change in together] == ["ALIVE", "SUSPECT", "HUNG"]
    assert together[-1].ranks == (culprit,)
    assert together[-1].evidence["odd_ranks"] == {str(culprit): "its process has ended"}
    assert len(together[-1].evidence["cards"]) == 8


def test_a_rank_that_works_on_another_node_keeps_those_that_wait_from_being_suspected():
    """Rank 0 tokenizes for 40 minutes, the others spin."""
    alarms_alone = 0
    for _, lines in jobs_of_8("H11"):
        nodes = halves(lines)
        alarms_alone += any(change.verdict == "HUNG" for change in changes(nodes[1]))
        assert {change.verdict for change in changes_of(nodes)} <= {"ALIVE", "WAITING", "BUSY_HOST"}
    assert alarms_alone


# --- how they are joined ----------------------------------------------------------------------------------------------


def line(t: float, rank: int = 0, **changed: Any) -> Record:
    proc = {"pid": 7, "start": 9, "rank": rank, "role": "rank", "cpu_s": t, "state": "S"}
    card = {"index": 0, "kind": "nvidia", "util": 50.0 + rank, "rank": rank}
    return read(
        {"t": t, "job": "j", "procs": [proc], "cards": [card], "log_bytes": {str(rank): 5}, "net_bytes": 0} | changed
    )


def ranks(record: Record) -> list[int | None]:
    return [card.rank for card in record.cards or ()]


def test_records_of_one_time_become_one():
    found = list(joined([[line(t) for t in (0, 15, 30)], [line(t + 1, 1) for t in (0, 15, 30)]]))
    assert [record.t for record in found] == [1, 16, 31]
    for record in found:
        assert [proc.rank for proc in record.procs or ()] == ranks(record) == [0, 1]
        assert record.log_bytes == {0: 5, 1: 5}
    # Whichever file was named first.
    assert list(joined([[line(t + 1, 1) for t in (0, 15, 30)], [line(t) for t in (0, 15, 30)]])) == found


def test_nodes_that_look_at_other_times_are_joined_too():
    phases = (0.0, 14.5, 7.0, 3.0)
    nodes = [[line(15 * i + phase, rank) for i in range(20)] for rank, phase in enumerate(phases)]
    found = list(joined(nodes))
    assert all(sorted(r for r in ranks(record) if r is not None) == [0, 1, 2, 3] for record in found[2:-2])
    assert all(16 > b.t - a.t > 0 for a, b in itertools.pairwise(found[2:]))


def test_a_record_that_was_lost_is_no_process_that_ended():
    nodes = [[line(t) for t in range(0, 300, 15)], [line(t + 1, 1) for t in range(0, 300, 15) if t != 150]]
    assert all(len(record.procs or ()) == 2 for record in joined(nodes))


def test_a_node_of_which_nothing_comes_any_more_has_no_processes():
    nodes = [[line(t) for t in range(0, 600, 15)], [line(t + 1, 1, driver="HANG") for t in range(0, 300, 15)]]
    found = list(joined(nodes))
    assert next(record.t for record in found if len(record.procs or ()) == 1) < 360
    assert [record.driver_hangs for record in found][:: len(found) - 1] == [True, False]


def test_files_of_one_node_one_after_the_other_are_as_one():
    found = list(joined([[line(t) for t in range(0, 150, 15)], [line(t) for t in range(150, 300, 15)]]))
    assert [record.t for record in found] == list(range(0, 300, 15))
    assert all(len(record.procs or ()) == 1 and ranks(record) == [0] for record in found)
    assert [proc.cpu_s for record in found for proc in record.procs or ()] == list(range(0, 300, 15))


def test_the_network_of_the_node_that_received_most_counts():
    """The background of many nodes does not add up to a sign of life."""
    nodes = [
        [line(t, 0, net_bytes=10**12 + t * 100) for t in range(0, 300, 15)],
        [line(t + 1, 1, net_bytes=5 + t * 300) for t in range(0, 300, 15)],
        [line(t + 2, 2, net_bytes=None) for t in range(0, 300, 15)],
    ]
    counts = [record.net_bytes for record in joined(nodes)]
    assert [round((b or 0) - (a or 0)) for a, b in itertools.pairwise(counts)] == [15 * 300] * 19
    assert {record.net_bytes for record in joined([nodes[2], nodes[2]])} == {None}


def test_what_is_not_told_is_not_there():
    nodes = [[line(0, 0, procs=None, cards=None, log_bytes=None)], [line(1, 1, procs=None, cards=None, log_bytes=None)]]
    [record] = joined(nodes)
    assert (record.procs, record.cards, record.log_bytes, record.has_log) == (None, None, {}, False)


def test_jobs_are_distinguished_and_the_longest_silent_goes_first(monkeypatch: pytest.MonkeyPatch):
    import muster.probes.hang.joined as module

    monkeypatch.setattr(module, "MAX_JOBS", 2)
    records = [line(float(t), 0, job=f"j{t}") for t in range(5)]
    assert [record.job for record in joined([records, []])] == ["j0", "j1", "j2", "j3", "j4"]


def test_a_clock_that_was_set_back_ends_nothing():
    nodes = [[line(t) for t in (1000, 1015, 100, 115)], [line(t, 1) for t in (1000, 1015, 1030)]]
    assert sum(len(record.cards or ()) for record in joined(nodes)) == 7


# --- the command ------------------------------------------------------------------------------------------------------


def call(*words: object) -> int:
    try:
        code = hang.main(args=["replay", *map(str, words)], prog_name="muster hang", standalone_mode=False)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    return code or 0


def test_files_of_several_nodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    culprit, lines = next((culprit, lines) for culprit, lines in jobs_of_8("U10") if culprit is not None)
    texts = ["\n".join(map(json.dumps, node)) + "\n" for node in halves(lines)]
    (tmp_path / "a").write_text(texts[0])
    (tmp_path / "b.gz").write_bytes(gzip.compress(texts[1].encode()))
    assert call(tmp_path / "a", tmp_path / "b.gz", "-o", "json") == 0
    out = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (out[-1]["verdict"], out[-1]["ranks"]) == ("HUNG", [culprit])


def test_a_bad_line_is_named_with_its_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "a").write_text("{bad\n")
    (tmp_path / "b").write_text("\n[]\n[]\n")
    assert call(tmp_path / "a", tmp_path / "b") == 1
    err = capfd.readouterr().err
    assert f"{tmp_path}/a: line 1: not JSON" in err and f"{tmp_path}/b: line 2: a record" in err
    assert f"{tmp_path}/a: skipped 1 line " in err and f"{tmp_path}/b: skipped 2 lines " in err


def test_files_that_cannot_be_joined(tmp_path: Path):
    (tmp_path / "a").touch()
    with pytest.raises(CommandFailed, match=r"cannot read .*nowhere"):
        call(tmp_path / "a", tmp_path / "nowhere")
    with pytest.raises(CommandFailed, match="give standard input only once"):
        call("-", "-")


def test_that_all_ranks_are_here_is_no_guess() -> None:
    """Where the records do not say on how many nodes the job is, a rank of another node may be what all here wait for:
    the verdict is not sooner than with idle cards."""
    _, lines = next(jobs_of_8("U1"))
    settings = HangSettings()

    def hung_at(told: list[Line]) -> float:
        return next(change.t for change in replay(map(read, told), settings) if change.verdict == "HUNG")

    silent = [{name: value for name, value in line.items() if name != "nodes"} for line in lines]
    assert hung_at(silent) - hung_at(lines) >= (1 - settings.spin_ratio) * settings.hung_s / 2


def test_what_a_job_itself_moves_counts_where_a_node_knows_it():
    nodes = [
        [line(t, 0, net_bytes=10**12 + t * 900, job_net_rate=100.0) for t in range(0, 300, 15)],
        [line(t + 1, 1, net_bytes=5 + t * 300) for t in range(0, 300, 15)],
    ]
    counts = [record.net_bytes for record in joined(nodes)]
    assert [round((b or 0) - (a or 0)) for a, b in itertools.pairwise(counts)] == [15 * 300] * 19
    alone = [record.net_bytes for record in joined(nodes[:1])]
    assert [round((b or 0) - (a or 0)) for a, b in itertools.pairwise(alone)] == [15 * 100] * 19
