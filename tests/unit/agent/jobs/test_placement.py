"""Where a job's ranks are: numbers, devices and cards, from the spec and the rank table."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.jobs.cards.placement import placed, planned, server_of
from muster.supervisors.launch.modes.ranktable import RankTable
from muster.supervisors.launch.modes.ranktable_json import RankTableError
from muster.supervisors.model.journal import FORMAT, Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.replay import replay
from muster.supervisors.model.spec import Boot, JobSpec
from tests.tables import parse

CONVERTED = Path("/state/jobs/j/rank_table.json")


def spec(**changes: Any) -> JobSpec:
    return JobSpec("j", ("x",), **{"rank_table": "/t", **changes})


def template2(*counts: int, name: str = "/t/jobstart_hccl.json") -> RankTable:
    """Servers 10.0.0.1 and on with so many devices each."""
    instances = [
        {
            "pod_name": f"job-{i}",
            "server_id": f"10.0.0.{i + 1}",
            "devices": [{"device_id": str(d), "device_ip": f"192.168.{i}.{d}"} for d in range(count)],
        }
        for i, count in enumerate(counts)
    ]
    group = {"group_name": "g", "device_count": str(sum(counts)), "instance_count": str(len(counts))}
    table = {"status": "completed", "group_count": "1", "group_list": [group | {"instance_list": instances}]}
    made = parse(json.dumps(table).encode(), name)
    assert made is not None
    return made


def template1(*servers: dict[str, int], name: str = "/t/v1.json") -> RankTable:
    """Servers 10.0.0.1 and on with the ranks of their devices by the devices' numbers."""
    listed = [
        {
            "server_id": f"10.0.0.{i + 1}",
            "device": [{"device_id": d, "device_ip": "", "rank_id": str(rank)} for d, rank in devices.items()],
        }
        for i, devices in enumerate(servers)
    ]
    table = {"status": "completed", "version": "1.0", "server_count": str(len(servers)), "server_list": listed}
    made = parse(json.dumps(table).encode(), name)
    assert made is not None
    return made


def job() -> Job:
    return Job(card_kind="slot", master_addr="127.0.0.1", master_port=40001)


def plan(asked: JobSpec, table: RankTable, here: int = 0, kind: str = "slot", cards: tuple[int, ...] = ()) -> Record:
    return planned(asked, job(), table, here, kind, cards, CONVERTED)


def as_job(place: Record, asked: JobSpec) -> Job:
    """What the journal makes of it."""
    accepted = {
        "kind": "accepted", "n": 0, "t": 1.0, "format": FORMAT, "digest": "", "boot": "", "card_kind": "slot",
        "master_addr": "a", "master_port": 1, "by": "me", **placed(asked, [0]),
    }  # fmt: skip
    return replay([accepted, {"n": 1, "t": 2.0} | json.loads(json.dumps(place))])


# --- without a rank table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "devices", "expected"),
    [
        ({"ranks": 2}, [0, 1], (0, [0, 1], [], 2, 2)),
        ({"card_count": 2}, [4, 6], (0, [4, 6], [4, 6], 2, 2)),
        ({"ranks": 3, "node_count": 4, "node_rank": 2}, [0, 1, 2], (6, [0, 1, 2], [], 3, 12)),
        # Who makes the ranks itself is one process, on the first of its cards.
        ({"card_count": 2, "boot": "torchrun"}, [4, 6], (0, [4], [4, 6], 2, 2)),
        ({"card_count": 2, "boot": "mpi", "node_count": 3, "node_rank": 2}, [4, 6], (2, [4], [4, 6], 2, 6)),
        ({"ranks": 2, "boot": "tensorflow"}, [0, 1], (0, [0], [], 2, 2)),
        ({"ranks": 2, "boot": "tensorflow", "node_count": 3, "node_rank": 1}, [0, 1], (2, [0, 0], [], 2, 6)),
    ],
)
def test_where_the_ranks_are(changes, devices, expected):
    place = placed(JobSpec("j", ("x",), **changes), devices)
    names = ("first_rank", "devices", "cards", "local_ranks", "world_size")
    assert tuple(place[name] for name in names) == expected
    assert (place["node_rank"], place["node_count"]) == (changes.get("node_rank", 0), changes.get("node_count", 1))


def test_a_node_knows_its_name():
    several = JobSpec("j", ("x",), nodes=("a", "b"), node_count=2, node_rank=1)
    assert placed(several, [0])["node_name"] == "b"
    assert placed(JobSpec("j", ("x",)), [0])["node_name"] == ""


def test_before_its_table_is_there_a_job_has_no_ranks():
    place = placed(spec(), [0])
    assert (place["devices"], place["cards"], place["local_ranks"], place["world_size"]) == ([], [], 0, 0)
    assert placed(spec(ranks=2), [0, 1])["local_ranks"] == 2, "unless it says itself how many"


