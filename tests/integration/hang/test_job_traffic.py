"""Whose the network's traffic is, on a node with a cable to another one."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import telemetry_pb2
from tests.conftest import Daemon
from tests.integration import cable

MIB = 1 << 20
HERE, THERE = "10.98.78.1", "10.98.78.2"
FAST = """
[telemetry]
processes_s = 0.5
"""
#: Sends to whoever connects, 13 MB a second.
SENDS = """
import socket, sys, threading, time
def send(to):
    while True:
        to.sendall(bytes(65536))
        time.sleep(0.005)
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=send, args=(server.accept()[0],), daemon=True).start()
"""
RECEIVES = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as one:
    while one.recv(1 << 20):
        pass
"""
#: A connection for each piece, which no look sees for long.
RECEIVES_PIECES = """
import socket, sys, time
while True:
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as one:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            one.recv(1 << 20)
    time.sleep(0.05)
"""
#: Passes on what it receives to whoever connects at its own port and at a unix socket.
RELAYS = """
import os, socket, sys, threading
def relay(to):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as source:
        while part := source.recv(1 << 20):
            to.sendall(part)
def serve(listener):
    while True:
        threading.Thread(target=relay, args=(listener.accept()[0],), daemon=True).start()
with socket.create_server(("127.0.0.1", 0)) as near, socket.socket(socket.AF_UNIX) as unix:
    unix.bind(sys.argv[3])
    unix.listen()
    print(near.getsockname()[1], flush=True)
    threading.Thread(target=serve, args=(unix,), daemon=True).start()
    serve(near)
"""
RECEIVES_UNIX = """
import socket, sys
with socket.socket(socket.AF_UNIX) as one:
    one.connect(sys.argv[1])
    while one.recv(1 << 20):
        pass
"""


@pytest.fixture
def cabled(make_daemon: Callable[..., Daemon]) -> Iterator[tuple[Daemon, list[str], int]]:
    """A daemon, the command that runs something beside it, and the port at the other end that sends."""
    with cable.joined((HERE, THERE)) as (here, there):
        inside = ["ip", "netns", "exec", here]
        other = subprocess.Popen(
            ["ip", "netns", "exec", there, sys.executable, "-c", SENDS, THERE], stdout=subprocess.PIPE, text=True
        )
        try:
            assert other.stdout is not None
            yield make_daemon(FAST, by=inside), inside, int(other.stdout.readline())
        finally:
            other.kill()
            other.communicate()


def first(daemon: Daemon, job_id: str, wanted: Callable[[dict[str, Any], float], bool]) -> dict[str, Any]:
    """The first record of a job that is `wanted`; with it, what the node has moved a second since the one before."""
    stream = daemon.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest(job_id=job_id), timeout=120)
    try:
        records: Iterator[dict[str, Any]] = (json.loads(answer.line) for answer in stream)
        for before, found in itertools.pairwise(records):
            if wanted(found, (found["net_bytes"] - before["net_bytes"]) / (found["t"] - before["t"])):
                return found
    finally:
        stream.cancel()
    raise AssertionError("the records have ended")


def test_a_job_is_credited_with_its_own_traffic_alone(cabled: tuple[Daemon, list[str], int]):
    node, inside, port = cabled
    receives = [sys.executable, "-c", RECEIVES, THERE, str(port)]
    idle = node.run("sleep", "600").job_id
    neighbour = subprocess.Popen([*inside, *receives])
    try:
        # The neighbour's traffic is none of the job that sleeps.
        first(node, idle, lambda record, moved: moved > MIB and record.get("job_net_rate") == 0.0)
        downloads = node.run(*receives).job_id
        first(node, downloads, lambda record, _: record.get("job_net_rate", 0.0) > MIB)
        first(node, idle, lambda record, moved: moved > MIB and record.get("job_net_rate") == 0.0)
    finally:
        neighbour.kill()
        neighbour.wait()


def alive(daemon: Daemon, job_id: str) -> list[float | None]:
    """What three records tell of a job while the node moves 4 MiB a second."""
    told: list[float | None] = []

    def enough(record: dict[str, Any], moved: float) -> bool:
        if moved > 4 * MIB:
            told.append(record.get("job_net_rate"))
        return len(told) == 3

    first(daemon, job_id, enough)
    return told


def test_connections_that_come_and_go_between_two_looks_are_not_missed(cabled: tuple[Daemon, list[str], int]):
    node, _, port = cabled
    job = node.run(sys.executable, "-c", RECEIVES_PIECES, THERE, str(port)).job_id
    assert all(rate is None or rate > MIB for rate in alive(node, job))


@pytest.mark.parametrize("by", ["loopback", "unix socket"])
def test_data_that_comes_through_a_process_of_this_node_is_not_missed(
    cabled: tuple[Daemon, list[str], int], tmp_path: Path, by: str
):
    node, inside, port = cabled
    path = str(tmp_path / "relay")
    relay = subprocess.Popen(
        [*inside, sys.executable, "-c", RELAYS, THERE, str(port), path], stdout=subprocess.PIPE, text=True
    )
    try:
        assert relay.stdout is not None
        near = relay.stdout.readline().strip()
        command = ["-c", RECEIVES, "127.0.0.1", near] if by == "loopback" else ["-c", RECEIVES_UNIX, path]
        job = node.run(sys.executable, *command).job_id
        assert all(rate is None or rate > MIB for rate in alive(node, job))
    finally:
        relay.kill()
        relay.communicate()
