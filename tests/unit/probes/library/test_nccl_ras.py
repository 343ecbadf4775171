"""The client of RAS against a server that speaks its protocol, over loopback."""

import os
from pathlib import Path

import anyio
import anyio.abc
import pytest

from muster.probes.library import RasAnswer, RasTarget, RasTrouble, ask_ras, nccl_ras
from muster.probes.library.nccl_ras import (
    RasMalformed,
    RasOtherJob,
    RasRefused,
    RasStatus,
    RasUnreachable,
    RasUnsafe,
    inner_pids,
    parse_answer,
    ras_address,
)
from muster.probes.library.nccl_version import Version
from tests.unit.probes.library.ras_server import (
    ELSEWHERE,
    HERE,
    RasServer,
    communicator,
    missing,
    rank,
    report,
    without_comma,
)

PID = os.getpid()
#: The processes of the job, each with what it calls itself.
OWN = {PID: PID}
SAFE: Version = (2, 29, 2)
LIMIT_S = 60.0


def target(port: int, *, host: str = HERE, uid: int | None = None, version: Version | None = SAFE) -> RasTarget:
    return RasTarget(PID, os.getuid() if uid is None else uid, host, port, version)


async def ask(server: RasServer) -> RasAnswer:
    trouble: RasTrouble | None = None
    async with server.listening() as port:
        try:
            return await ask_ras(target(port), OWN, deadline_s=LIMIT_S)
        except RasTrouble as error:
            trouble = error  # raised outside of the server's task group, which would wrap it
    raise trouble


async def test_an_answer() -> None:
    lost = [missing(2, 12, host=ELSEWHERE)]
    ranks = [rank(0, PID, {"AllReduce": 7, "Broadcast": 2}), rank(1, 11, 6, host=ELSEWHERE, dev=3)]
    server = RasServer(report(communicator(ranks, lost)))
    found = await ask(server)
    assert server.commands == ["CLIENT PROTOCOL 2", "SET FORMAT json", "VERBOSE STATUS"]
    assert (found.version, found.timestamp, set(found.processes())) == ("2.29.2", "2026-06-19 06:56:24", {PID})
    (comm,) = found.communicators
    assert (comm.size, comm.identity) == (3, ("0x7cbcd4b24fb45306", "0x1:0x2"))
    assert [(one.rank, one.host, one.pid, one.cuda_dev) for one in comm.ranks] == [
        (0, HERE, PID, 0),
        (1, ELSEWHERE, 11, 3),
    ]
    assert comm.ranks[0].collective_counts["AllReduce"] == 7 and comm.ranks[0].collective_counts["Reduce"] == 0
    assert [one.rank for one in comm.missing_ranks] == [2]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_localhost_is_both_families(address: str) -> None:
    server = RasServer(report(communicator([rank(0, PID, 7, host=address)])))
    try:
        async with server.listening(address) as port:
            found = await ask_ras(target(port, host="localhost"), OWN, deadline_s=LIMIT_S)
    except OSError:
        pytest.skip(f"there is no {address} here")
    assert found.processes() == {PID}


async def test_the_missing_comma() -> None:
    body = without_comma(report(communicator([rank(0, PID, 7)], [missing(1, 11, host=ELSEWHERE)])))
    found = await ask(RasServer(body))
    assert found.communicators[0].missing_ranks[0].pid == 11


# --- answers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b'{"communicators": [}', 19),
        (b'{"communicators": [', 19),
        (b"Job summary\n", 0),
        (b'{"communicators": []} x', 23),
        (b'{"communicators": [{"hash": 7}]}', -1),
        (b'{"communicators": [{"hash": "\xff"}]}', -1),
        (b'{"x": ' + b"[" * 100_000, None),
        (b"[]", -1),
        (b"{}", -1),
        (b'{"communicators": [], "nvml_dev": 1 "x": 2, "y" }', None),
    ],
)
async def test_a_malformed_answer_shows_where(body: bytes, position: int | None) -> None:
    with pytest.raises(RasMalformed, match="cannot be read") as raised:
        await ask(RasServer(body))
    if position is not None:
        assert raised.value.position == position
        assert (f"at byte {position}, near" in str(raised.value)) == (position >= 0)
    assert len(str(raised.value)) < 500


async def test_answers_of_what_is_no_ras() -> None:
    for server, said in [
        (RasServer(greeting=b"-ERR unknown command\r\n"), "does not answer as RAS"),
        (RasServer(greeting=b"\x1b[31m" * 2000), "no line"),
        (RasServer(format_set=b"ERROR: Unknown command set format json\n"), "no JSON"),
        (RasServer(b"ERROR: out of memory\n"), "RAS refuses: ERROR: out of memory"),
    ]:
        with pytest.raises(RasRefused, match=said):
            await ask(server)


async def test_nothing_is_sent_to_a_peer_that_does_not_greet() -> None:
    server = RasServer(greeting=b"220 smtp\n")
    with pytest.raises(RasRefused):
        await ask(server)
    assert server.commands == ["CLIENT PROTOCOL 2"]


async def test_no_answer() -> None:
    async def nothing(stream: anyio.abc.SocketStream) -> None:
        await anyio.sleep_forever()

    async def slowly(stream: anyio.abc.SocketStream) -> None:
        while True:
            await stream.send(b" ")
            await anyio.sleep(0.01)

    for server in (RasServer(b""), RasServer(greeting=b"")):
        async with server.listening() as port:
            with pytest.raises(RasUnreachable):
                await ask_ras(target(port), OWN, deadline_s=0.3)
    for answer in (nothing, slowly):
        async with RasServer(answer=answer).listening() as port:
            with pytest.raises(RasUnreachable, match=r"within 0\.3 s"):
                await ask_ras(target(port), OWN, deadline_s=0.3)


