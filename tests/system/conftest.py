"""One machine for all of these tests, booted once; each leaves it with the service up and no job running."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import machine
from tests.system.jobs import all_jobs
from tests.system.machine import VENV, Machine


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of muster and of all that it needs."""
    return machine.wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def node(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("machine"), wheels) as booted:
        booted.sh(
            f"python3 -m venv {VENV}; {VENV}/bin/pip install -q --no-index --find-links /wheels muster-agent; "
            f"{VENV}/bin/muster service install"
        )
        yield booted


@pytest.fixture(autouse=True)
def left_as_found(node: Machine) -> Iterator[None]:
    yield
    node.sh(f"systemctl cat musterd >/dev/null 2>&1 || {VENV}/bin/muster service install; systemctl start musterd")
    for job in all_jobs(node):
        node.muster("stop", job, "--grace", "0s", check=False)
        node.muster("rm", job)
