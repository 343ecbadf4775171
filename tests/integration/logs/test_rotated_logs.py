"""Ranks at full speed whose files are rotated, compressed and limited, with followers, kills, restarts and removal."""

import contextlib
import gzip
import hashlib
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.supervisors.output.log_compressor import compress
from muster.supervisors.output.log_layout import Folder
from muster.v1 import job_pb2, log_pb2, log_pb2_grpc
from tests.conftest import Daemon, eventually

MIB = 1 << 20
RANKS, PHASES, CHUNKS, CHUNK = 2, 6, 80, 100_000

#: Full speed within a phase; the next begins when it is told to.
WRITER = f"""
import os, time
rank = int(os.environ["RANK"])
body = b"." * 38
for phase in range({PHASES}):
    while not os.path.exists(f"../../../../../go-{{phase}}"):
        time.sleep(0.005)
    for chunk in range({CHUNKS}):
        first = (phase * {CHUNKS} + chunk) * 2000
        data = b"".join(b"%02d %07d %s\\n" % (rank, first + n, body) for n in range(2000))
        while data:
            data = data[os.write(1, data):]
"""


def expected(rank: int) -> "hashlib._Hash":
    body = b"." * 38
    digest = hashlib.sha256()
    for first in range(0, PHASES * CHUNKS * 2000, 2000):
        digest.update(b"".join(b"%02d %07d %s\n" % (rank, first + n, body) for n in range(2000)))
    return digest


class Follower(threading.Thread):
    """Reads to the end of the job by offsets, on a connection of its own, over any death meanwhile."""

    def __init__(self, address: str, pause_s: float) -> None:
        super().__init__()
        self.address, self.pause_s = address, pause_s
        self.digests = {rank: hashlib.sha256() for rank in range(RANKS)}
        self.offsets = dict.fromkeys(range(RANKS), 0)
        self.trouble: list[str] = []
        self.connections = 0

    def run(self) -> None:
        while not self.trouble:
            self.connections += 1
            with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                request = log_pb2.ReadLogsRequest(job_id="job", follow=True, offsets=self.offsets)
                try:
                    for message in log_pb2_grpc.LogServiceStub(channel).ReadLogs(request, timeout=120):
                        if message.eof:
                            return
                        self.take(message)
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        self.trouble.append(str(error))
            time.sleep(0.02)

    def take(self, message: Any) -> None:
        if message.truncated or message.offset != self.offsets[message.rank]:
            self.trouble.append(f"rank {message.rank}: {self.offsets[message.rank]}, but {message.offset}")
        self.digests[message.rank].update(message.data)
        self.offsets[message.rank] += len(message.data)
        if self.pause_s:
            time.sleep(self.pause_s)


