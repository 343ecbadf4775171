"""The images, built once for all tests of this folder."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.containers.engine import ASCEND, IMAGE, Engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """With the image IMAGE. Its folder has a short name: of a long one podman's clean-up finds no container."""
    with Engine(Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))) as engine:
        engine.make_base()
        engine.make_wheels()
        engine.made = engine.make("--tag", IMAGE)
        yield engine


@pytest.fixture(scope="session")
def ascend(engine: Engine) -> str:
    """The image on Ascend's base, here a stand-in."""
    engine.make("--ascend", "--tag", ASCEND)
    return ASCEND


@pytest.fixture(autouse=True)
def left_as_found() -> None:
    """In the place of the machine's, which these tests do not have."""


@pytest.fixture
def volume(engine: Engine) -> Iterator[Callable[..., str]]:
    """Makes volumes, which end with the test."""
    made: list[str] = []

    def make(*options: str) -> str:
        made.append(engine.podman("volume", "create", *options).stdout.strip())
        return made[-1]

    yield make
    for name in made:
        engine.podman("volume", "rm", "-f", name, check=False)
