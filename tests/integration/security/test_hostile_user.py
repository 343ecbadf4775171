"""A job's user who means ill: links, races and deep folders in what is his own, and a try at all that is not."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.agent.jobs import log_ownership
from muster.supervisors.launch import keyring
from muster.v1 import job_pb2, log_pb2
from tests.conftest import Daemon, eventually

#: One that everybody may run: that of the tests may lie in a home folder.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""
pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not PYTHON, reason="needs root, and a Python that nobody may run")

#: Tries what must not work, and prints what did.
_TRIES = r"""
import os, socket, sys
state, log, run, mine, other = sys.argv[1:]
theirs = f"{state}/jobs/{other}"
def opened(path, flags):
    os.close(os.open(path, flags | os.O_NONBLOCK))
def connected(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
tries = {}
for job in (f"{state}/jobs/{mine}", theirs):
    for name in ("spec.json", "journal", "lock", "unborn", "lost"):
        tries[f"open {job}/{name}"] = lambda p=f"{job}/{name}": opened(p, os.O_RDONLY)
    tries[f"list {job}"] = lambda p=job: os.listdir(p)
    tries[f"make {job}"] = lambda p=job: os.mkdir(f"{p}/made")
    tries[f"rename {job}"] = lambda p=job: os.rename(f"{p}/workspace", f"{p}/gone")
    tries[f"connect {job}"] = lambda p=job: connected(f"{p}/control")
    for name in ("exports", "job.fifo", "rank-0.fifo", "journal"):
        tries[f"unlink {job}/{name}"] = lambda p=f"{job}/{name}": os.unlink(p)
    tries[f"workspace {job}"] = lambda p=job: os.symlink("/etc", f"{p}/workspace/device9")
for name in ("rank-0.fifo", "job.fifo", "exports"):
    tries[f"theirs {name}"] = lambda p=f"{theirs}/{name}": opened(p, os.O_RDONLY)
tries["their workspace"] = lambda: os.mkdir(f"{theirs}/workspace/device0/made")
for name in (f"{mine}-proc-rank-0-device-0.txt", f"{other}-proc-rank-0-device-0.txt", "audit.log", "nursery.log"):
    tries[f"unlink {name}"] = lambda p=f"{log}/{name}": os.unlink(p)
    tries[f"rename {name}"] = lambda p=f"{log}/{name}": os.rename(p, p + ".gone")
for name in (f"{other}-proc-rank-0-device-0.txt", f"{other}-muster-0.log", "audit.log"):
    tries[f"read {name}"] = lambda p=f"{log}/{name}": opened(p, os.O_RDONLY)
    tries[f"write {name}"] = lambda p=f"{log}/{name}": opened(p, os.O_WRONLY)
tries["link into the logs"] = lambda: os.symlink("/etc", f"{log}/{mine}-proc-rank-1-device-1.txt")
tries["move the folder of logs"] = lambda: os.rename(f"{log}/{mine}", f"{log}/gone")
for name in ("muster.sock", "reader.sock", "nursery.sock"):
    tries[f"connect {name}"] = lambda p=f"{run}/{name}": connected(p)
tries["list state"] = lambda: os.listdir(state)
tries["list jobs"] = lambda: os.listdir(f"{state}/jobs")
tries["open the daemon's lock"] = lambda: opened(f"{run}/musterd.lock", os.O_RDONLY)
for name in ("events", "telemetry.db", "node.json", "settings.json", "notify.json", "faults.json"):
    tries[f"read {name}"] = lambda p=f"{state}/{name}": opened(p, os.O_RDONLY)
supervisor = f"/proc/{os.getppid()}"
for name in ("environ", "mem", "maps", "root/etc/hostname"):
    tries[f"read {name} of the supervisor"] = lambda p=f"{supervisor}/{name}": opened(p, os.O_RDONLY)
tries["descriptors of the supervisor"] = lambda: os.listdir(f"{supervisor}/fd")
tries["signal the supervisor"] = lambda: os.kill(os.getppid(), 0)
for fd in range(3, 256):
    tries[f"descriptor {fd}"] = lambda n=fd: os.fstat(n)
with open("/proc/self/environ", "rb") as file:
    ours = file.read()
if b"hunter2" in ours:
    print("a variable of the daemon")
for name, attempt in tries.items():
    try:
        attempt()
    except (OSError, PermissionError):
        continue
    print("DONE:", name)
print(len(tries), "tried")
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A folder that must stay as it is, with 1,000 files of 4 KiB."""
    folder = tmp_path / "canary"
    folder.mkdir()
    for number in range(1000):
        (folder / str(number)).write_bytes(b"x" * 4096)
    return folder


def check(canary: Path) -> None:
    assert len(os.listdir(canary)) == 1000
    assert canary.stat().st_uid == (canary / "1").stat().st_uid == 0


def test_nothing_is_within_reach_but_what_is_his_own(open_daemon: Daemon, tmp_path: Path) -> None:
    daemon = open_daemon
    daemon.run("sleep", "1000", job_id="other", env={"TOKEN": "hunter2"})
    daemon.until_running("other")
    script = tmp_path / "tries.py"
    script.write_text(_TRIES)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(folder.stat().st_mode | 0o055)
    root = daemon.root
    before = tmp_path / "before.sh"
    before.write_text("export A=b\n")
    words = [PYTHON, script, root.state, root.log, root.run, "mine", "other"]
    daemon.run(*map(str, words), job_id="mine", user="nobody", pre_start=str(before))
    job = daemon.wait("mine")
    said = daemon.output(job).decode()
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED and " tried" in said, job
    assert "DONE" not in said and "variable" not in said


#: keyctl(2) and add_key(2); -3 is the session's keyring.
_KEYS = r"""
import ctypes, os, sys, time
add, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
call = ctypes.CDLL(None).syscall
if sys.argv[1] == "add":
    print(call(add, b"user", b"token", b"hunter2", 7, -3) > 0, flush=True)
    time.sleep(1000)
print(call(keyctl, 10, -3, b"user", b"token", 0) > 0)
"""


def line_of(daemon: Daemon, job_id: str) -> bytes:
    """The whole line, or nothing yet."""
    said = daemon.output(daemon.get(job_id))
    return said if said.endswith(b"\n") else b""


def test_keys_of_a_job_are_its_own(make_daemon: Callable[..., Daemon]) -> None:
    keyring.begin_own()  # as a service has one, which all that it starts inherits
    daemon = make_daemon()
    daemon.folder.chmod(0o755)
    jobs = {}
    for name, user, what in (("theirs", "nobody", "add"), ("mine", "daemon", "search")):
        daemon.run(PYTHON, "-c", _KEYS, what, job_id=name, user=user, workdir="/")
        jobs[name] = eventually(partial(line_of, daemon, name))
    if jobs["theirs"] != b"True\n":
        pytest.skip("the kernel keeps no keys here")
    assert jobs["mine"] == b"False\n"


#: Fills its own working folder with what is bad to remove.
_FILL = r"""
import os, sys
canary = sys.argv[1]
here = os.open(".", os.O_RDONLY)
for number in range(3000):
    os.mkdir("d", dir_fd=here)
    below = os.open("d", os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = below
os.symlink(canary, "link")
os.symlink(canary + "/1", "file")
os.mkfifo("fifo")
os.link("link", "hard", follow_symlinks=False)
os.mkdir("locked")
open("locked/x", "w").close()
os.chmod("locked", 0)
print("filled", flush=True)
"""


def test_what_a_user_leaves_behind_is_removed_and_nothing_else(open_daemon: Daemon, canary: Path) -> None:
    daemon = open_daemon
    daemon.run(PYTHON, "-c", _FILL, str(canary), job_id="x", user="nobody")
    job = daemon.wait("x")
    assert daemon.output(job) == b"filled\n", job
    daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="x"), timeout=60)
    assert not daemon.root.job("x").folder.exists() and not list(daemon.root.jobs.iterdir())
    check(canary)


@pytest.mark.slow
def test_a_start_clears_away_what_a_deletion_could_not(open_daemon: Daemon, canary: Path) -> None:
    daemon = open_daemon
    daemon.run(PYTHON, "-c", _FILL, str(canary), job_id="x", user="nobody")
    daemon.wait("x")
    daemon.kill()
    daemon.root.job("x").folder.rename(daemon.root.jobs / ".x.0123abcd")
    daemon.start()
    assert not list(daemon.root.jobs.iterdir())
    check(canary)


@pytest.fixture
def swapped(tmp_path: Path, canary: Path) -> Iterator[Path]:
    """A folder in which somebody goes on putting a link to the canary in the place of a folder."""
    folder = tmp_path / "theirs"
    (folder / "s").mkdir(parents=True)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            try:
                os.rename(folder / "s", folder / "gone")
                os.symlink(canary, folder / "s")
                os.unlink(folder / "s")
                os.rename(folder / "gone", folder / "s")
            except OSError:
                return

    thread = threading.Thread(target=swap)
    thread.start()
    yield folder
    over.set()
    thread.join()


def test_a_link_in_the_place_of_a_folder_is_not_counted_through(swapped: Path) -> None:
    end = time.monotonic() + 1
    looks = 0
    while time.monotonic() < end or looks <= 10:
        assert sum(status.st_size == 4096 and status.st_nlink == 1 for status in log_ownership.inside(swapped)) == 0
        looks += 1


def test_a_link_in_the_place_of_a_folder_is_not_removed_through(swapped: Path, canary: Path) -> None:
    def gone() -> bool:
        try:
            log_ownership.remove_folders([swapped])
        except OSError:  # it came back while it was removed: it is tried again
            return False
        return not swapped.exists()

    eventually(gone)
    check(canary)


def test_what_is_counted_has_an_end(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert len(list(log_ownership.inside(tmp_path))) == log_ownership.MAX_DEPTH + 1
    before = len(os.listdir("/proc/self/fd"))
    assert len(list(islice(log_ownership.inside(tmp_path), 10))) == 10
    assert len(os.listdir("/proc/self/fd")) == before
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_a_user_who_spoils_his_own_log_spoils_nothing_else(open_daemon: Daemon) -> None:
    daemon = open_daemon
    root = daemon.root
    log, index = root.rank_log("x", 0, 0), root.rank_index("x", 0, 0)
    script = (
        "echo one; sleep 0.3; echo two; "
        f"head -c 4000 /dev/urandom > {index}; chmod 0 {log} {index}; truncate -s 1G {log}; echo three; sleep 0.3; echo"
    )
    daemon.run("sh", "-c", script, job_id="x", user="nobody")
    daemon.wait("x")
    now = time.time()
    asked: list[dict[str, Any]] = [
        {},
        {"tail_lines": 1},
        {"offsets": {0: 0}},
        {"since": (now - 3600)},
        {"since": now},
        {"until": now},
    ]
    for fields in asked:
        request = log_pb2.ReadLogsRequest(job_id="x")
        for name, value in fields.items():
            if name in ("since", "until"):
                getattr(request, name).FromNanoseconds(int(value * 1e9))
            elif name == "offsets":
                request.offsets[0] = 0
            else:
                setattr(request, name, value)
        try:
            call: Any = daemon.logs.ReadLogs(request, timeout=60)
            size = sum(len(answer.data) for answer in call)
            assert size <= 1 << 31
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            assert error.code() in (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.OUT_OF_RANGE), error
    assert daemon.cli("why", "x").returncode == 0
    daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="x"), timeout=60)
