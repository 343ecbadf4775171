"""A disk without room: the rank does not notice, the file says what is missing, exit codes are kept."""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually
from tests.small_disk import needs_root, small_disk

pytestmark = [pytest.mark.chaos, needs_root]


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon whose log folder is a disk of 1 MiB."""
    daemon = Daemon(tmp_path_factory.mktemp("full"))
    with small_disk(daemon.root.log, "1m"):
        daemon.start()
        yield daemon, daemon.root.log
        daemon.close()


#: Writes 3 MiB, waits to be told, writes a last line.
WRITER = (
    "import os, sys, time\n"
    "data = b'x' * 65535 + b'\\n'\n"
    "for _ in range(48): os.write(1, data)\n"
    "open('written', 'w').close()\n"
    "while not os.path.exists('go'): time.sleep(0.005)\n"
    "print('last words', flush=True)\n"
    "sys.exit(6)\n"
)


def test_output_on_a_full_disk(disk: tuple[Daemon, Path]) -> None:
    daemon, folder = disk
    ballast = folder / "ballast"
    ballast.write_bytes(b"b" * 500_000)
    daemon.run(sys.executable, "-S", "-c", WRITER, job_id="job")
    home = daemon.root.job("job").workspace / "device0"
    eventually((home / "written").exists, message="the rank writes on, though nothing can be stored")
    log = Path(daemon.get("job").ranks[0].log_path)
    # Nothing of it is in the FIFO any more: that may be more than there is room for then.
    eventually(lambda: daemon.get("job").ranks[0].lost_log_bytes + log.stat().st_size >= 48 * 65536)
    ballast.unlink()
    eventually(lambda: b"[muster:" in log.read_bytes(), message="writing resumes by itself")
    (home / "go").touch()
    job = daemon.wait("job")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 6)
    data = log.read_bytes()
    [line] = re.findall(rb"^\[muster: .*\]$", data, re.MULTILINE)
    found = re.fullmatch(rb"\[muster: (\d+) bytes lost \d\d:\d\d:\d\d-\d\d:\d\d:\d\d: No space left on device\]", line)
    assert found is not None, line
    lost = int(found[1])
    kept = data.count(b"x") + data.replace(line, b"").count(b"\n")
    # Every byte was stored or counted; the gap's line may have got a newline of its own before it.
    written = 48 * 65536 + len("last words\n")
    stored = len(data) - len(line) - 1
    assert lost + stored in (written, written + 1), (lost, stored, kept)
    assert data.endswith(b"last words\n")
    assert job.ranks[0].lost_log_bytes == lost


def test_a_gap_that_lasts_to_the_end_is_in_the_record(disk: tuple[Daemon, Path]) -> None:
    daemon, folder = disk
    (folder / "ballast").write_bytes(b"b" * 500_000)
    home = daemon.root.job("job").workspace / "device0"
    daemon.run(sys.executable, "-S", "-c", WRITER, job_id="job")
    eventually((home / "written").exists)
    with contextlib.suppress(OSError), open(folder / "more", "wb", buffering=0) as file:
        while True:
            file.write(b"m" * 4096)
    (home / "go").touch()
    job = daemon.wait("job")
    assert job.verdict.exit_code == 6
    assert job.ranks[0].lost_log_bytes > 2_000_000


def test_exit_codes_survive_a_full_state_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    daemon = Daemon(tmp_path_factory.mktemp("state"))
    with small_disk(daemon.root.state, "8m"):
        daemon.start()
        try:
            script = "while [ ! -e go ]; do sleep 0.01; done; exit 9"
            daemon.run("sh", "-c", script, job_id="job", ranks=4)
            daemon.until_running("job")
            home = daemon.root.job("job").workspace
            for i in range(3):
                (home / f"device{i}" / "go").touch()
            with contextlib.suppress(OSError), open(daemon.root.state / "ballast", "wb", buffering=0) as file:
                while True:
                    file.write(b"b" * 4096)
            job = daemon.wait("job")
            assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 9)
        finally:
            (daemon.root.state / "ballast").unlink(missing_ok=True)
            daemon.close()