async def test_an_endless_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endlessly(stream: anyio.abc.SocketStream) -> None:
        while True:
            await stream.send(b'{"communicators": [' + b" " * 65536)

    monkeypatch.setattr(nccl_ras, "MAX_ANSWER_BYTES", 1 << 20)
    with pytest.raises(RasRefused, match="larger than 1 MiB"):
        await ask(RasServer(answer=endlessly))


# --- whom not to ask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, (2, 28, 9), (2, 24, 3)])
async def test_the_version_gate(version: Version | None) -> None:
    server = RasServer()
    async with server.listening() as port:
        with pytest.raises(RasUnsafe, match=r"at least 2\.29\.2 is needed"):
            await ask_ras(target(port, version=version), OWN)
        assert server.commands == []
        if version is not None:
            await ask_ras(target(port, version=version), OWN, least=(2, 24, 0), deadline_s=LIMIT_S)


async def test_another_users_listener_gets_nothing() -> None:
    server = RasServer()
    async with server.listening() as port:
        with pytest.raises(RasRefused, match=f"uid {os.getuid()} listens on port {port}"):
            await ask_ras(target(port, uid=os.getuid() + 1), OWN, deadline_s=LIMIT_S)
    assert server.commands == []


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0, PID, 7), rank(1, PID + 1, 7)],
        [rank(0, PID + 1, 7)],
        [rank(0, PID, 7, host=ELSEWHERE)],
        [],
    ],
)
async def test_another_jobs_answer(ranks: list[object]) -> None:
    with pytest.raises(RasOtherJob, match="another job's"):
        await ask(RasServer(report(communicator(ranks))))


async def test_another_process_answers() -> None:
    # Both containers have a process of this number, and they share the port.
    other = os.getppid()
    server = RasServer(report(communicator([rank(0, 1, 7)])))
    async with server.listening() as port:
        with pytest.raises(RasOtherJob, match="does not belong to the job"):
            await ask_ras(target(port), {other: 1}, deadline_s=LIMIT_S)
        found = await ask_ras(target(port), {other: 1, PID: 1}, deadline_s=LIMIT_S)
    assert server.commands[0] == "CLIENT PROTOCOL 2" and server.commands[1].startswith("CLIENT")
    assert found.processes() == {1}


async def test_what_processes_call_themselves(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_text("Name:\tpython\nPid:\t7\nNSpid:\t7\t31\t2\nNSpgid:\t7\t31\t2\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8/status").write_text("Name:\tpython\n")
    assert await inner_pids([7, 8, 9], proc=tmp_path) == {7: 2}
    assert PID in await inner_pids([PID])


async def test_nothing_listens() -> None:
    async with RasServer().listening() as port:
        pass
    with pytest.raises(RasUnreachable, match=f"nothing listens on port {port}"):
        await ask_ras(target(port), OWN, deadline_s=LIMIT_S)


async def test_another_network_namespace(tmp_path: Path) -> None:
    for name, namespace in ((str(PID), "net:[1]"), ("self", "net:[2]")):
        (tmp_path / name / "ns").mkdir(parents=True)
        (tmp_path / name / "ns/net").symlink_to(namespace)
    with pytest.raises(RasUnreachable, match="not reachable: the rank has a network namespace of its own"):
        await ask_ras(target(1), OWN, deadline_s=LIMIT_S, proc=tmp_path)


@pytest.mark.parametrize(
    ("host", "said"), [("192.0.2.7", "names the host '192.0.2.7'"), ("example.org", "names the host")]
)
async def test_hosts_that_are_not_asked(host: str, said: str) -> None:
    with pytest.raises(RasTrouble, match=said):
        await ask_ras(target(28028, host=host), OWN, deadline_s=LIMIT_S)


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ([], ("localhost", 28028)),
        ([b"NCCL_RAS_ADDR=localhost:4000"], ("localhost", 4000)),
        ([b"NCCL_RAS_ADDR=[::1]:4000", b"NCCL_RAS_ENABLE=1"], ("::1", 4000)),
    ],
)
def test_the_environment_says_where(environ: list[bytes], address: tuple[str, int]) -> None:
    assert ras_address(environ) == address


@pytest.mark.parametrize(
    "entry",
    [b"NCCL_RAS_ENABLE=0", b"NCCL_RAS_ADDR=localhost", b"NCCL_RAS_ADDR=:1", b"NCCL_RAS_ADDR=a:0", b"NCCL_RAS_ADDR=a:x"],
)
def test_an_environment_without_ras(entry: bytes) -> None:
    with pytest.raises(RasUnreachable):
        ras_address([entry])


def test_unknown_fields_and_missing_ones() -> None:
    found = parse_answer(
        b'{"communicators": [{"hash": "x", "ranks": [{"rank": 1, "host": "h", "pid": 2}]}], "z": 1}', 5.0, {"h"}
    )
    assert found.processes() == {2} and found.communicators[0].ranks[0].collective_counts == {}


def test_the_answer_of_a_real_nccl() -> None:
    """Of one rank on an H100 (PyTorch 2.11.0): an all-reduce of one rank is none, so that its count stays 0."""
    body = (Path(__file__).parents[3] / "fixtures/nccl_ras/2.28.9.json").read_bytes()
    answer = parse_answer(body, 1.0, ["192.0.2.2"])
    assert (answer.version, answer.processes()) == ("2.28.9", frozenset({2431}))
    ((rank,),) = [communicator.ranks for communicator in answer.communicators]
    assert (rank.rank, rank.cuda_dev, rank.status) == (0, 0, RasStatus())
    assert rank.collective_counts["AllReduce"] == 0
