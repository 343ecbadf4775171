"""Two dumps of each rank, and who did not come."""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from muster.probes.library import LibraryVerdict, find_laggards
from muster.probes.library.flight_recorder import FlightDump, parse_dump

DUMPS = Path(__file__).parents[3] / "fixtures" / "flight_recorder"


def real(moment: str, ranks: Iterable[int] = range(4)) -> dict[int, FlightDump]:
    return {rank: parse_dump((DUMPS / f"{moment}-{rank}").read_bytes()) for rank in ranks}


#: Number of the last enqueued, number of the last completed, name of the collectives that have not completed.
Numbers = tuple[int, int] | tuple[int, int, str]


def nccl(ranks: Mapping[str, str], numbers: Mapping[str, Numbers], *, p2p: bool = False) -> FlightDump:
    """A dump of a rank that has the groups `ranks`, with what it has enqueued and completed in them."""
    entries: list[object] = []
    status: dict[str, object] = {}
    for pg_id, (group, (enqueued, completed, *call)) in enumerate(numbers.items()):
        status[str(pg_id)] = {"last_enqueued_collective": enqueued, "last_completed_collective": completed}
        for number in range(1, enqueued + 1):
            name = f"nccl:{call[0] if call else 'all_reduce'}"
            state = "completed" if number <= completed else "started"
            more = {"state": state, "profiling_name": name, "record_id": len(entries), "retired": False, "is_p2p": p2p}
            entries.append({"pg_id": pg_id, "process_group": (group, group), "collective_seq_id": number, **more})
    config = {group: {"name": group, "desc": group, "ranks": f"[{text}]"} for group, text in ranks.items()}
    top = {"version": "2.4", "pg_config": config, "pg_status": status, "entries": entries}
    return parse_dump(pickle.dumps(top, 2))


ALL = {"all": "0, 1, 2, 3"}


def finding(dumps: Mapping[int, FlightDump], world: int = 4):
    return find_laggards(dumps, dict(dumps), range(world))


# --- real dumps -------------------------------------------------------------------------------------------------------


def test_the_rank_that_did_not_come_is_named() -> None:
    found = find_laggards(real("hung"), real("later"), range(4))
    assert (found.verdict, found.culprits, found.stands_still) == (LibraryVerdict.ABSENT, (3,), True)
    everyone, pair = found.stuck
    assert (everyone.group, everyone.call, everyone.number) == ("default_pg", "gloo:all_reduce", 2)
    assert (everyone.inside, everyone.absent, everyone.unknown) == ((0, 1, 2), (3,), ())
    assert (pair.group, pair.call, pair.inside, pair.absent) == ("pair 2", "gloo:broadcast", (2,), (3,))
    assert "step (" in everyone.line
    assert found.reason == (
        "ranks 0-2 wait in gloo:all_reduce (number 2 of group default_pg), to which rank 3 did not come"
    )


def test_what_moves_proves_nothing() -> None:
    found = find_laggards(real("running"), real("hung"), range(4))
    assert (found.verdict, found.moved, found.culprits) == (LibraryVerdict.MOVES, (0, 1, 2), ())
    one = find_laggards(real("hung"), real("later") | real("running", [1]), range(4))
    assert (one.verdict, one.moved) == (LibraryVerdict.MOVES, (1,))


def test_a_job_between_collectives_is_idle() -> None:
    assert find_laggards(real("running"), real("running"), range(4)).verdict is LibraryVerdict.IDLE


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_dump_of_another_rank_changes_nothing(missing: int) -> None:
    ranks = [rank for rank in range(4) if rank != missing]
    found = find_laggards(real("hung", ranks), real("later"), range(4))
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, (3,))
    assert found.stuck[0].unknown == (missing,)


def test_the_missing_dump_may_be_that_of_the_rank_that_did_not_come() -> None:
    found = find_laggards(real("hung"), real("later", range(3)), range(4))
    assert (found.verdict, found.culprits, found.stuck[0].unknown) == (LibraryVerdict.UNDECIDED, (), (3,))
    assert "rank 3 did not answer" in found.reason


def test_ranks_of_other_nodes_are_unknown() -> None:
    found = find_laggards(real("hung", [0]), real("later", [0]), range(1000))
    assert (found.verdict, found.stuck[0].unknown) == (LibraryVerdict.UNDECIDED, tuple(range(1, 1000)))


def test_no_dumps() -> None:
    assert find_laggards({}, real("later"), range(4)).verdict is LibraryVerdict.UNDECIDED


# --- as NCCL writes them ----------------------------------------------------------------------------------------------


def test_enqueued_ahead_of_what_it_waits_in() -> None:
    waits, came, absent = nccl(ALL, {"all": (9, 6)}), nccl(ALL, {"all": (7, 6)}), nccl(ALL, {"all": (6, 6)})
    found = finding({0: waits, 1: came, 2: absent, 3: waits})
    assert (found.culprits, found.stuck[0].number, found.stuck[0].inside) == ((2,), 7, (0, 1, 3))


def test_all_came() -> None:
    found = finding(dict.fromkeys(range(4), nccl(ALL, {"all": (7, 6)})))
    assert (found.verdict, found.culprits, found.stands_still) == (LibraryVerdict.LAUNCHED, (), True)
    assert "all its ranks came" in found.reason


