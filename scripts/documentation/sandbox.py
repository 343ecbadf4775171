"""A home folder of its own, in which the commands of a page run: a shell, a daemon, nothing left of either.

The shell is one bash, so that variables, folders and `$?` go on from block to block. Its home is a temporary folder,
its working folder looks like a checkout (links to what this one has), and `muster`, `musterd` and `python3` are this
checkout's. In what is printed the home is called /home/me. A daemon runs on ~/node. The configurations of ~/node and
~/muster-node leave out what a machine on which tests run may fail: small disks and limits, and the kernel's log.
"""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fakes import build
from tests.fakes.cards import FakeCards

CHECKOUT = Path(__file__).parents[2]
#: Where the commands of this environment are.
BIN = Path(sys.executable).parent
#: What the home folder is called in the pages.
HOME = "/home/me"
#: Seconds for one block, at most: a page whose command does not end says so, instead of keeping CI waiting.
BLOCK_S = 240.0
CONFIG = """\
[checks]
root_min_gb = 0
shm_min_gb = 0
cache_path = ""
host_files = ""
ulimits = "never"
disk_free_percent = 0
[health]
skip = "ib,nic,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,kernel-log,storage,kernel,memory-errors,oom"
[active]
seconds = 0.01
"""
#: What examples/train.py leaves where it runs, and goes on from: of who tried a page by hand in this checkout.
_LEFT = "checkpoints"
#: What bash says of a program in the background that a signal ended: in this block or in the next, as it happens.
_ENDED_JOB = re.compile(r"(?m)^/\S+/\d+\.sh: line \d+: +\d+ (?:Killed|Terminated|Hangup) .*\n")
#: Roots that the pages use.
NODE, STARTED = "node", "muster-node"


class NotEndedError(Exception):
    """Raised when a block does not end in time, or ends the shell."""


class Sandbox:
    """The home folder, and all that is in it."""

    def __init__(self) -> None:
        # Short: a unix socket's address has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="d-", dir="/tmp"))
        self.home = self.folder / "me"
        self._daemon: subprocess.Popen[bytes] | None = None
        self.work = self.home / "muster"
        self.work.mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        for entry in CHECKOUT.iterdir():
            if entry.name not in ("examples", _LEFT):
                (self.work / entry.name).symlink_to(entry)
        # Jobs write beside their scripts.
        shutil.copytree(CHECKOUT / "examples", self.work / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        for name in (NODE, STARTED):
            (self.home / name).mkdir()
            (self.home / name / "musterd.toml").write_text(CONFIG)
        self.env = {
            "HOME": str(self.home), "PATH": f"{BIN}:{os.defpath}:/usr/sbin:/sbin", "LANG": "C.UTF-8", "USER": "me",
            "TMPDIR": str(self.folder / "tmp"), "TERM": "dumb", "NO_COLOR": "1", "SHELL": "/bin/bash",
        }  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends every process of it, and removes it."""
        end = time.monotonic() + 20
        while (left := list(self._processes())) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if self._daemon is not None:
            self._daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> Iterator[int]:
        """Processes that name the folder in their command line, or work in it."""
        mark = os.fsencode(self.folder) + b"/"
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    where = os.fsencode(os.readlink(entry / "cwd")) + b"/"
                    environ = (entry / "environ").read_bytes()
                    words = (entry / "cmdline").read_bytes() + b"/"
                    if (mark in words or mark in where or mark in environ) and words != b"/":
                        yield int(entry.name)

    def public(self, text: str) -> str:
        """The text with the home folder's public name, and none of this checkout's."""
        for path, name in ((self.home, HOME), (CHECKOUT, f"{HOME}/muster"), (self.folder / "tmp", "/tmp")):
            text = text.replace(str(path), name)
        return text

    def add_cards(self) -> None:
        """Eight fake cards for the daemon and the shell, in ~/cards, with a libcuda and an nvidia-smi."""
        with FakeCards.make(self.home / "cards", "nvidia", 8) as cards:
            cards.install_nvidia_smi()
            shutil.copy(build.library("cuda"), cards.folder)
            self.env |= {**cards.env, "PATH": f"{cards.folder / 'bin'}:{self.env['PATH']}"}

    def start_daemon(self, config: str = "") -> None:
        """Starts the daemon on ~/node, with more of a configuration, and returns once it answers."""
        root = self.home / NODE
        (root / "musterd.toml").write_text(CONFIG + config)
        self.env["MUSTER_ROOT"] = str(root)
        with (self.home / "musterd.out").open("wb") as out:
            self._daemon = daemon = subprocess.Popen(
                [BIN / "musterd", "--root", root], env=self.env, cwd=self.home, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + BLOCK_S
        while subprocess.run(
            [BIN / "muster", "node", "-o", "json"], check=False, env=self.env, capture_output=True
        ).returncode:
            if daemon.poll() is not None or time.monotonic() > end:
                raise NotEndedError(f"the daemon does not answer: {(self.home / 'musterd.out').read_text()[-2000:]}")
            time.sleep(0.05)


class Shell:
    """One bash, which is given a script after the other."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._number = 0
        read, write = os.pipe()
        self._answers = read
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], env=sandbox.env, cwd=sandbox.work, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(write,), start_new_session=True,
        )  # fmt: skip
        os.close(write)
        # Commands do not inherit the descriptor by which we hear of their end.
        self._end = f'printf \'%s %s\\n\' "$__code" "$__failed" >&{write}'
        self._closed = f"{write}>&-"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        os.close(self._answers)

    def run(self, script: str) -> tuple[str, str]:
        """What the script printed on both streams, and which of its lines failed, as `LINE:CODE ...`."""
        self._number += 1
        path = self._sandbox.folder / f"{self._number}.sh"
        out = path.with_suffix(".out")
        path.write_text(script + "\n")
        lines = (
            # Of the script alone: not what sets `$?` before it, nor the script as a whole.
            "__failed=; trap '__failed+=\"${BASH_SOURCE[0]:+$LINENO:$? }\"' ERR",
            f"(exit ${{__code:-0}}); source {path} >{out} 2>&1 </dev/null {self._closed}; __code=$?; trap - ERR",
            self._end,
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n".join(("", *lines, "")).encode())
            self._process.stdin.flush()
        except OSError as error:
            raise NotEndedError(f"the shell has ended: {error}") from None
        said = self._answer()
        printed = self._sandbox.public(_ENDED_JOB.sub("", out.read_text(errors="replace")))
        if said is None:
            raise NotEndedError(f"no end within {BLOCK_S:g} s, or the shell has ended; printed so far:\n{printed}")
        return printed, said.partition(" ")[2].strip()

    def _answer(self) -> str | None:
        end, data = time.monotonic() + BLOCK_S, b""
        while not data.endswith(b"\n"):
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            more = os.read(self._answers, 4096)
            if not more:
                return None
            data += more
        return data.decode()
