"""What muster makes of the answers of a real card, replayed through a library of the same functions."""

import ast
import json
import os
import re
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


def test_a_field_that_the_driver_passed_over_is_not_zero(h100):
    """It answers success for fields 190 and 193, and fills in nothing."""
    ask = "backend._session.nvml.fields(backend._session.handles[0], ((82, 0), (190, 0), (193, 0)))"
    assert ast.literal_eval(asked(h100, ask)[0]) == {82: 45}


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


def test_what_the_parts_of_the_card_do(h100):
    """100 % of utilization is that of a kernel somewhere; these say what it does."""
    h100.scene("load")
    first, second = asked(
        h100,
        "backend.health(0).activity",
        "__import__('time').sleep(1.1) or (lambda a: [a.sm, a.tensor, a.dram, a.fp32])(backend.health(0).activity)",
    )
    assert first == "None", "there is no reading before the first one"
    sm, tensor, dram, fp32 = ast.literal_eval(second)
    assert sm > 90 and tensor > 50
    assert dram < 5 and fp32 < 5, "the load is one of tensor cores alone"
    assert not h100.missed


def test_tensor_cores_in_top_and_metrics(make_daemon, h100, tmp_path):
    h100.scene("load")
    page = tmp_path / "muster.prom"
    metrics = f'[metrics]\ntextfile = "{page}"\ntextfile_s = 0.2\ndcgm_names = true\n'
    daemon = make_daemon(f"[telemetry]\nhealth_s = 1.2\n{metrics}", h100.env)

    def shown():
        text = daemon.cli("top", "-n", "1").stdout
        return text if "TENSOR" in text else ""

    head, line = eventually(shown).splitlines()[2:4]
    tensor = line[: head.index("TENSOR") + 6].split()[-1]
    assert int(tensor.rstrip("%")) > 50
    text = eventually(
        lambda: page.exists() and "PIPE_TENSOR_ACTIVE{" in (t := page.read_text()) and "FB_FREE{" in t and t
    )
    values = dict(re.findall(r"^(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE))
    free, used, reserved = (float(values[f"DCGM_FI_DEV_FB_{name}"]) for name in ("FREE", "USED", "RESERVED"))
    assert free + used + reserved == pytest.approx(81559, abs=1) and reserved > 400
