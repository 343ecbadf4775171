"""What a supervisor rehearses before it is given a job: it costs the job nothing, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.paths import Root
from muster.supervisors.system import lock
from tests.conftest import alive, eventually
from tests.unit.sessions import connect

#: In a process of its own, as a supervisor is: the rehearsal handles signals, and waits for children.
_REHEARSES = """
import sys
from muster.supervisors.nursery import nursery
import gc, io, json, os, select, signal, socket
from pathlib import Path
from muster.supervisors.job.gang import RankGang
from muster.supervisors.output.job_output import Output
from muster.supervisors.system.loop import Loop
from muster.supervisors.nursery.rehearsal import rehearse

# Whoever of these is left closes a descriptor by its number one day, which may be a job's by then.
OWNERS = (io.IOBase, select.epoll, socket.socket, RankGang, Output, Loop)
UNUSED = ["bz2", "ipaddress", "lzma", "selectors"]

def target(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return "the listing's own"

def state():
    return {
        "files": sorted((fd, target(fd)) for fd in os.listdir("/proc/self/fd")),
        "modules": sorted(sys.modules),
        "run": [name for name in UNUSED if type(sys.modules.get(name)).__name__ not in ("NoneType", "_LazyModule")],
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGCHLD, signal.SIGTERM)],
        "mask": str(os.umask(0o022)), "cwd": os.getcwd(),
        "owners": sorted(type(one).__name__ for one in gc.get_objects() if issubclass(type(one), OWNERS)),
    }

os.umask(0o022)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
before = state()
told = rehearse(Path(sys.argv[1])) or rehearse(Path(sys.argv[1]))
print(json.dumps({"told": told, "before": before, "after": state()}))
"""


def rehearsed(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _REHEARSES, folder], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_all_is_as_before(tmp_path: Path) -> None:
    """No descriptor, nobody who would close one, no handler, and no module that only the rehearsal would need."""
    found = rehearsed(tmp_path / "rehearsal")
    assert found["told"] == ""
    assert found["after"] == found["before"]
    assert found["after"]["run"] == [], "modules that others import, and supervisors do not use"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "rehearsal"
    (folder / "state/jobs/started").mkdir(parents=True)
    (folder / "state/jobs/started/journal").write_text("torn")
    assert rehearsed(folder)["told"] == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["missing/rehearsal", "file/rehearsal", "file"])
def test_one_that_fails_says_why(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("kept")
    found = rehearsed(tmp_path / where)
    assert found["told"].startswith("the rehearsal of a job failed: ") and str(tmp_path) in found["told"]
    for what in ("files", "owners", "signals"):
        assert found["after"][what] == found["before"][what]
    assert (tmp_path / "file").read_text() == "kept"


@contextmanager
def waiting(folder: Path, *options: str) -> Iterator[int]:
    """The pid of the supervisor that waits, of a nursery that has a client, so that it stays."""
    root = Root.under(folder)
    for path in (root.run, root.state, root.log, root.jobs):
        path.mkdir(parents=True, exist_ok=True)
    places = [f"--{name}={getattr(root, name)}" for name in ("run", "state", "log")]
    command = [sys.executable, "-I", "-m", "muster.supervisors.nursery.nursery", *places, *options]
    command.append(f"--name={root.nursery_name}")
    owner, owned = os.pipe()
    try:  # 3: owner_pipe.FD
        subprocess.run(["sh", "-c", 'exec "$@" 3<&0', "sh", *command], stdin=owner, check=True, timeout=60)
        nursery = lock.holder(root.nursery_lock)
        assert nursery
        pid = 0

        def waits() -> int:
            """Not before the rehearsal, which writes, nor within it."""
            nonlocal pid
            pid = int(Path(f"/proc/{nursery}/task/{nursery}/children").read_text() or 0)
            wrote = pid and "wchar: 0\n" not in Path(f"/proc/{pid}/io").read_text()
            return pid if wrote and not root.rehearsal.exists() else 0

        try:
            with connect(root.nursery_socket, timeout=60):
                yield eventually(waits, message="a supervisor waits")
        finally:
            os.kill(nursery, signal.SIGKILL)
            eventually(lambda: not alive(pid), message="it exits with its nursery")
    finally:
        os.close(owner)
        os.close(owned)


def own_kb(pid: int) -> int:
    """Memory that it shares with no process."""
    rollup = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(words[1]) for words in rollup if words[0] in ("Private_Clean:", "Private_Dirty:"))


@pytest.mark.skipif(os.geteuid() != 0, reason="a nursery of root rehearses")
def test_supervisors_share_what_the_nursery_has_rehearsed(tmp_path: Path) -> None:
    """An owned nursery, whose command waits for it, rehearses nothing."""
    with waiting(tmp_path / "a") as sharing, waiting(tmp_path / "b", "--owned") as alone:
        assert own_kb(sharing) + 300 < own_kb(alone)