def test_the_source_of_a_broadcast_goes_on() -> None:
    # Rank 0 sent its part of number 7 and came to 8; 1 and 2 are in 7, and 3 has completed it and does not come to 8.
    inside = nccl(ALL, {"all": (7, 6)})
    found = finding({0: nccl(ALL, {"all": (8, 7)}), 1: inside, 2: inside, 3: nccl(ALL, {"all": (7, 7)})})
    assert (found.verdict, found.culprits, found.stuck[0].number) == (LibraryVerdict.ABSENT, (3,), 8)
    assert [one.number for one in found.stuck] == [8, 7]


def test_a_rank_that_waits_elsewhere_is_no_culprit() -> None:
    groups = ALL | {"pair": "2, 3"}
    waits = nccl(groups, {"all": (7, 6)})
    victim, absent = nccl(groups, {"all": (6, 6), "pair": (5, 4)}), nccl(groups, {"all": (6, 6), "pair": (4, 4)})
    found = finding({0: waits, 1: waits, 2: victim, 3: absent})
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, (3,))
    assert [(one.inside, one.absent) for one in found.stuck] == [((0, 1), (2, 3)), ((2,), (3,))]


def test_a_rank_that_waits_for_an_unknown_one_is_no_culprit() -> None:
    groups = {"all": "0, 1, 2", "pair": "2, 3"}
    waits = nccl(groups, {"all": (7, 6)})
    found = finding({0: waits, 1: waits, 2: nccl(groups, {"all": (6, 6), "pair": (5, 4)})})
    assert (found.verdict, found.culprits, found.stuck[0].unknown) == (LibraryVerdict.UNDECIDED, (), (3,))


def test_a_rank_that_waits_where_all_came_is_no_culprit() -> None:
    groups = {"all": "0, 1", "pair": "1, 2"}
    inside = nccl(groups, {"all": (6, 6), "pair": (5, 4)})
    found = finding({0: nccl(groups, {"all": (7, 6)}), 1: inside, 2: inside}, world=3)
    assert (found.verdict, found.culprits, found.stuck[0].group) == (LibraryVerdict.LAUNCHED, (), "pair pair")


def test_a_deadlock_across_groups() -> None:
    groups = {"a": "0, 1", "b": "0, 1"}
    first, second = nccl(groups, {"a": (2, 1), "b": (1, 1)}), nccl(groups, {"a": (1, 1), "b": (2, 1)})
    found = finding({0: first, 1: second}, world=2)
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, ())
    assert found.reason.startswith("deadlock across groups: rank 0 waits in nccl:all_reduce (number 2 of group a a)")


def test_different_collectives() -> None:
    reduce, gather = nccl(ALL, {"all": (7, 6)}), nccl(ALL, {"all": (7, 6, "all_gather")})
    found = finding({0: reduce, 1: reduce, 2: gather, 3: reduce})
    assert (found.verdict, found.culprits) == (LibraryVerdict.MISMATCH, ())
    assert "ranks 0-1,3 called nccl:all_reduce; rank 2 called nccl:all_gather" in found.reason


def test_a_rank_that_never_used_the_group() -> None:
    waits = nccl(ALL, {"all": (1, 0)})
    found = finding({0: waits, 1: waits, 2: waits, 3: nccl(ALL, {})})
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, (3,))


def test_two_groups_of_one_name() -> None:
    first, second = {"tp": "0, 1"}, {"tp": "2, 3"}
    waits, other = nccl(first, {"tp": (7, 6)}), nccl(second, {"tp": (2, 2)})
    found = finding({0: waits, 1: waits, 2: other, 3: other})
    assert (found.verdict, [one.inside for one in found.stuck]) == (LibraryVerdict.LAUNCHED, [(0, 1)])


def test_a_rank_whose_groups_have_no_names_is_unknown() -> None:
    waits = nccl(ALL, {"all": (1, 0)})
    top = {"version": "2.10", "entries": [], "pg_config": {}, "pg_status": {"5": {"last_enqueued_collective": 4}}}
    found = finding({0: waits, 1: waits, 2: waits, 3: parse_dump(pickle.dumps(top, 2))})
    assert (found.verdict, found.stuck[0].unknown) == (LibraryVerdict.UNDECIDED, (3,))


def test_a_rank_that_waits_in_a_group_without_a_name_is_unknown() -> None:
    waits = nccl(ALL, {"all": (2, 1)})
    status = {"0": {"last_enqueued_collective": 1, "last_completed_collective": 1}}
    status["5"] = {"last_enqueued_collective": 4, "last_completed_collective": 3}
    entry = {"pg_id": 0, "process_group": ("all", "all"), "collective_seq_id": 1, "state": "completed"}
    top = {"version": "2.10", "entries": [entry], "pg_config": {}, "pg_status": status}
    found = finding({0: waits, 1: waits, 2: waits, 3: parse_dump(pickle.dumps(top, 2))})
    assert (found.verdict, found.stuck[0].unknown) == (LibraryVerdict.UNDECIDED, (3,))


def test_groups_with_sends_and_receives_prove_nothing() -> None:
    found = finding({0: nccl(ALL, {"all": (7, 6)}, p2p=True), 1: nccl(ALL, {"all": (6, 6)}, p2p=True)}, world=2)
    assert (found.verdict, found.stuck) == (LibraryVerdict.UNDECIDED, ())