def pieces(log: Path) -> list[tuple[int, int, bytes]]:
    """What is in the files of a log, by their names alone, while none is rotated, compressed or removed."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # else all is looked at once more
            names, live = segment_names(log), log.stat().st_ino
            found = list(read_pieces(log, names))
            if (segment_names(log), log.stat().st_ino) == (names, live):
                return found


def segment_names(log: Path) -> list[str]:
    return sorted(path.name for path in log.parent.glob(f"{log.name}.*-*[0-9z]"))  # not what is being made


def read_pieces(log: Path, names: list[str]) -> Iterator[tuple[int, int, bytes]]:
    end = 0
    for name in names:
        found = re.fullmatch(r"(\d{16})-(\d{16})(\.gz)?", name.removeprefix(f"{log.name}."))
        assert found, name
        if found[3] and name.removesuffix(".gz") in names:
            continue  # its compressor has not removed the other one yet
        data = log.with_name(name).read_bytes()
        yield int(found[1]), int(found[2]), gzip.decompress(data) if found[3] else data
        end = int(found[2])
    data = log.read_bytes()
    yield end, end + len(data), data


@pytest.fixture
def rotating(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, f"[logs]\nmax_file_bytes = {MIB}\n").start()
    yield daemon
    daemon.close()


@pytest.fixture
def uncompressed(tmp_path: Path) -> Iterator[Daemon]:
    """As `rotating`; nobody but the test compresses or removes a segment."""
    daemon = Daemon(tmp_path, f'[logs]\nmax_file_bytes = {MIB}\ncompress = "off"\n').start()
    yield daemon
    daemon.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_full_speed_with_rotation_followers_and_kills(rotating: Daemon, tmp_path: Path) -> None:
    rng = random.Random(5)
    writer = tmp_path / "writer.py"
    writer.write_text(WRITER.replace("../../../../../", f"{tmp_path}/"))
    rotating.run(sys.executable, "-I", "-S", str(writer), job_id="job", ranks=RANKS)
    followers = [Follower(rotating.address, pause) for pause in (0, 0, 0.002)]
    for follower in followers:
        follower.start()
    rotating.until_running("job")
    for phase in range(PHASES):
        (tmp_path / f"go-{phase}").touch()
        time.sleep(rng.random() * 0.15)  # the random moment itself
        for target in [["supervisor"], ["daemon"], ["supervisor", "daemon"]][phase % 3]:
            if target == "daemon":
                rotating.kill()
            else:
                pid = rotating.supervisor_pid("job")
                if pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        if rotating.process is None:
            rotating.start()
    job = rotating.wait("job", 200)
    for follower in followers:
        follower.join(120)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, (job.verdict, [(r.outcome, r.exit_code) for r in job.ranks])
    size = PHASES * CHUNKS * CHUNK
    for rank in range(RANKS):
        log = Path(job.ranks[rank].log_path)
        whole = expected(rank).hexdigest()
        found = pieces(log)
        assert [start for start, _, _ in found] == [0, *(end for _, end, _ in found[:-1])]
        assert all(len(data) == end - start for start, end, data in found), "no segment has more than its name says"
        assert hashlib.sha256(b"".join(data for _, _, data in found)).hexdigest() == whole
        assert len(found) > size // MIB // 2
        assert all(data.endswith(b"\n") for _, _, data in found[:-1]), "no line is split"
        for follower in followers:
            assert follower.trouble == []
            assert follower.offsets[rank] == size
            assert follower.digests[rank].hexdigest() == whole
        assert job.ranks[rank].lost_log_bytes == 0
    assert any(follower.connections > 1 for follower in followers)
    tail = "".join(m.data.decode() for m in rotating.read_logs("job", ranks=[1], tail_lines=30_000))
    assert tail.count("\n") == 30_000
    assert tail.endswith(f"01 {PHASES * CHUNKS * 2000 - 1:07} {'.' * 38}\n")


def test_a_segment_that_somebody_takes_away_is_missing(uncompressed: Daemon) -> None:
    """What muster removes by itself is told of and no failure; this is one."""
    uncompressed.run("sh", "-c", "head -c 6000000 /dev/zero | tr '\\0' x", job_id="taken")
    job = uncompressed.wait("taken")
    log = Path(job.ranks[0].log_path)
    segments = sorted(path for path in log.parent.iterdir() if path.name.startswith(log.name + "."))
    gone = segments[1]
    start, end = map(int, re.findall(r"\d+", gone.name.removeprefix(log.name))[:2])
    gone.rename(uncompressed.folder / "elsewhere")
    done = uncompressed.cli("logs", "taken")
    assert (done.returncode, len(done.stdout)) == (1, 6000000 - (end - start))
    assert f"{end - start} bytes of the output of rank 0 are missing: somebody deleted, moved" in done.stderr


def test_attempts_and_removal_over_rotation(uncompressed: Daemon) -> None:
    """Each attempt of more than one file is read on its own; `rm` leaves none of them."""
    script = (
        "import os, sys\n"
        "n = int(os.environ['MUSTER_ATTEMPT'])\n"
        "data = b''.join(b'%d %06d %s\\n' % (n, i, b'x' * 90) for i in range(15000))\n"
        "while data: data = data[os.write(1, data):]\n"
        "sys.exit(n < 2)\n"
    )
    uncompressed.run(
        sys.executable, "-I", "-S", "-c", script, job_id="job", max_restarts=2, restart_backoff={"nanos": 1}
    )
    job = uncompressed.wait("job")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
    log = Path(job.ranks[0].log_path)
    for _ in compress(log, next(piece for piece in Folder(log.parent).look([log])[0].segments if not piece.packed)):
        pass
    for attempt in range(3):
        data = b"".join(m.data for m in uncompressed.read_logs("job", attempt=attempt))
        lines = data.decode().splitlines()
        assert len(lines) == 15_000 + (attempt > 0)
        assert {line[:2] for line in lines if not line.startswith("[muster: ")} == {f"{attempt} "}
    ends = [past.log_ends[0] for past in job.past_attempts]
    assert ends[0] == 15_000 * 100
    assert ends[1] > 2 * ends[0]
    done = uncompressed.cli("rm", "job")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in log.parent.iterdir() if path.name.startswith("job-")] == []


def test_a_running_job_gives_up_its_oldest_output_and_tells_where_the_rest_begins(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, f'[logs]\nmax_file_bytes = {MIB}\nmax_job_bytes = {4 * MIB}\ncompress = "off"\n').start()
    try:
        script = (
            "import os, time\n"
            "data = (b'x' * 99 + b'\\n') * 10000\n"
            "for _ in range(20): os.write(1, data)\n"
            "open('written', 'w').close()\n"
            "while not os.path.exists('go'): time.sleep(0.01)\n"
        )
        daemon.run(sys.executable, "-I", "-S", "-c", script, job_id="job")
        home = daemon.root.job("job").workspace / "device0"
        eventually((home / "written").exists)
        log = Path(daemon.get("job").ranks[0].log_path)
        eventually(lambda: pieces(log)[-1][1] == 20_000_000)
        kept = pieces(log)
        assert sum(len(data) for _, _, data in kept) <= 4 * MIB
        first = daemon.read_logs("job", ranks=[0])[0]
        assert first.offset == kept[0][0] > 15_000_000
        with pytest.raises(grpc.RpcError) as refused:
            daemon.read_logs("job", offsets={0: 1000})
        assert refused.value.code() == grpc.StatusCode.OUT_OF_RANGE
        assert f"begin at {kept[0][0]}; the log ends at 20000000" in str(refused.value.details())
        (home / "go").touch()
        assert daemon.wait("job").state == job_pb2.JOB_STATE_SUCCEEDED
    finally:
        daemon.close()
