"""What ranks call their cards, in containers that have a part of the host's."""

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from muster import client
from muster.v1 import job_pb2, node_pb2
from tests.conftest import eventually
from tests.fakes import FakeCards
from tests.integration.box import Boxed, mounted

#: A /dev with what programs need, and with the nodes of cards.
DEV = """
mount -t tmpfs -o mode=755 dev '{dev}'
for name in null zero full random urandom tty; do touch '{dev}'/$name; mount --bind /dev/$name '{dev}'/$name; done
mkdir '{dev}/shm' '{dev}/pts'
mount --rbind /dev/shm '{dev}/shm'
mount --rbind /dev/pts '{dev}/pts'
ln -s /proc/self/fd '{dev}/fd'
for node in {nodes}; do mknod '{dev}'/$node c {major} ${{node##*[a-z]}}; done
mount --rbind '{dev}' /dev
"""
CONFIG = """
[checks]
policy = "off"
[health]
policy = "off"
"""
#: What a rank is told of its cards.
TOLD = 'echo "$RANK $LOCAL_RANK ${ASCEND_RT_VISIBLE_DEVICES:-$CUDA_VISIBLE_DEVICES} ${DEVICE_ID:--}"'


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Callable[..., Boxed]]:
    """A daemon that sees these device nodes alone, and the driver's library of these cards."""
    made: list[Boxed] = []

    def start(cards: FakeCards, *nodes: str, config: str = CONFIG) -> Boxed:
        dev, root = tmp_path / f"dev{len(made)}", tmp_path / f"root{len(made)}"
        dev.mkdir()
        root.mkdir()
        major = 195 if cards.kind == "nvidia" else 236
        prefix = mounted(DEV.format(dev=dev, nodes=" ".join(nodes), major=major))
        made.append(Boxed(root, config, prefix, **cards.env))
        daemon = made[-1].start()
        eventually(lambda: len(node(daemon).cards) and all(card.uuid for card in node(daemon).cards))
        return daemon

    yield start
    for daemon in made:
        daemon.close()


def node(daemon: Boxed) -> node_pb2.Node:
    return daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node


def told(daemon: Boxed, **spec) -> list[str]:
    """What each rank of a job was told, by rank."""
    job = daemon.wait(daemon.run("sh", "-c", TOLD, **spec).job_id)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
    return [Path(rank.log_path).read_text().strip() for rank in job.ranks]


def cards_of(**wanted) -> dict:
    return {"ranks": 0, "cards": job_pb2.CardRequest(**wanted)}


@pytest.mark.parametrize("whole", [False, True])
def test_ascend_ranks_get_the_numbers_that_cann_counts(box, tmp_path, whole):
    """Physical cards 4 and 5 are mounted; the library shows these alone, or all cards of the host."""
    with FakeCards.for_test(tmp_path / "npus", "ascend", 8 if whole else 2) as npus:
        if not whole:
            for card, number in zip(npus, (4, 5), strict=True):
                card.minor = card.board = number
        daemon = box(npus, "davinci4", "davinci5", "davinci_manager0")
        shown = [(c.index, c.physical_id, c.logical_id, c.card_id, c.chip_id, c.visible_as) for c in node(daemon).cards]
        assert shown == [(4, 4, 0, 4, 0, "0"), (5, 5, 1, 5, 0, "1")]
        assert told(daemon, **cards_of(count=2)) == ["0 0 0,1 0", "1 1 0,1 1"]
        assert told(daemon, **cards_of(indices=[5, 4])) == ["0 0 0,1 0", "1 1 0,1 1"], "CANN wants them ascending"
        assert told(daemon, **cards_of(indices=[5])) == ["0 0 1 0"]
        text = daemon.cli("node", "-o", "wide").stdout
        row = next(line.split() for line in text.splitlines() if line.startswith("5 "))
        assert row[:5] == ["5", "ascend", "davinci5", "5/0", "1"]
        names = sorted(path.name for path in daemon.root.log.glob("*-device-*.txt"))
        assert {name.partition("-device-")[2] for name in names} == {"4.txt", "5.txt"}


DEVICE = '{"device_id": "%d", "device_ip": "10.0.0.%d", "rank_id": "%d"}'
TABLE = '{"status": "completed", "server_count": "1", "server_list": [{"server_id": "h", "device": [%s]}]}'


@pytest.mark.parametrize(("order", "numbers"), [((6, 7), ("0", "1")), ((7, 6), ("1", "0"))])
def test_a_rank_table_names_physical_cards(box, tmp_path, order, numbers):
    """Of a job that asks for so many cards it is those of the table that it gets, each rank its own."""
    (tmp_path / "table.json").write_text(
        TABLE % ", ".join(DEVICE % (card, card, rank) for rank, card in enumerate(order))
    )
    with FakeCards.for_test(tmp_path / "npus", "ascend", 3) as npus:
        for card, number in zip(npus, (5, 6, 7), strict=True):
            card.minor = card.board = number
        daemon = box(npus, "davinci5", "davinci6", "davinci7")
        found = told(daemon, **cards_of(count=2), rank_table=str(tmp_path / "table.json"))
        assert found == [f"0 0 1,2 {numbers[0]}", f"1 1 1,2 {numbers[1]}"]
        eventually(lambda: not any(card.job_id for card in node(daemon).cards))
        job = daemon.wait(
            daemon.run("true", **cards_of(indices=[5, 6]), rank_table=str(tmp_path / "table.json")).job_id
        )
        assert job.state == job_pb2.JOB_STATE_FAILED
        assert "gives cards 6-7 to server h, and the job asks for 5-6" in job.verdict.summary


