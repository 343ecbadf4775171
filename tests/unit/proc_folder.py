"""A folder that looks like /proc, whose processes come and go as a test wants."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


class ProcFolder:
    """Below `path`; processes have the files that muster reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "net").mkdir()
        (path / "self").mkdir()
        self.node()

    def node(self, busy: int = 100, idle: int = 900, total_kb: int = 1000, available_kb: int = 400) -> None:
        (self.path / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\nintr 5\n")
        (self.path / "meminfo").write_text(f"MemTotal: {total_kb} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n")
        head = "Inter-|   Receive\n face |bytes packets\n"
        (self.path / "net" / "dev").write_text(
            head + "    lo: 999 1 0 0 0 0 0 0 999 1\n  eth0: 100 1 0 0 0 0 0 0 10 1\n  ib0:5 1 0 0 0 0 0 0 2 1\n"
        )

    def counter(self, newest: int) -> None:
        """The pid that was given out last; without it, this /proc tells none."""
        own = self.path / "self"
        if not own.is_symlink():
            own.rmdir()
            own.symlink_to(str(os.getpid()))
        (self.path / "loadavg").write_text(f"0.50 0.40 0.30 2/321 {newest}\n")

    def add(
        self,
        pid: int,
        ppid: int,
        start: int = 100,
        *,
        name: str = "python",
        state: str = "S",
        session: int | None = None,
        ticks: int = 0,
        rss: int = 1,
        before_exec: bool = False,
        io: tuple[int, int, int, int] | None = (0, 0, 0, 0),
        wchan: str = "0",
        environ: Mapping[str, str] | None = None,
        command: tuple[str, ...] = (),
    ) -> int:
        """A process, or another state of one. `io`: rchar, wchar, read_bytes, write_bytes; None: not readable."""
        folder = self.path / str(pid)
        folder.mkdir(exist_ok=True)
        flags = 0x40 if before_exec else 0
        f = [state, ppid, pid, session if session is not None else pid, 0, -1, flags, 0, 0, 0, 0, ticks, 0, 0, 0]
        f += [20, 0, 1, 0, start, 12345, rss]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, f))} 18446744073709551615{' 0' * 27}\n")
        if io is None:
            (folder / "io").unlink(missing_ok=True)
        else:
            names = ("rchar", "wchar", "read_bytes", "write_bytes")
            lines = [f"{n}: {v}" for n, v in zip(names, io, strict=True)]
            (folder / "io").write_text("\n".join([*lines, "syscr: 7", "syscw: 7", "cancelled_write_bytes: 0"]) + "\n")
        (folder / "status").write_text(f"Name:\t{name}\nUmask:\t0022\nTgid:\t{pid}\nPid:\t{pid}\n")
        (folder / "wchan").write_text(wchan)
        (folder / "environ").write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in (environ or {}).items()))
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command or (name,)))
        return pid

    def remove(self, pid: int) -> None:
        shutil.rmtree(self.path / str(pid))
