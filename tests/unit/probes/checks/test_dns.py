import os
import socket
import threading

import pytest

from muster.probes.checks import dns
from muster.probes.checks.result import Action, Code, Status


class Resolver:
    """Knows what each name does: an exception to raise, an Event to wait for, or nothing for one that resolves."""

    def __init__(self, **names):
        self.names = {k.replace("_", "-"): v for k, v in names.items()}
        self.asked = []

    def __call__(self, name):
        self.asked.append(name)
        answer = self.names.get(name)
        if isinstance(answer, threading.Event):
            answer.wait()
        elif answer is not None:
            raise answer


def gai(number):
    return socket.gaierror(number, "told by the test")


async def check(resolver, *hosts, folder="", deadline_s=5.0):
    return await dns.check(hosts=hosts, folder=str(folder), deadline_s=deadline_s, resolve=resolver)


async def test_no_names_is_not_applicable(tmp_path):
    assert (await check(Resolver())).code is Code.DNS_NO_NAMES
    assert (await check(Resolver(), folder=tmp_path / "none")).status is Status.NOT_APPLICABLE


async def test_names_of_job_and_files_are_asked_once(tmp_path):
    (tmp_path / "worker.host").write_text("# peers\nworker-0\n\nworker-1 slots=8\r\n")
    (tmp_path / "other.txt").write_text("not-asked\n")
    resolver = Resolver()
    found = await check(resolver, "worker-0", folder=tmp_path)
    assert sorted(resolver.asked) == ["worker-0", "worker-1"]
    assert (found.status, found.observed) == (Status.OK, "2 of 2 names resolve")


async def test_a_name_that_does_not_resolve_is_critical_and_named():
    found = await check(Resolver(worker_1=gai(socket.EAI_NONAME)), "worker-0", "worker-1")
    assert (found.status, found.code, found.action) == (
        Status.CRITICAL,
        Code.DNS_NAME_UNRESOLVED,
        Action.DRAIN,
    )
    assert "worker-1" in found.reason and "worker-0" not in found.reason


async def test_a_silent_server_is_asked_again(monkeypatch):
    monkeypatch.setattr(dns, "PAUSE_S", 0.0)
    resolver = Resolver(worker_0=gai(socket.EAI_AGAIN))
    assert (await check(resolver, "worker-0")).code is Code.DNS_SERVER_FAILED
    assert resolver.asked == ["worker-0"] * dns.ATTEMPTS


async def test_the_first_answer_counts_when_the_second_is_late(monkeypatch):
    monkeypatch.setattr(dns, "PAUSE_S", 30.0)
    found = await check(Resolver(worker_0=gai(socket.EAI_AGAIN)), "worker-0", deadline_s=2.0)
    assert (found.status, found.code) == (Status.CRITICAL, Code.DNS_SERVER_FAILED)


async def test_a_resolver_that_cannot_work_is_unknown():
    found = await check(Resolver(worker_0=gai(socket.EAI_SYSTEM)), "worker-0")
    assert (found.status, found.code) == (Status.UNKNOWN, Code.DNS_RESOLVER_ERROR)


@pytest.mark.parametrize("name", ["a" * 64 + ".x", "a..b"])
async def test_what_is_no_host_name_is_critical(name):
    found = await dns.check(hosts=(name,), folder="", deadline_s=5.0)
    assert found.code is Code.DNS_NAME_INVALID


async def test_one_hanging_name_hides_no_other():
    release = threading.Event()
    try:
        resolver = Resolver(hang_1=release, bad_1=gai(socket.EAI_NONAME))
        found = await check(resolver, "hang-1", "bad-1", "good-1", deadline_s=2.0)
        assert (found.status, found.code) == (Status.CRITICAL, Code.DNS_NAME_UNRESOLVED)
        assert "hang-1: no answer" in found.reason
        found = await check(resolver, "hang-1", "good-1", deadline_s=2.0)
        assert (found.status, found.code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
        assert "still hangs" in found.reason
        assert resolver.asked.count("hang-1") == 1
    finally:
        release.set()


async def test_files_that_are_no_lists_are_unknown_and_hide_no_name(tmp_path):
    (tmp_path / "binary.host").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge.host").write_bytes(b"x" * (dns.MAX_FILE + 1))
    (tmp_path / "folder.host").mkdir()
    os.mkfifo(tmp_path / "fifo.host")
    found = await check(Resolver(), folder=tmp_path)
    assert (found.status, found.code) == (Status.UNKNOWN, Code.DNS_HOST_FILE_UNREADABLE)
    assert all(name in found.reason for name in ("binary.host", "huge.host", "folder.host"))
    assert "fifo.host" not in found.reason
    bad = Resolver(worker_9=gai(socket.EAI_NONAME))
    assert (await check(bad, "worker-9", folder=tmp_path)).code is Code.DNS_NAME_UNRESOLVED


async def test_many_names_are_bounded(monkeypatch):
    monkeypatch.setattr(dns, "MAX_NAMES", 3)
    resolver = Resolver()
    found = await check(resolver, *(f"w-{i}" for i in range(5)))
    assert len(resolver.asked) == 3
    assert found.status is Status.UNKNOWN and "5 names" in found.reason


async def test_real_resolver():
    found = await dns.check(hosts=("localhost", "127.0.0.1"), folder="", deadline_s=5.0)
    assert found.status is Status.OK
