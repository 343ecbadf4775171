"""The cards that the node had: remembered over restarts of a real daemon, missed, accepted; and health gates."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster import client
from muster.v1 import job_pb2, node_pb2, probe_pb2
from tests.conftest import Daemon, eventually
from tests.fakes.cards import FakeCards
from tests.fakes.models import MODELS

CONFIG = """
[health]
skip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
"""
#: For a driver that hangs. A healthy one may well take so long on a busy machine.
IMPATIENT = CONFIG + "[cards]\ndriver_deadline_s = 2.0\n"


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as made:
        yield made


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    """One that has remembered its four cards."""
    return of_four(make_daemon(CONFIG, cards.env))


def of_four(daemon: Daemon) -> Daemon:
    """Returns once it has remembered its four cards."""
    eventually(lambda: len(remembered(daemon)) == 4)
    return daemon


def remembered(daemon: Daemon) -> list[Any]:
    path = daemon.root.state / "node.json"
    return list(json.loads(path.read_bytes())["inventory"]["cards"]) if path.exists() else []


def look(daemon: Daemon) -> list[Any]:
    return list(daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=["inventory"]), timeout=60).results)


def conditions(daemon: Daemon) -> dict[tuple[str, str], Any]:
    found = daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.conditions
    return {(c.code, c.device): c for c in found if c.item == "inventory"}


def again(daemon: Daemon, number: int = 15) -> None:
    daemon.kill(number)
    daemon.restart()


def accept(daemon: Daemon, *names: str) -> list[tuple[str, str]]:
    request = node_pb2.AcceptCardsRequest(cards=names, all=not names)
    return [(one.code, one.device) for one in daemon.nodes.AcceptCards(request, timeout=60).accepted]


@pytest.mark.slow
@pytest.mark.parametrize("number", [9, 15])
def test_a_card_that_is_missing_after_a_restart_is_a_condition_until_it_is_accepted(
    daemon: Daemon, cards: FakeCards, number: int
):
    daemon.kill(number)
    cards[2].remove()
    daemon.restart()
    key = ("CARD_MISSING", cards[2].bus_id)
    condition = eventually(lambda: conditions(daemon).get(key))
    assert condition.status == "CRITICAL"
    assert cards[2].uuid in condition.reason and f"serial {cards[2].serial}" in condition.reason
    # It stays over the next restart, and what is there is leased all the same.
    again(daemon)
    assert conditions(daemon)[key].since == condition.since
    spec = job_pb2.JobSpec(command=["true"], cards=job_pb2.CardRequest(count=3))
    job = daemon.wait(daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id)
    assert job.verdict.exit_code == 0 and not job.warnings
    # An operator accepts it; then it is forgotten for good.
    done = daemon.cli("node", "accept", cards[2].serial)
    assert done.returncode == 0 and "CARD_MISSING" in done.stdout
    assert conditions(daemon) == {} and len(remembered(daemon)) == 3
    (event,) = [e for e in daemon.event_list() if e.kind == "node.card_accepted"]
    assert event.attributes["code"] == "CARD_MISSING" and event.attributes["by"]
    audit = (daemon.root.log / "audit.log").read_text().splitlines()
    assert any("AcceptCards" in line and cards[2].serial in line for line in audit)
    again(daemon)
    eventually(lambda: look(daemon))
    assert conditions(daemon) == {}


@pytest.mark.slow
def test_a_card_that_comes_back_clears_its_condition(daemon: Daemon, cards: FakeCards):
    daemon.kill()
    cards[1].remove()
    daemon.restart()
    eventually(lambda: ("CARD_MISSING", cards[1].bus_id) in conditions(daemon))
    # While a job holds a card the others keep their numbers.
    spec = job_pb2.JobSpec(command=["sleep", "600"], cards=job_pb2.CardRequest(indices=[1]))
    job = daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job
    cards[1].insert()
    assert "CARD_MISSING" in [r.code for r in look(daemon)]
    daemon.stop(job.job_id, 0)
    eventually(lambda: "CARD_MISSING" not in [r.code for r in look(daemon)])
    assert conditions(daemon) == {}
    assert len(daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.cards) == 4
    gone = [e for e in daemon.event_list() if e.kind == "node.condition_cleared"]
    assert "CARD_MISSING" in gone[-1].message


@pytest.mark.slow
def test_replaced_moved_and_new_cards_are_distinguished(daemon: Daemon, cards: FakeCards):
    daemon.kill()
    cards[0].uuid, cards[0].serial = "GPU-11111111-2222-3333-4444-555555555555", "999"
    cards[3].bus_id = "0000:f9:00.0"
    daemon.restart()
    found = eventually(lambda: len(conditions(daemon)) == 2 and conditions(daemon))
    assert {key: c.status for key, c in found.items()} == {
        ("CARD_REPLACED", "card 0"): "WARN",
        ("CARD_MOVED", "card 3"): "WARN",
    }
    # They say nothing of the cards' health.
    spec = job_pb2.JobSpec(command=["true"], cards=job_pb2.CardRequest(count=1))
    job = daemon.wait(daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id)
    assert job.ranks[0].device == 0 and not job.warnings
    assert sorted(accept(daemon)) == [("CARD_MOVED", "card 3"), ("CARD_REPLACED", "card 0")]
    assert conditions(daemon) == {} and accept(daemon) == []
    daemon.kill()
    cards.state.all.card_count = 5
    cards[4].become(MODELS[cards[0].model])
    daemon.restart()
    eventually(lambda: ("CARD_NEW", "card 4") in conditions(daemon))


@pytest.mark.slow
def test_cards_that_do_not_answer_are_not_missing(make_daemon: Callable[..., Daemon], cards: FakeCards):
    daemon = of_four(make_daemon(IMPATIENT, cards.env))
    daemon.kill()
    cards.unload()
    daemon.restart()
    eventually(lambda: look(daemon)[0].code == "NODE_NOT_TOLD")
    assert conditions(daemon) == {}
    cards.load()
    eventually(lambda: look(daemon)[0].code == "NODE_OK", 60)
    cards[1].lose()
    cards[2].hang()
    look(daemon)
    assert conditions(daemon) == {}
    # Nor after a restart, with which neither says who it is.
    again(daemon)
    eventually(lambda: {r.device: r.code for r in look(daemon)}.get("card 1") == "NODE_NOT_TOLD", 60)
    assert conditions(daemon) == {}
    cards[1].back()
    cards[2].clear()
    eventually(lambda: {r.code for r in look(daemon)} == {"NODE_OK"}, 60)


@pytest.mark.slow
def test_a_library_that_is_gone_is_one_finding_and_an_end_of_it_is_the_driver_back(
    make_daemon: Callable[..., Daemon], cards: FakeCards
):
    daemon = of_four(make_daemon(CONFIG, cards.env))
    daemon.kill()
    library = cards.folder / "libnvidia-ml.so.1"
    library.rename(library.with_suffix(".away"))
    daemon.restart()
    eventually(lambda: list(conditions(daemon)) == [("CARD_DRIVER_GONE", "")])
    gate = daemon.cli("check", "--gate", "inventory", "driver", "gpu-lost")
    assert gate.returncode == 1
    library.with_suffix(".away").rename(library)
    again(daemon)
    eventually(lambda: conditions(daemon) == {})
    assert len(remembered(daemon)) == 4


@pytest.mark.slow
def test_a_damaged_file_is_set_aside_and_told(daemon: Daemon, cards: FakeCards):
    daemon.kill()
    (daemon.root.state / "node.json").write_text("{")
    daemon.restart()
    warnings = daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.warnings
    assert any("set aside" in text and "inventory of the cards" in text for text in warnings)
    eventually(lambda: len(remembered(daemon)) == 4)


@pytest.mark.slow
def test_what_cannot_be_accepted(daemon: Daemon, cards: FakeCards):
    with pytest.raises(grpc.RpcError) as caught:
        accept(daemon, "2")
    assert client.failure(caught.value).reason == "NOTHING_TO_ACCEPT"
    with pytest.raises(grpc.RpcError) as caught:
        daemon.nodes.AcceptCards(node_pb2.AcceptCardsRequest(cards=["2"], all=True), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert daemon.cli("node", "accept").returncode == 2
    done = daemon.cli("node", "accept", "--all")
    assert done.returncode == 0 and "nothing to accept" in done.stderr
    reader = daemon.cli("node", "accept", "--all", "--address", f"unix:{daemon.root.reader_socket}")
    assert reader.returncode == 5 and "operator" in reader.stderr


@pytest.mark.slow
def test_a_check_without_a_daemon_knows_the_cards_that_the_node_had(daemon: Daemon, cards: FakeCards):
    daemon.kill()
    before = (daemon.root.state / "node.json").read_bytes()
    cards[3].remove()
    done = daemon.cli("check", "inventory", "-o", "json")
    assert done.returncode == 2
    assert "CARD_MISSING" in [r["code"] for r in json.loads(done.stdout)["checks"]]
    assert daemon.cli("check", "--gate", "inventory").returncode == 1
    assert (daemon.root.state / "node.json").read_bytes() == before
    cards[3].insert()
    assert daemon.cli("check", "--gate", "inventory", "gpu-lost").returncode == 0


@pytest.mark.slow
def test_a_gate_does_not_pass_a_node_without_any_card(make_daemon: Callable[..., Daemon]):
    daemon = make_daemon(CONFIG.replace("[health]", "[health]\nexpected_cards = 8"))
    condition = eventually(lambda: conditions(daemon).get(("CARD_COUNT", "")))
    assert condition.status == "CRITICAL"
    config = str(daemon.config)
    for items in (["--within", "60s"], ["inventory"]):
        assert daemon.cli("check", "--gate", "--config", config, *items).returncode == 1
    fits = daemon.cli("check", "--gate", "--config", config, "--set", "expected_cards=0", "inventory")
    assert fits.returncode == 0, fits.stdout + fits.stderr
    # It refuses jobs that want cards, also such as leave out the pre-checks; the others do not need any.
    for more in ([], ["--skip-check"]):
        refused = daemon.cli("start", *more, "--cards", "1", "--", "true")
        assert refused.returncode == 5 and "CARD_COUNT" in refused.stderr, refused
        assert daemon.cli("run", *more, "--", "true").returncode == 0


ASCEND = (
    IMPATIENT
    + """
