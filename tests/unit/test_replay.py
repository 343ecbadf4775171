"""What muster makes of the answers of a real card, replayed through a library of the same functions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BIN, eventually
from tests.fakes.replay import Replay

RECORDS = Path(__file__).parents[1] / "fixtures/nvml"
#: Evaluates one line after the other with the backend open.
_PROGRAM = """
import sys
from muster.probes.cards.nvidia.backend import Nvidia
backend = Nvidia()
backend.open()
cards = [backend.describe(card) for card in backend.cards()]
for line in sys.stdin:
    print(repr(eval(line)), flush=True)
"""


@pytest.fixture
def h100(tmp_path):
    """An H100 80GB HBM3 in a virtual machine, driver 580.159.04."""
    return Replay(tmp_path / "replay", RECORDS / "h100-580.159.04.jsonl")


def asked(replay, *lines):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **replay.env},
        check=True,
    )
    return done.stdout.splitlines()


def test_the_card_and_its_limits(h100):
    model, memory, limits, health = asked(
        h100,
        "cards[0].model, cards[0].bus_id, cards[0].mig, cards[0].numa_node",
        "cards[0].memory_bytes >> 20",
        "cards[0].slowdown_c, cards[0].mem_max_c",
        "(h := backend.health(0)).power_limit_w, h.pcie_width, h.pcie_gen, h.ecc_on, h.recovery_action, h.links",
    )
    assert model == "('NVIDIA H100 80GB HBM3', '0000:00:06.0', False, 0)"
    assert memory == "81559"
    assert limits == "(89.0, 95.0)"
    assert health == "(700.0, 16, 5, True, 0, ())"
    assert not h100.missed, "the record lacks what muster asks: make record-gpu"


def test_idle_and_under_a_load(h100):
    idle = json.loads(asked(h100, "[backend.read(0).util, backend.read(0).mem_used >> 20, len(backend.holders(0))]")[0])
    assert idle == [0.0, 0, 0]
    h100.scene("load")
    util, used, watts, holders = json.loads(
        asked(
            h100,
            "[(r := backend.read(0)).util, r.mem_used >> 20, r.power_w, [h.memory >> 20 for h in backend.holders(0)]]",
        )[0]
    )
    assert util >= 99
    assert watts > 200
    assert holders == [pytest.approx(used, abs=20)]


def test_the_check_of_a_healthy_card_finds_nothing(h100):
    done = subprocess.run(
        [BIN / "muster", "check", "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **h100.env},
        check=False,
    )
    of_card = [check for check in json.loads(done.stdout)["checks"] if check["card"] == 0]
    assert {check["status"] for check in of_card} <= {"OK", "NOT_APPLICABLE"}
    assert {"ecc", "clocks", "temperature", "pcie", "row-remap", "recovery"} <= {check["item"] for check in of_card}


def test_a_daemon_shows_what_the_card_does(make_daemon, h100):
    h100.scene("load")
    daemon = make_daemon(env=h100.env)
    shown = eventually(
        lambda: (c := json.loads(daemon.cli("node", "-o", "json").stdout)["cards"][0]).get("reading") and c
    )
    assert shown["model"] == "NVIDIA H100 80GB HBM3"
    assert "100%" in eventually(lambda: (t := daemon.cli("top", "-n", "1").stdout) and "100%" in t and t)
