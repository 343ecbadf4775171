"""Both ways to create processes."""

import platform
from collections.abc import Iterator

import pytest

from muster.supervisors.launch.creation import program_start
from muster.supervisors.launch.creation.program_start import PROGRAM


@pytest.fixture
def program() -> Iterator[None]:
    """muster-spawn, as `make setup` has built it."""
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("there is no muster-spawn for this architecture")
    assert program_start.PATH.exists(), "make setup builds it"
    PROGRAM.open()
    yield
    PROGRAM.close()


@pytest.fixture(params=["program", "fork"])
def way(request: pytest.FixtureRequest) -> str:
    """Runs a test once in each way."""
    if request.param == "program":
        request.getfixturevalue("program")
    return str(request.param)
