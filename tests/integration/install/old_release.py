"""A release of before that really runs: its packages, unpacked from tests/fixtures, under this interpreter."""

import contextlib
import os
import signal
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from muster.supervisors.system import lock
from tests.conftest import BIN, Daemon, alive, eventually

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: The last release; scripts/make_upgrade_fixtures.py makes the folder of another.
LAST = FIXTURES / "0.1.0-6ca8b08"


class Release:
    """Its packages in a virtual environment of their own, beside the installed dependencies of this one."""

    def __init__(self, source: Path, folder: Path, changes: Mapping[str, tuple[str, str]] | None = None) -> None:
        """`source`: the archive or the folder of the packages. `changes`: by file, a text in it and what it is replaced
        by."""
        packages = source
        if source.is_file():
            packages = folder / "packages"
            with tarfile.open(source) as archive:
                archive.extractall(packages, filter="data")
        for name, (old, new) in (changes or {}).items():
            text = (packages / name).read_text()
            assert text.count(old) == 1, (name, old)
            (packages / name).write_text(text.replace(old, new))
        place = folder / "venv"
        venv.EnvBuilder(symlinks=True).create(place)
        site = next(place.glob("lib/python3*/site-packages"))
        # In this order: where the packages of today are installed beside the dependencies, these come first.
        places = [packages, packages / "proto", sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        (site / "release.pth").write_text("".join(f"{path}\n" for path in places))
        # The first release had its packages at the top of the import path.
        one_name = "from muster.agent" in (packages / "agent/musterd.py").read_text()
        for name in ("agent", "supervisors", "probes") if one_name else ():
            with contextlib.suppress(FileExistsError):
                (packages / "proto/muster" / name).symlink_to(packages / name)
        self._module = "muster.agent.musterd" if one_name else "agent.musterd"
        self.python = place / "bin" / Path(sys.executable).name
        if not self.python.exists():
            self.python = place / "bin" / "python"

    @property
    def musterd(self) -> tuple[str, ...]:
        """Without the folder that one is in: `-m` alone would find the packages of today there."""
        return (str(self.python), "-I", "-m", self._module)


class Node(Daemon):
    """A root on which daemons of two releases take turns."""

    def __init__(self, folder: Path, config: str = "") -> None:
        super().__init__(folder, config)
        if "[logs]" not in config:  # the last release has no such table
            self.config.write_text(self.config.read_text().replace("[logs]\nmin_free_percent = 0\n", ""))

    def start_old(self, release: Release) -> Daemon:
        self.musterd = release.musterd
        return self.start()

    def start_new(self) -> Daemon:
        self.musterd = (BIN / "musterd",)
        return self.start()

    def nurseries(self) -> set[int]:
        """Pids of those that live."""
        return {pid for file in self.root.run.glob("nursery*.lock") if (pid := lock.holder(file))}

    def close(self) -> None:
        self.musterd = (BIN / "musterd",)
        supervisors = {path: lock.holder(path) for path in self.root.jobs.glob("*/lock")}
        super().close()
        for pid in self.nurseries() | (set(supervisors.values()) - {0}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(alive(pid) for pid in self.nurseries()))


@contextlib.contextmanager
def nodes(new_folder: Callable[[], Path]) -> Iterator[Callable[..., Node]]:
    """Makes nodes without a daemon, which are closed at the end."""
    made: list[Node] = []

    def make(config: str = "") -> Node:
        made.append(Node(new_folder(), config))
        return made[-1]

    try:
        yield make
    finally:
        for node in made:
            node.close()