@given(
    st.sampled_from([*Boot]), st.integers(1, 5), st.integers(1, 6), st.booleans(), st.data()
)  # fmt: skip
def test_no_two_processes_of_a_job_have_the_same_number(boot, nodes, count, cards, data):
    numbers: list[int] = []
    for node in range(nodes):
        wanted: dict[str, Any] = {"card_count": count} if cards else {"ranks": count}
        asked = JobSpec("j", ("x",), boot=boot.value, node_count=nodes, node_rank=node, **wanted)
        place = placed(asked, data.draw(st.permutations(range(10)))[:count])
        assert len(place["devices"]) == asked.processes
        assert (place["local_ranks"], place["world_size"]) == (count, count * nodes)
        numbers += range(place["first_rank"], place["first_rank"] + len(place["devices"]))
    assert numbers == list(range(len(numbers)))


# --- which server of the table ----------------------------------------------------------------------------------------


def test_this_node_is_known_by_the_platforms_name():
    table = template2(2, 2, 2)
    assert server_of(spec(env={"MA_CURRENT_INSTANCE_NAME": "job-2"}), table) == 2
    assert server_of(spec(env={"MA_CURRENT_INSTANCE_NAME": "job-1"}, node_count=3, node_rank=2), table) == 1
    with pytest.raises(RankTableError, match=r"job-7.*MA_CURRENT_INSTANCE_NAME"):
        server_of(spec(env={"MA_CURRENT_INSTANCE_NAME": "job-7"}), table)


def test_this_node_is_known_by_its_address():
    table = template1({"0": 0}, {"0": 1})
    assert server_of(spec(env={"MA_CURRENT_HOST_IP": "10.0.0.2"}), table) == 1
    with pytest.raises(RankTableError, match=r"10\.0\.0\.9.*MA_CURRENT_HOST_IP"):
        server_of(spec(env={"MA_CURRENT_HOST_IP": "10.0.0.9"}), table)


@pytest.mark.parametrize("table", [template2(1, 1, 1), template1({"0": 0}, {"0": 1}, {"0": 2})])
@pytest.mark.parametrize("env", [{}, {"MA_CURRENT_INSTANCE_NAME": "", "MA_CURRENT_HOST_IP": ""}])
def test_off_the_platform_a_node_is_known_by_its_rank(table, env):
    assert server_of(spec(env=env), table) == 0
    assert server_of(spec(env=env, node_count=3, node_rank=2), table) == 2


# --- with a table -----------------------------------------------------------------------------------------------------


def test_a_place_of_one_node():
    place = plan(spec(), template2(2))
    assert place == {
        "kind": "planned", "card_kind": "slot", "master_addr": "127.0.0.1", "master_port": 40001,
        "table": str(CONVERTED), "first_rank": 0, "numbers": [0, 1], "devices": [0, 1], "cards": [], "node_rank": 0,
        "node_count": 1, "node_name": "10.0.0.1", "local_ranks": 2, "world_size": 2,
    }  # fmt: skip
    job = as_job(place, spec())
    assert ([rank.rank for rank in job.ranks], job.world_size, job.has_table) == ([0, 1], 2, True)


def test_a_place_among_several_nodes():
    """They meet at the first server, at the port that the platform's nodes have agreed upon."""
    place = plan(spec(), template2(2, 3), here=1, kind="ascend", cards=(4, 5, 6))
    assert (place["numbers"], place["devices"], place["cards"]) == ([2, 3, 4], [0, 1, 2], [4, 5, 6])
    assert (place["node_rank"], place["node_count"], place["node_name"]) == (1, 2, "10.0.0.2")
    assert (place["local_ranks"], place["world_size"], place["card_kind"]) == (3, 5, "ascend")
    assert (place["master_addr"], place["master_port"]) == ("10.0.0.1", 18888)


def test_where_they_meet_may_be_asked_for():
    asked = spec(master_addr="meet.here", master_port=7)
    for table in (template2(1), template2(1, 1)):
        place = plan(asked, table)
        assert (place["master_addr"], place["master_port"]) == ("meet.here", 7)


def test_ranks_are_numbered_as_the_table_says():
    place = plan(spec(), template1({"5": 3, "1": 0}, {"0": 2, "7": 1}), here=1)
    assert (place["numbers"], place["devices"]) == ([2, 1], [0, 1])
    job = as_job(place, spec())
    assert [(rank.rank, rank.local_rank) for rank in job.ranks] == [(2, 0), (1, 1)]


def test_a_table_that_hccl_can_read_is_used_where_it_lies():
    assert plan(spec(), template1({"0": 0}))["table"] == "/t/v1.json"
    assert plan(spec(), template2(1))["table"] == str(CONVERTED)


def test_a_launcher_is_one_process_per_node():
    for here in range(3):
        place = plan(spec(boot="msrun"), template2(8, 8, 8), here=here)
        assert (place["numbers"], place["devices"], place["local_ranks"], place["world_size"]) == ([here], [0], 8, 24)


def test_a_parameter_server_has_a_place_beside_its_worker():
    names: dict[str, Any] = {"nodes": ("a", "b"), "node_count": 2, "master_addr": "a", "master_port": 7000}
    for here in range(2):
        place = plan(spec(boot="tensorflow", node_rank=here, **names), template2(8, 8), here=here)
        assert (place["numbers"], place["devices"]) == ([2 * here, 2 * here + 1], [0, 0])
    assert plan(spec(boot="tensorflow"), template2(8))["numbers"] == [0]


