"""Dumps of the flight recorder: real ones of gloo, and ones as other versions and backends write them."""

import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest

from muster.probes.library.flight_recorder import DumpBeingWritten, DumpUnreadable, FlightDump, parse_dump

DUMPS = Path(__file__).parents[3] / "fixtures" / "flight_recorder"


def entry(number: int, state: str = "scheduled", *, pg_id: object = 0, group: object = ("0", "default_pg"), **more):
    names = {"pg_id": pg_id, "process_group": group, "collective_seq_id": number, "state": state}
    return {
        "record_id": number,
        "profiling_name": "nccl:all_reduce",
        "retired": False,
        "is_p2p": False,
        **names,
        **more,
    }


def status(enqueued: int, completed: int, started: int = -1) -> dict[str, int]:
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": started,
        "last_completed_collective": completed,
    }


def parsed(entries: Iterable[object] = (), **top: object) -> FlightDump:
    return parse_dump(pickle.dumps({"version": "2.10", "entries": list(entries), **top}, 2))


CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def test_a_real_dump_of_a_rank_that_waits() -> None:
    dump = parse_dump((DUMPS / "hung-2").read_bytes())
    assert (dump.version, dump.complete, dump.last_record, dump.known) == ("2.10", True, 3, {})
    everyone, pair = dump.groups["0"], dump.groups["2"]
    assert (everyone.desc, everyone.pg_id, everyone.enqueued, everyone.completed) == ("default_pg", "0", 2, 1)
    # This rank's group 1 is not that of ranks 0 and 1.
    assert (pair.desc, pair.pg_id, pair.enqueued, pair.completed) == ("pair", "1", 2, 1)
    waits = everyone.waits_in
    assert waits is not None and pair.waits_in is not None
    assert (waits.call, waits.number, pair.waits_in.call) == ("gloo:all_reduce", 2, "gloo:broadcast")
    assert waits.line.startswith("step (") and "train.py:" in waits.line


def test_a_real_dump_of_a_rank_that_did_not_come() -> None:
    dump = parse_dump((DUMPS / "hung-3").read_bytes())
    assert [(one.enqueued, one.completed, one.waits_in) for one in dump.groups.values()] == [(1, 1, None)] * 2


def test_a_dump_that_is_being_written() -> None:
    with pytest.raises(DumpBeingWritten):
        parse_dump((DUMPS / "hung-2").read_bytes()[:-1])


def test_nccl_tells_the_ranks_of_groups() -> None:
    dump = parsed([entry(3)], pg_config=CONFIG, pg_status={"0": status(3, 2, 3)})
    group = dump.groups["0"]
    assert (group.ranks, group.started, dump.known) == ((0, 1, 2, 3), 3, {"0": (0, 1, 2, 3)})


def test_a_timed_out_collective_is_still_waited_in() -> None:
    group = parsed([entry(2, retired=True)], pg_status={"0": status(2, 1)}).groups["0"]
    assert group.waits_in is not None and group.waits_in.retired


def test_a_completed_entry_counts_where_the_status_is_late() -> None:
    group = parsed([entry(1, "completed"), entry(2, "completed")], pg_status={"0": status(2, 1)}).groups["0"]
    assert (group.enqueued, group.completed, group.unfinished) == (2, 2, ())


def test_gloo_completes_a_later_one_first() -> None:
    calls = [entry(number, profiling_name="gloo:all_reduce", retired=number == 3) for number in (2, 3)]
    group = parsed(calls, pg_status={"0": status(3, 1)}).groups["0"]
    assert (group.completed, [one.number for one in group.unfinished]) == (1, [2])


def test_without_a_status_the_entries_tell() -> None:
    # As before version 2.4; `pg_id` came with it.
    entries = [entry(1, "completed"), entry(2, "started"), entry(3)]
    for one in entries:
        del one["pg_id"]
    dump = parsed(entries)
    group = dump.groups["0"]
    assert (group.enqueued, group.completed, dump.complete) == (3, 1, False)
    assert group.waits_in is not None and group.waits_in.state == "started"


def test_groups_without_entries_are_named_if_there_is_one_way() -> None:
    config = CONFIG | {"7": {"name": "7", "desc": "tp", "ranks": "[0, 1]"}}
    one = parsed(pg_config=config, pg_status={"0": status(0, 0), "1": status(5, 5)})
    assert one.complete and {name: group.pg_id for name, group in one.groups.items()} == {"0": "0", "7": "1"}
    config |= {"8": {"name": "8", "desc": "dp", "ranks": "[0, 2]"}}
    several = parsed(pg_config=config, pg_status={"0": status(0, 0), "1": status(5, 5)})
    assert not several.complete and set(several.groups) == {"0"}


def test_sends_and_receives_are_no_collectives() -> None:
    dump = parsed([entry(1), entry(9, is_p2p=True)], pg_status={"0": status(1, 0)})
    assert dump.groups["0"].p2p and [one.number for one in dump.groups["0"].unfinished] == [1]


def test_the_users_line() -> None:
    def line(*frames: object) -> str:
        group = parsed([entry(1, frames=list(frames))], pg_status={"0": status(1, 0)}).groups["0"]
        return group.unfinished[0].line

    torch = {"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 9}
    user = {"name": "step", "filename": "/home/u/train.py", "line": 30}
    assert line(torch, user, torch) == "step (/home/u/train.py:30)"
    assert line(torch) == "all_reduce (/x/torch/distributed/distributed_c10d.py:9)"
    assert line() == ""
    assert line("no frame", {"name": 1}) in (" (:0)", "")


def test_texts_of_the_job_are_escaped_and_cut() -> None:
    dump = parsed([entry(1, profiling_name="nccl:\x1b[31m\n" + "x" * 1000)], pg_status={"0": status(1, 0)})
    (found,) = dump.groups["0"].unfinished
    assert found.call.startswith("nccl:?[31m?x") and len(found.call) <= 200


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "no version"),
        ({}, "no version"),
        ({"entries": []}, "no version"),
        ({"version": "2.10", "entries": {}}, "no version"),
        ({"version": "2.10", "entries": [0] * 100_001}, "more than 100000 entries"),
        ({"version": "2.10", "pg_status": {str(one): {} for one in range(5000)}}, "groups"),
        ({"version": "2.10", "pg_config": {str(one): {} for one in range(5000)}}, "groups"),
        ({"version": "2.10", "pg_config": {"0": {"ranks": "1," * (3 << 20)}}}, "too many ranks"),
    ],
)
def test_what_is_no_dump(value: object, said: str) -> None:
    with pytest.raises(DumpUnreadable, match=said):
        parse_dump(pickle.dumps(value, 2))


@pytest.mark.parametrize("wrong", [None, 1, "x", [], {}, ["x"], {"x": 1}, (1, 2), -5, 1 << 90, 1.5])
def test_wrong_types_within_a_dump_do_no_harm(wrong: object) -> None:
    names = ("record_id", "pg_id", "process_group", "collective_seq_id", "state", "profiling_name", "frames", "is_p2p")
    entries: list[object] = [wrong, *({**entry(1), name: wrong} for name in (*names, "retired", "time_created_ns"))]
    parsed(entries, pg_config=wrong, pg_status=wrong)
    parsed(entries, pg_config={"0": wrong}, pg_status={"0": wrong})
    parsed(
        entries, pg_config={"0": {"ranks": wrong, "name": wrong}}, pg_status={"0": dict.fromkeys(status(1, 1), wrong)}
    )


def test_too_large() -> None:
    with pytest.raises(DumpUnreadable, match="larger than 64 MiB"):
        parse_dump(bytes((64 << 20) + 1))
