"""What a supervisor rehearses before it is given a job: it costs the job nothing, and leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