def test_nvidia_cards_in_a_container_whose_nvml_counts_the_hosts(box, tmp_path):
    with FakeCards.for_test(tmp_path / "gpus", "nvidia", 4) as gpus:
        for place in (0, 1):
            gpus[place].fail("nvmlDeviceGetHandleByIndex_v2", 4)
        daemon = box(gpus, "nvidia2", "nvidia3")
        uuids = [gpus[2].uuid, gpus[3].uuid]
        shown = [(card.index, card.device_node, card.physical_id, card.visible_as) for card in node(daemon).cards]
        assert shown == [(2, "/dev/nvidia2", 2, uuids[0]), (3, "/dev/nvidia3", 3, uuids[1])]
        assert told(daemon, **cards_of(count=2)) == [f"{rank} {rank} {','.join(uuids)} -" for rank in (0, 1)]


def test_nvidia_cards_in_a_container_that_counts_its_own(box, tmp_path):
    with FakeCards.for_test(tmp_path / "gpus", "nvidia", 2) as gpus:
        gpus[0].minor, gpus[1].minor = 6, 7
        daemon = box(gpus, "nvidia6", "nvidia7")
        shown = [(card.index, card.device_node, card.visible_as) for card in node(daemon).cards]
        assert shown == [(0, "/dev/nvidia6", "0"), (1, "/dev/nvidia7", "1")]
        assert told(daemon, **cards_of(count=2)) == ["0 0 0,1 -", "1 1 0,1 -"]
        env = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
        assert told(daemon, **cards_of(indices=[1]), env=env) == [f"0 0 {gpus[1].uuid} -"]


def refusal(daemon: Boxed, **spec) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        daemon.run("true", **spec)
    known = client.failure(caught.value)
    return known.reason, known.message


def test_jobs_get_the_instances_of_a_card_in_mig_mode(box, tmp_path):
    with FakeCards.for_test(tmp_path / "gpus", "nvidia", 2) as gpus:
        gpus[0].mig, gpus[0].mig_count = 1, 2
        daemon = box(gpus, "nvidia0", "nvidia1", config=CONFIG.rpartition("[health]")[0])
        cards = {card.index: card for card in node(daemon).cards}
        assert list(cards) == [0, 1, 1000, 1001] and cards[0].mig and not cards[0].visible_as
        first, second = cards[1000].uuid, cards[1001].uuid
        assert first.startswith("MIG-") and cards[1001].visible_as == second
        assert (cards[1001].parent, cards[1001].gpu_instance_id, cards[1001].compute_instance_id) == (0, 8, 0)
        # Each rank has its own, as CUDA takes the first of a list.
        assert told(daemon, **cards_of(indices=[1000, 1001])) == [f"0 0 {first} -", f"1 1 {second} -"]
        assert told(daemon, **cards_of(indices=[1])) == [f"0 0 {gpus[1].uuid} -"]
        assert refusal(daemon, **cards_of(indices=[0])) == (
            "NO_SUCH_CARD", "card 0 is in MIG mode: name its instances, cards 1000-1001",
        )  # fmt: skip
        reason, message = refusal(daemon, **cards_of(indices=[1, 1000]))
        assert reason == "NO_SUCH_CARD"
        assert message.startswith(
            "card 1 and MIG instance 1000: CUDA shows a process either whole cards or an instance"
        )
        assert message.endswith("name whole cards alone (--cards 1) or instances alone (--cards 1000)")
        reason, message = refusal(daemon, **cards_of(count=2), boot="torchrun")
        assert reason == "NO_SUCH_CARD" and "with --boot torchrun a job can have one" in message
        eventually(lambda: not any(card.job_id for card in node(daemon).cards))
        # What is wrong with the card is wrong with its instances.

        def off_bus() -> bool:
            gpus.xid(0, 79)  # again and again: nothing is reported to who does not listen yet
            return any(condition.card == 0 for condition in node(daemon).conditions)

        eventually(off_bus)
        reason, message = refusal(daemon, **cards_of(indices=[1001]))
        assert reason == "NODE_UNHEALTHY" and "card 0" in message
        assert told(daemon, **cards_of(indices=[1])) == [f"0 0 {gpus[1].uuid} -"]
        rows = [line.split()[:5] for line in daemon.cli("node", "-o", "wide").stdout.splitlines()]
        assert ["1001", "nvidia", "nvidia0", second, "NVIDIA"] in rows
