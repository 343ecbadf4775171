"""A machine of its own with a real systemd: a Debian tree, booted by systemd-nspawn.

Each machine boots a copy of the tree (debian.py). Its network is its own loopback, its cgroup tree is cgroup v2, and a
reboot of it is a real one for muster: processes, run folder and boot id are new.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import eventually, running
from tests.system import debian

REPOSITORY = Path(__file__).parents[2]
VENV = "/opt/muster"
_ENV = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}


def missing() -> str:
    """Why there can be no such machine here; empty where there can be."""
    return debian.missing("systemd-nspawn", "nsenter")


def wheels(folder: Path) -> Path:
    """Wheels of the project and of all that it depends on, for Python as Debian has it."""
    found = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "download", "--require-hashes", "-r", REPOSITORY / "requirements.lock", "-d", found], check=True
    )
    build(REPOSITORY, found)
    return found


def build(source: Path, into: Path) -> Path:
    """The project's wheel. Returns its path."""
    before = set(into.glob("muster_agent-*.whl"))
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", into, source],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return (set(into.glob("muster_agent-*.whl")) - before or before).pop()


class Machine:
    """Boots a copy of the tree; `with` ends it."""

    def __init__(self, folder: Path, wheels: Path, name: str = "muster", programs: str = f"{VENV}/bin") -> None:
        """`wheels`: come to lie in its /wheels. `programs`: the folder of muster's, once it is installed."""
        self.tree = folder / "tree"
        self.name = f"{name}{os.getpid()}"
        self.programs = programs
        self._lay_out(_made(self.tree))
        shutil.copytree(wheels, self.tree / "wheels")
        self._console = folder / "console"
        self._process: subprocess.Popen[bytes] | None = None

    def _lay_out(self, tree: Path) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", f"{debian.tree()}/.", tree], check=True)

    def __enter__(self) -> "Machine":
        self._boot()
        return self

    def _boot(self) -> None:
        out = os.open(self._console, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        # In a cgroup v2 tree of its own, whatever this machine has.
        self._process = subprocess.Popen(
            [
                "systemd-nspawn", "--boot", "--directory", self.tree, f"--machine={self.name}", "--private-network",
                "--register=no", "--keep-unit", "--console=pipe", "--kill-signal=SIGRTMIN+3",
            ],
            env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(out)
        self.wait_up()

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._clear()

    def _clear(self) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)

    @property
    def leader(self) -> int:
        """Pid of its PID 1, as seen from outside; 0 between two boots."""
        assert self._process is not None
        assert self._process.poll() is None, f"the machine is gone, see {self._console}"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def wait_up(self) -> None:
        """Until its systemd has done all that belongs to a boot."""

        def is_up() -> bool:
            return bool(self.leader) and self.run("systemctl", "is-system-running", check=False) in (
                "running",
                "degraded",
            )

        eventually(is_up, 120, "systemd to be up")

    def run(self, *argv: str, check: bool = True, timeout: float = 120, text: str | None = None) -> str:
        """Runs a command in the machine, as root. Returns what it wrote on stdout, stripped."""
        done = subprocess.run(
            self._inside(argv), check=False, capture_output=True, text=True, timeout=timeout, input=text or "", env=_ENV
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    @contextmanager
    def begun(self, *argv: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that runs meanwhile; it does not outlive the `with`."""
        pipe = subprocess.PIPE
        with running(self._inside(argv), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=_ENV) as it:
            yield it

    def _inside(self, argv: tuple[str, ...]) -> list[str]:
        return ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", *argv]

    def sh(self, script: str, check: bool = True) -> str:
        """A piece of shell."""
        return self.run("sh", "-ec", script, check=check)

    def muster(self, *argv: str, check: bool = True) -> str:
        return self.run(f"{self.programs}/muster", *argv, check=check)

    def job(self, job_id: str) -> dict[str, object]:
        """As `muster status -o json` shows it."""
        found: dict[str, object] = json.loads(self.muster("status", job_id, "-o", "json"))
        return found

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "-P", name, unit)

    def reboot(self) -> None:
        """Of a machine that is nobody's unit systemd-nspawn leaves the second half to us, and says so by 133."""
        assert self._process is not None
        self.run("systemctl", "reboot", check=False)
        assert self._process.wait(60) == 133
        self._boot()

    def cut_power(self) -> None:
        """Everything ends at once; then it is booted again."""
        assert self._process is not None
        os.kill(self.leader, signal.SIGKILL)
        self._process.wait(60)
        self._boot()


class OverlaidMachine(Machine):
    """What it writes lies over the tree: made in no time. Not for tests that look at the file system itself."""

    def _lay_out(self, tree: Path) -> None:
        upper, work = _made(tree.with_name("upper")), _made(tree.with_name("work"))
        options = f"lowerdir={debian.tree()},upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, tree], check=True)

    def _clear(self) -> None:
        subprocess.run(["umount", self.tree], check=True)
        for name in ("upper", "work"):
            shutil.rmtree(self.tree.with_name(name), ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
