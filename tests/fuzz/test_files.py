"""What daemon, nursery and supervisors read that is no call: configuration, state folders, messages among them.

Rank tables, journals and frames have such tests beside their own: test_ranktable.py, test_journal.py,
test_lifecycle.py, test_wire.py, test_frames.py, test_sessions.py.
"""

import contextlib
import json
import os
import random
import shutil
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.config import loading, schema
from muster.agent.errors import StartupError
from muster.probes.settings import settings_of
from muster.supervisors.wire.messages import SocketAt
from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually
from tests.fuzz.test_calls import clear, defects

SEED = int(os.environ.get("MUSTER_FUZZ_SEED", "1"))
ROUNDS = int(os.environ.get("MUSTER_FUZZ_CALLS", "3000")) // 15

_TABLES = {name: list(settings_of(kind)) for name, kind in schema.TABLES.items()}
_VALUE = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.sampled_from(
            ["0660", "9999", "enforce", "off", "true", "127.0.0.1:0", "/x", "[::1]:70000", "unix:", "-1", ""]
        ),
        st.sampled_from([0, 1, -1, 2**63, 1e308, float("nan"), float("inf")]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def _raw(draw: st.DrawFn) -> dict[str, Any]:
    """Tables and keys that there are, mostly."""
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from([*_TABLES, "nonsense"]), max_size=3)):
        keys = st.sampled_from([*_TABLES.get(name, []), "nonsense"])
        found[name] = draw(st.dictionaries(keys, _VALUE, max_size=4) | _VALUE)
    return found


@given(_raw())
@settings(deadline=None, max_examples=400)
@pytest.mark.slow
def test_any_configuration_is_taken_or_refused_with_one_sentence(raw: dict[str, Any]) -> None:
    try:
        made = loading.parse(raw)
    except ValueError as error:
        assert str(error) and "\n" not in str(error)[:-1]
    else:
        assert isinstance(made, schema.Config)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_a_configuration_or_refused_by_the_name_of_the_file(data: bytes) -> None:
    path = Path(f"/dev/shm/muster-fuzz-{os.getpid()}.toml")
    path.write_bytes(data)
    try:
        loading.load(path)
    except StartupError as error:
        assert str(error).startswith(f"{path}: ")
    else:
        tomllib.loads(data.decode())
    finally:
        path.unlink()


def changed(rng: random.Random, data: bytes) -> bytes:
    """Bytes as a broken disk, or somebody's editor, may leave them."""
    how = rng.randrange(6)
    if how == 0 or not data:
        return rng.randbytes(rng.randrange(300))
    place = rng.randrange(len(data))
    if how == 1:
        return data[:place]
    if how == 2:
        return data[:place] + bytes(len(data) - place)
    if how == 3:
        lines = data.splitlines(keepends=True)
        rng.shuffle(lines)
        return b"".join(lines)
    if how == 4:
        return data[:place] + data[: rng.randrange(len(data))] + data[place:]
    made = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_daemon_starts_on_any_files(daemon: Daemon) -> None:
    """Journals and specs of jobs that have ended, and everything else in the state folder, with bytes changed."""
    rng = random.Random(SEED)
    count = min(max(ROUNDS // 2, 60), 400)
    daemon.run("sh", "-c", "echo hello; exit 3", job_id="whole", ranks=2)
    daemon.wait("whole")
    eventually(lambda: daemon.get("whole").cards_free)
    daemon.until_put_away("whole")
    daemon.kill(15)
    whole = daemon.root.job("whole").folder
    kept = {path.name: path.read_bytes() for path in whole.iterdir() if path.is_file()}
    for number in range(count):
        folder = daemon.root.jobs / f"x{number}"
        shutil.copytree(whole, folder)
        spec = folder / "spec.json"
        spec.write_bytes(kept["spec.json"].replace(b'"whole"', f'"x{number}"'.encode()))
        name = rng.choice(["journal", "journal", "spec.json", *kept])
        (folder / name).write_bytes(changed(rng, (folder / name).read_bytes()))
    others = [path for path in daemon.root.state.iterdir() if path.is_file() and path != daemon.root.version]
    for path in others:
        path.write_bytes(changed(rng, path.read_bytes()))
    events = [path for path in daemon.root.events.iterdir() if path.is_file()]
    rng.choice(events).write_bytes(changed(rng, rng.choice(events).read_bytes()))
    assert others and events

    daemon.start()
    answer = daemon.jobs.List(job_pb2.ListRequest(page_size=1000), timeout=60)
    assert {job.job_id for job in answer.jobs} == {"whole", *(f"x{number}" for number in range(count))}
    codes = set()
    for job in answer.jobs:
        for call in (
            lambda job_id=job.job_id: daemon.jobs.Get(job_pb2.GetRequest(job_id=job_id), timeout=30),
            lambda job_id=job.job_id: daemon.jobs.GetReport(job_pb2.GetReportRequest(job_id=job_id), timeout=30),
            lambda job_id=job.job_id: daemon.read_logs(job_id),
        ):
            try:
                call()
                codes.add("OK")
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)
                codes.add(error.code().name)
    assert codes <= {"OK", "DATA_LOSS"} and "OK" in codes, codes
    assert not defects(daemon)
    daemon.run("true", job_id="after")
    assert daemon.wait("after").state == job_pb2.JOB_STATE_SUCCEEDED
    clear(daemon)  # some go on from where their journal ends now


_WORDS: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**70,
    1.5,
    "",
    "x",
    "whole",
    "../../etc",
    "\0",
    [],
    [1],
    {},
    {"a": None},
    "é" * 100,
]
_KEYS = ["protocol", "size", "job", "session", "stdout", "stderr", "by", "pid", "nonsense"]


