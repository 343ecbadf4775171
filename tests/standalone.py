"""`muster run --standalone` as somebody else sees it: its processes by name, signals to them, its end."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import BIN, alive, eventually


class Run:
    """`muster run --standalone` of a job `x` with two ranks, which say `up`."""

    def __init__(self, folder: Path, script: str, *options: str) -> None:
        """Starts it. Everything that it makes is below `folder`."""
        self.folder = folder
        env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        env |= {"TMPDIR": str(folder), "NO_COLOR": "1"}
        words = [str(BIN / "muster"), "run", "--standalone", "--skip-check"]
        words += ["--job-id", "x", "--ranks", "2", *options]
        self.process = subprocess.Popen(
            [*words, "--", "sh", "-c", script],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.seen = b""

    def wait_up(self) -> None:
        """Returns once both ranks have said so."""
        assert self.process.stdout is not None
        while self.seen.count(b"up\n") < 2:
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, self.process.communicate(timeout=60)
            self.seen += data

    def pids(self, who: str) -> list[int]:
        """Of `client`, `daemon`, `nursery` (with the supervisor), `supervisor` and `ranks`, as they are now."""
        found = self.find(who)
        assert found, who
        return found

    def find(self, who: str) -> list[int]:
        """As `pids`; may be empty."""
        if who == "client":
            return [self.process.pid]
        if who == "supervisor":
            forked = self.find("nursery")
            return [pid for pid in forked if _parent(pid) in forked]
        # Ranks have the caller's environment, everybody else the folder on the command line.
        marks = {"daemon": "--owner-fd", "nursery": "muster.supervisors.nursery.nursery", "ranks": "; do "}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    of_us = str(self.folder) in words
                    if not of_us and who == "ranks":
                        of_us = f"TMPDIR={self.folder}\0".encode() in (entry / "environ").read_bytes()
                    # A rank leads its session. What its shell has forked looks the same until it executes something.
                    leads = who != "ranks" or os.getsid(int(entry.name)) == int(entry.name)
                    if of_us and leads and marks[who] in words:
                        found.append(int(entry.name))
        return found

    def daemons(self) -> list[int]:
        return self.find("daemon")

    def send(self, *who: str, number: int = signal.SIGTERM) -> None:
        for pid in [pid for name in who for pid in self.pids(name)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> tuple[int, list[str], list[str]]:
        """Exit code, and the lines of stdout and of stderr."""
        out, err = self.process.communicate(timeout=120)
        return (
            self.process.returncode,
            (self.seen + out).decode().splitlines(),
            err.decode().splitlines(),
        )

    def log_folder(self) -> Path:
        (folder,) = self.folder.glob("muster-*/log")
        return folder

    def gone(self) -> bool:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if str(self.folder).encode() in (entry / "cmdline").read_bytes() and alive(int(entry.name)):
                        return False
        return True


def _parent(pid: int) -> int:
    """0: it has gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


@contextlib.contextmanager
def running(folder: Path, script: str, *options: str) -> Iterator[Run]:
    """Both ranks are up. Afterwards nothing of it is left."""
    run = Run(folder, script, *options)
    try:
        run.wait_up()
        yield run
    finally:
        run.process.kill()
        run.process.communicate()
        eventually(run.gone, 60, "nothing of it is left")
