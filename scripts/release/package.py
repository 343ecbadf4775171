"""What is true of the .deb and of the .rpm: one description for both."""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.utils import parse_wheel_filename

from scripts.release import libraries

NAME = "muster-agent"
SUMMARY = "node agent for training clusters"
DESCRIPTION = """\
One daemon on each GPU or Ascend host. It checks that the node is fit, starts
one process per card, keeps the output and the exit status of every rank,
restarts the job within a budget, and explains why a job ended. Ranks, output
and exit status survive any crash and each upgrade of the daemon.
"""
LICENSE = "Apache-2.0"
#: Not one person.
MAINTAINER = "muster"
#: Where the versions are, in the file system of a node.
HOME = Path("/opt/muster")
#: As the two package managers call them.
DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Package:
    """A package for one version of Python and one kind of machine. `wheels`: of muster and of all that it needs;
    `release`: of the packaging, 1 for the first of a version; `epoch`: seconds since 1970, the time of all files."""

    wheels: tuple[Path, ...]
    python: str
    machine: str
    release: int
    epoch: int

    @cached_property
    def own(self) -> Path:
        """muster's own wheel."""
        (own,) = (wheel for wheel in self.wheels if wheel.name.startswith("muster_agent-"))
        return own

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.own.name)[1])

    @property
    def sorted_version(self) -> str:
        """As both package managers sort it: 0.2.0~rc1 before 0.2.0."""
        return re.sub(r"\.?(a|b|rc|dev)(?=\d)", r"~\1", self.version)

    @property
    def debian_version(self) -> str:
        return f"{self.sorted_version}-{self.release}+py{self.python}"

    @property
    def rpm_release(self) -> str:
        return f"{self.release}.py{self.python}"

    @property
    def stem(self) -> str:
        """Of the names of files beside the packages."""
        return f"{NAME}_{self.debian_version}_{DEBIAN_MACHINES[self.machine]}"

    @cached_property
    def id(self) -> str:
        """The name of its folder below HOME: two builds that differ have two names, so neither changes under the
        processes of the other."""
        digest = hashlib.sha256(f"{self.python} {self.machine} {self.release}\n".encode())
        for wheel in sorted(self.wheels):
            digest.update(f"{wheel.name} {hashlib.sha256(wheel.read_bytes()).hexdigest()}\n".encode())
        return f"{self.sorted_version}-{digest.hexdigest()[:8]}"

    @property
    def owned(self) -> Path:
        """Its environment, as the package manager owns it."""
        return HOME / "package" / self.id

    @cached_property
    def glibc(self) -> str:
        """The oldest C library that every wheel runs on, as the wheels' tags say."""
        needed = [(2, 17)]
        for wheel in self.wheels:
            # Several tags of one wheel: it runs where any of them does.
            platforms = (tag.platform for tag in parse_wheel_filename(wheel.name)[3])
            tags = [re.fullmatch(r"manylinux_(\d+)_(\d+)_.*", name) for name in platforms]
            found = [(int(tag[1]), int(tag[2])) for tag in tags if tag is not None]
            needed += [min(found)] if found else []
        return ".".join(map(str, max(needed)))

    @cached_property
    def libraries(self) -> list[str]:
        """Shared libraries of the system that the wheels need, beside the C library."""
        return libraries.needed(self.wheels)


def of_folder(folder: Path, python: str, machine: str, release: int, epoch: int) -> Package:
    """Of the wheels in a folder; pip's own is not among them, as the package manager is what installs."""
    wheels = tuple(sorted(path for path in folder.glob("*.whl") if not path.name.startswith("pip-")))
    return Package(wheels, python, machine, release, epoch)
