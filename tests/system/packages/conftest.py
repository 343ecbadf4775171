"""Two versions of the .deb and of the .rpm, and a machine without muster."""

import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.release import deb, package, rpm, tree
from tests.system.machine import Machine, OverlaidMachine

#: What the second version says.
NEWER = "99.1"


@dataclass(frozen=True)
class Built:
    """`id`: the name of its folder in /opt/muster."""

    id: str
    deb: str
    rpm: str


@pytest.fixture(scope="session")
def built(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built]:
    """The checkout's, and one that differs from it in the version that it tells."""
    folder = tmp_path_factory.mktemp("built")
    newer = tree.clear(folder / "wheels")
    for wheel in wheels.glob("*.whl"):
        if wheel.name.startswith("muster_agent-"):
            _as_newer(wheel, newer / re.sub(r"-[^-]+", f"-{NEWER}", wheel.name, count=1))
        else:
            (newer / wheel.name).hardlink_to(wheel)
    return _build(wheels, folder / "old"), _build(newer, folder / "new")


def _as_newer(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(into, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == "muster/agent/__init__.py":
                content = re.sub(rb"(?m)^__version__ = .*", b'__version__ = "' + NEWER.encode() + b'"', content)
            new.writestr(info, content)


def _build(wheels: Path, folder: Path) -> Built:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = package.of_folder(wheels, python, "x86_64", 1, 1795846000)
    tree.make(made, tree.clear(folder / "tree"))
    into = tree.clear(folder / "packages")
    one, other = (kind.build(made, folder / "tree", into, compress=False) for kind in (deb, rpm))
    return Built(made.id, str(one), str(other))


@pytest.fixture(scope="session")
def fresh(built: tuple[Built, Built], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The packages lie in its /packages."""
    folder = tmp_path_factory.mktemp("fresh")
    packages = tree.clear(folder / "packages")
    with OverlaidMachine(folder, packages, "fresh", "/usr/bin") as booted:
        place = tree.clear(booted.tree / "packages")
        for each in built:
            for path in map(Path, (each.deb, each.rpm)):
                (place / path.name).write_bytes(path.read_bytes())
        yield booted


@pytest.fixture(autouse=True)
def left_as_found() -> None:
    """In the place of that of the machine with muster, which these tests do not have."""