[telemetry]
health_s = 0.2
holders_s = 0.2
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["dcmi_get_device_logic_id", "dcmi_get_device_num_in_card", "*"])
def test_an_ascend_chip_that_hangs_while_the_cards_are_listed_costs_none_but_itself(
    make_daemon: Callable[..., Daemon], tmp_path: Path, function: str
):
    """At a start of the daemon: the others are listed, leased and sampled; it comes back when it answers."""
    with FakeCards.for_test(tmp_path / "npus", "ascend", 4, program=False) as npus:
        daemon = of_four(make_daemon(ASCEND, npus.env))
        daemon.kill()
        # What is asked about a board knows no card in the fake: the board's own call is one for all of them.
        if function == "dcmi_get_device_num_in_card":
            npus.hang(function)
        else:
            npus[2].hang(function)
        daemon.restart()

        def shown() -> dict[int, Any]:
            return {c.index: c for c in daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.cards}

        hung = {0, 1, 2, 3} if function == "dcmi_get_device_num_in_card" else {2}
        eventually(lambda: {i for i, card in shown().items() if card.health == "UNKNOWN"} == hung, 60)
        assert list(shown()) == [0, 1, 2, 3]
        well = {0, 1, 2, 3} - hung
        for index in well:
            npus[index].util = 50 + index
        eventually(lambda: {i for i, card in shown().items() if card.reading.utilization == 50 + i} == well)
        eventually(lambda: {r.device for r in gpu_looks(daemon) if r.code == "DRIVER_HANG"} >= names(hung), 60)
        if well:
            spec = job_pb2.JobSpec(command=["true"], cards=job_pb2.CardRequest(count=3))
            job = daemon.wait(daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id)
            assert job.verdict.exit_code == 0 and {rank.device for rank in job.ranks} == well
        assert conditions(daemon) == {}, "it is not missing"
        npus.clear()
        npus[2].clear()
        eventually(lambda: all(card.uuid and card.health == "OK" for card in shown().values()), 60)
        npus[2].util = 77
        eventually(lambda: shown()[2].reading.utilization == 77)
        assert list(shown()) == [0, 1, 2, 3]


def names(indices: set[int]) -> set[str]:
    return {f"card {index}" for index in indices}


def gpu_looks(daemon: Daemon) -> list[Any]:
    return list(daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=["driver"]), timeout=60).results)
