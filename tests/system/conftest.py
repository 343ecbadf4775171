"""One machine for all of these tests, booted once; each leaves it with the service up and no job running."""

from collections.abc import Iterator

import pytest

from tests.system import machine
from tests.system.jobs import all_jobs
from tests.system.machine import VENV, Machine


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with Machine(folder, machine.wheels(folder)) as booted:
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