def line(rng: random.Random, ops: list[str]) -> bytes:
    """A message that may be right in some of its keys; or a line that is none."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.choice([1, 10, 1000, 70_000])) + rng.choice([b"\n", b""])
    message: dict[str, Any] = {"op": rng.choice([*ops, *ops, *_WORDS])}
    for key in rng.sample(_KEYS, rng.randrange(4)):
        message[key] = rng.choice(_WORDS)
    data = json.dumps(message).encode() + b"\n"
    if message["op"] == "exec" and isinstance(message.get("size"), int) and 0 < message["size"] < 100:
        data += rng.choice([b"{}", b"[", rng.randbytes(10), b'{"argv":["true"]}'])
    return data


def talk(rng: random.Random, path: Path, ops: list[str]) -> None:
    """A connection in which much is said, mostly behind a good beginning."""
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
        sock.settimeout(5)
        with SocketAt(path) as name:
            sock.connect(name)
        if rng.random() < 0.9:
            sock.sendall(b'{"op":"hello","protocol":1}\n')
            sock.recv(65536)
        for _ in range(rng.randrange(1, 6)):
            sock.sendall(line(rng, ops))
        if rng.random() < 0.5:
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass


@pytest.mark.timeout(1200)
def test_no_message_to_supervisor_or_nursery_does_harm(make_daemon: Callable[..., Daemon]) -> None:
    rng = random.Random(SEED)
    daemon = make_daemon()
    daemon.run("sleep", "100000", job_id="x", ranks=2)
    daemon.until_running("x")
    pids = daemon.nursery_pid(), daemon.supervisor_pid("x")
    ranks = [rank.pid for rank in daemon.get("x").ranks]

    def held() -> list[int]:
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

    before = held()
    for _ in range(ROUNDS):
        talk(rng, daemon.root.job("x").control, ["hello", "watch", "sessions", "exec", "attach", "end_session"])
        talk(rng, daemon.root.nursery_socket, ["hello", "tend", "ranks", "hold", "done"])
    assert (daemon.nursery_pid(), daemon.supervisor_pid("x")) == pids
    assert all(alive(pid) for pid in [*pids, *ranks])
    eventually(lambda: all(now <= was + 2 for now, was in zip(held(), before, strict=True)), 60)
    log = daemon.root.nursery_log
    assert not log.exists() or "Traceback" not in log.read_text(), log.read_text()[-3000:]
    daemon.run("true", job_id="after")
    assert daemon.wait("after").state == job_pb2.JOB_STATE_SUCCEEDED
    assert daemon.stop("x", grace_s=0).ended