def test_what_is_asked_for_may_say_the_same_as_the_table():
    table = template2(2, 2)
    names: dict[str, Any] = {"nodes": ("a", "b"), "node_count": 2, "master_addr": "a", "master_port": 1}
    for asked in (spec(ranks=2), spec(card_count=2), spec(card_indices=(4, 5)), spec(ranks=2, **names)):
        assert plan(asked, table)["local_ranks"] == 2


# --- a table without devices is none ----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [template2(0), template2(0, 0), template2(), template1({}), template1()])
def test_a_table_without_devices_leaves_the_job_as_it_is_asked_for(table):
    place = plan(spec(ranks=2), table)
    assert (place["table"], place["devices"], place["world_size"], place["cards"]) == ("", [0, 1], 2, [])
    assert (place["master_addr"], place["master_port"]) == ("127.0.0.1", 40001)
    job = as_job(place, spec(ranks=2))
    assert (job.has_table, job.planned, [rank.rank for rank in job.ranks]) == (False, True, [0, 1])

    place = plan(spec(card_count=2), table, kind="nvidia", cards=(4, 6))
    assert (place["devices"], place["cards"], place["card_kind"]) == ([4, 6], [4, 6], "nvidia")
    names: dict[str, Any] = {"nodes": ("a", "b"), "node_count": 2, "node_rank": 1}
    place = plan(spec(ranks=2, **names), table)
    assert (place["first_rank"], place["world_size"], place["node_name"]) == (2, 4, "b")


@pytest.mark.parametrize("table", [template2(0), template1()])
def test_nor_does_it_say_how_many_ranks_there_are_to_be(table):
    with pytest.raises(RankTableError, match="has no device: give the number of ranks"):
        plan(spec(), table)


# --- contradictions ---------------------------------------------------------------------------------------------------

TWO: dict[str, Any] = {"node_count": 2, "master_addr": "a", "master_port": 1}


@pytest.mark.parametrize(
    ("changes", "counts", "here", "said"),
    [
        (TWO, (2,), 0, r"has 1 server\(s\), and the job is one of 2 node\(s\)"),
        (TWO, (2, 2, 2), 0, r"has 3 server\(s\), and the job is one of 2 node\(s\)"),
        ({"nodes": ("alone",)}, (2, 2), 0, r"has 2 server\(s\), and the job is one of 1 node\(s\)"),
        ({"ranks": 3}, (2, 3), 0, r"gives 2 device\(s\) to server 10\.0\.0\.1, and the job asks for 3 ranks"),
        ({"ranks": 1}, (2,), 0, r"gives 2 device\(s\) to server 10\.0\.0\.1, and the job asks for 1 ranks"),
        ({"card_count": 2}, (2, 3), 1, r"gives 3 device\(s\) to server 10\.0\.0\.2, and the job asks for 2 cards"),
        ({"card_indices": (0, 1, 2)}, (2,), 0, r"the job asks for 3 cards"),
        ({}, (2, 0), 1, r"server 10\.0\.0\.2, which is this node, has no device"),
        ({"ranks": 2}, (2, 0), 1, r"server 10\.0\.0\.2, which is this node, has no device"),
        (
            {"boot": "tensorflow"},
            (2, 2),
            0,
            r"has 2 server\(s\), which does not match the job: nodes: tensorflow on 2",
        ),
        ({"boot": "mpi"}, (1, 1, 1), 2, r"has 3 server\(s\), which does not match the job: nodes: mpi on 3 nodes"),
    ],
)
def test_a_table_that_says_something_else_than_the_job_is_refused(changes, counts, here, said):
    with pytest.raises(RankTableError, match=said) as caught:
        plan(spec(**changes), template2(*counts), here)
    assert str(caught.value).startswith("/t/jobstart_hccl.json"), "the file is named, whatever folder was given"


def test_also_of_template_1():
    with pytest.raises(RankTableError, match=r"^/t/v1\.json: .*has no device"):
        plan(spec(), template1({"0": 0}, {}), here=1)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.sampled_from([Boot.RANKS, Boot.TORCHRUN, Boot.MSRUN]))
@settings(deadline=None, max_examples=50)
def test_all_nodes_of_a_table_together_have_each_place_once(counts, boot):
    table = template2(*counts)
    places = [as_job(plan(spec(boot=boot.value), table, here), spec()) for here in range(len(counts))]
    numbers = [rank.rank for place in places for rank in place.ranks]
    assert numbers == list(range(sum(counts) if boot is Boot.RANKS else len(counts)))
    assert {(place.world_size, place.node_count) for place in places} == {(sum(counts), len(counts))}
    assert [place.local_ranks for place in places] == counts
    assert [place.node_rank for place in places] == list(range(len(counts)))
    if len(counts) > 1:
        assert {(place.master_addr, place.master_port) for place in places} == {("10.0.0.1", 18888)}
