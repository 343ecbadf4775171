"""A rotated segment is compressed by a process of its own."""

import contextlib
import fcntl
import gzip
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from muster.agent.logs import log_compress
from muster.supervisors.output import log_segments
from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_reader import Reader
from tests.conftest import eventually

COMMAND = [sys.executable, "-I", "-m", "muster.agent.logs.log_compress"]


def segment(folder: Path, size: int) -> tuple[Path, Path, bytes]:
    """The log, one segment of it, and what is in that."""
    log = folder / "a-proc-rank-0-device-0.txt"
    data = random.Random(7).randbytes(size // 2) + b"line\n" * (size // 10)
    path = log_segments.segment_path(log, 0, len(data))
    path.write_bytes(data)
    log.write_bytes(b"live")
    return log, path, data


def read(log: Path) -> bytes:
    out = b""
    with Reader(Folder(log.parent)) as reader:
        while data := reader.read(log, len(out), 1 << 20)[1]:
            out += data
    return out


def test_the_same_bytes(tmp_path: Path) -> None:
    log, path, data = segment(tmp_path, 3 << 20)
    path.chmod(0o640)
    done = subprocess.run([*COMMAND, str(path)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    packed = path.with_name(f"{path.name}.gz")
    assert sorted(os.listdir(tmp_path)) == [log.name, packed.name]
    assert gzip.decompress(packed.read_bytes()) == data
    assert packed.stat().st_mode & 0o777 == 0o640
    assert read(log) == data + b"live"
    assert subprocess.run([*COMMAND, str(path)], check=False).returncode == 0, "that it is done is no error"


def test_it_asks_for_nothing_that_others_want(tmp_path: Path) -> None:
    _, path, _ = segment(tmp_path, 8 << 20)
    process = subprocess.Popen([*COMMAND, str(path)])
    try:
        packed = path.with_name(f"{path.name}.gz")
        eventually(lambda: os.path.lexists(f"{packed}.part") or packed.exists())
        if process.poll() is None:
            assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    finally:
        process.kill()  # beside others who want the cores it would take as long as they do
        process.wait()


def test_killed_at_any_moment(tmp_path: Path) -> None:
    log, path, data = segment(tmp_path, 4 << 20)
    packed = path.with_name(f"{path.name}.gz")
    part = Path(f"{packed}.part")
    for grown in (0, 1, 1 << 20, 2 << 20):
        process = subprocess.Popen([*COMMAND, str(path)])

        def so_far(grown: int = grown, process: "subprocess.Popen[bytes]" = process) -> bool:
            with contextlib.suppress(FileNotFoundError):  # not there yet, or not any more
                return part.stat().st_size >= grown or process.poll() is not None
            return process.poll() is not None

        eventually(so_far)
        process.kill()
        process.wait()
        assert read(log) == data + b"live"
    subprocess.run([*COMMAND, str(path)], check=True)
    assert sorted(os.listdir(tmp_path)) == [log.name, packed.name]
    assert read(log) == data + b"live"


def test_only_one_has_a_file(tmp_path: Path) -> None:
    _, path, _ = segment(tmp_path, 1 << 20)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert subprocess.run([*COMMAND, str(path)], check=False).returncode == log_compress.BUSY
    assert path.exists()


def test_what_cannot_be_compressed_is_reported(tmp_path: Path) -> None:
    _, path, _ = segment(tmp_path, 1 << 20)
    short = path.with_name(path.name.rpartition("-")[0] + "-9999999999999999")
    path.rename(short)
    done = subprocess.run([*COMMAND, str(short)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"{short}: cannot compress it: is shorter than its name says\n"
    assert short.exists()


@pytest.mark.parametrize("name", ["nothing", "a-proc-rank-0-device-0.txt.0000000000000000-0000000000000001"])
def test_a_file_that_is_not_there(tmp_path: Path, name: str) -> None:
    assert subprocess.run([*COMMAND, str(tmp_path / name)], check=False).returncode == 0


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    _, path, _ = segment(tmp_path, 1000)
    path.unlink()
    os.mkfifo(path)
    done = subprocess.run([*COMMAND, str(path)], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert b"is not a regular file" in done.stderr
