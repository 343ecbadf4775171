"""The card that the tests of this folder are about, and what to keep it busy with."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Daemon, eventually

#: Each holder and each health reading soon, so that a test does not wait a minute for it.
CONFIG = """
[telemetry]
health_s = 2.0
holders_s = 2.0
processes_s = 1.5
[health]
[metrics]
listen = "unix:{metrics}"
"""
_WORK = Path(__file__).with_name("work.py")
_LINES = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Real:
    """What nvidia-smi says of card 0; muster is not asked."""

    uuid: str
    model: str
    bus_id: str
    memory_mib: int
    idle_watts: float


def smi(*fields: str) -> list[str]:
    """Of card 0, without units."""
    asked = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    return [each.strip() for each in said.strip().split(",")]


def on_card() -> set[int]:
    """Pids of the programs on card 0, by nvidia-smi."""
    asked = ["nvidia-smi", "--id=0", "--query-compute-apps=pid", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    return {int(line) for line in said.split() if line.isdigit()}


@pytest.fixture(scope="session")
def real() -> Real:
    if shutil.which("nvidia-smi") is None:
        pytest.exit("there is no nvidia-smi: `make test-gpu` is for a machine with an NVIDIA card", 1)
    if pids := on_card():
        pytest.exit(f"processes {sorted(pids)} use card 0: these tests need it for themselves", 1)
    uuid, model, bus_id, memory, power = smi("uuid", "name", "pci.bus_id", "memory.total", "power.draw")
    return Real(uuid, model, bus_id, int(memory), float(power))


#: What the work of the driver alone is called (probes/active/card_program.py).
_DRIVERS_OWN = {"matmul": "burn", "hang": "spin", "fault": "stray", "oom": "full"}


def worker(kind: str, seconds: float = 1e6) -> tuple[str, ...]:
    """The command of a rank that does such work (work.py): with PyTorch where a python in PATH has it, else with the
    driver alone; MUSTER_TEST_GPU_WORK=driver chooses that."""
    if python := torch_python():
        return (python, "-u", str(_WORK), kind, str(seconds))
    (bus_id,) = smi("pci.bus_id")
    program = "muster.probes.active.card_program"
    return (sys.executable, "-u", "-m", program, _DRIVERS_OWN[kind], bus_id, str(seconds))


@functools.cache
def torch_python() -> str:
    """A python that has PyTorch; empty where there is none, or it is not wanted."""
    if os.environ.get("MUSTER_TEST_GPU_WORK") == "driver":
        return ""
    for name in (os.environ.get("MUSTER_TEST_GPU_PYTHON", ""), "python3", "python"):
        found = shutil.which(name) if name else None
        if found and subprocess.run([found, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
            return found
    return ""


@pytest.fixture
def make_node(tmp_path: Path, real: Real) -> Iterator[Callable[..., Daemon]]:
    """Makes a daemon that reads everything every two seconds; afterwards the card is free."""
    made: list[Daemon] = []

    def make(config: str = "") -> Daemon:
        (folder := tmp_path / "root").mkdir()
        daemon = Daemon(folder, CONFIG.format(metrics=tmp_path / "metrics.sock") + config)
        made.append(daemon)
        return daemon.start()

    yield make
    for daemon in made:
        daemon.close()
    eventually(lambda: not on_card(), message="card 0 is free again")


@pytest.fixture
def node(make_node: Callable[..., Daemon]) -> Daemon:
    return make_node()


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line to what is shown at the end: a figure, which no test asserts."""
    return request.config.stash.setdefault(_LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(_LINES, []):
        terminalreporter.section("seen on this card")
        for line in lines:
            terminalreporter.write_line(line)
