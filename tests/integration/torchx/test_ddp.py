"""TorchX' own component dist.ddp: PyTorch on gloo, on three nodes that are reached over TCP with certificates."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.conftest import BIN

pytest.importorskip("torchx", reason="needs TorchX: pip install -r examples/torchx/requirements.txt")

from muster.v1 import job_pb2
from tests.integration.torchx.nodes import Nodes, app_id, nodes
from tests.ports import free_port

DDP = Path(__file__).parents[3] / "examples" / "ddp" / "train_ddp.py"


class TcpNodes:
    """Three nodes on TCP, the files of two clients, and what `-cfg` says of them."""

    def __init__(self, three: Nodes, ports: list[int], folder: Path) -> None:
        self.three = three
        self.hosts = [f"localhost:{port}" for port in ports]
        self._folder = folder

    def cfg(self, name: str = "operator", more: str = "") -> str:
        files = f"tls_ca={self._folder}/ca.pem,tls_cert={self._folder}/{name}.crt,tls_key={self._folder}/{name}.key"
        return f"hosts={';'.join(self.hosts)},{files}{more}"

    def env(self, name: str) -> dict[str, str]:
        """Of another user, who has no notes."""
        return {
            "XDG_STATE_HOME": str(self._folder / name),
            "MUSTER_HOSTS": ";".join(self.hosts),
            "MUSTER_TLS_CA": f"{self._folder}/ca.pem",
            "MUSTER_TLS_CERT": f"{self._folder}/{name}.crt",
            "MUSTER_TLS_KEY": f"{self._folder}/{name}.key",
        }


@pytest.fixture(scope="module")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TcpNodes]:
    folder = tmp_path_factory.mktemp("t")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("localhost", "operator", "reader"):
        made = authority.issue_cert(name)
        made.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")
        made.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.key").chmod(0o600)
    ports = [free_port() for _ in range(3)]

    def config(number: int) -> str:
        return (
            f'[tls]\nlisten = "127.0.0.1:{ports[number]}"\ncertificate = "{folder}/localhost.crt"\n'
            f'key = "{folder}/localhost.key"\nclient_authority = "{folder}/ca.pem"\n'
            'operators = ["operator"]\nreaders = ["reader"]\n'
        )

    with nodes(folder, config=config) as three:
        yield TcpNodes(three, ports, folder)


@pytest.mark.torch
@pytest.mark.slow
def test_ddp_on_three_nodes(tcp: TcpNodes) -> None:
    pytest.importorskip("torch", reason="needs examples/ddp/requirements.txt")
    port = free_port()
    more = f",path={BIN},workdir={DDP.parent}"
    done = tcp.three.command(
        *("run", "-s", "muster", "-cfg", tcp.cfg(more=more), "--wait", "--log", "dist.ddp", "-j", "3x1"),
        *("--script", DDP.name, "--rdzv_port", str(port), "--env", "GLOO_SOCKET_IFNAME=lo", "--", "--steps", "3"),
    )
    assert done.returncode == 0, done.stderr
    assert "ddp ok world=3" in done.stderr
    handle = done.stdout.split()[0]
    sums = re.findall(r"rank \d parameters (\w+)", tcp.three.command("log", handle).stdout)
    assert len(sums) == 3 and len(set(sums)) == 1
    jobs = tcp.three.jobs(app_id(handle))
    assert [job.state for job in jobs] == [job_pb2.JOB_STATE_SUCCEEDED] * 3
    assert all(job.spec.boot == "command" and len(job.ranks) == 1 for job in jobs)


def test_two_users_of_the_same_nodes(tcp: TcpNodes) -> None:
    """One may start and stop, the other may only look."""
    three = tcp.three
    words = ("utils.sh", "--num_replicas", "3", "sleep", "1000")
    before = three.all_jobs()
    refused = three.command("run", "-s", "muster", "-cfg", tcp.cfg("reader"), *words)
    assert refused.returncode != 0 and "sh/0 at localhost:" in refused.stderr and "operator" in refused.stderr
    assert three.all_jobs() == before
    done = three.command("run", "-s", "muster", "-cfg", tcp.cfg(), *words)
    assert done.returncode == 0, done.stderr
    handle = done.stdout.split()[0]
    reader = tcp.env("reader")
    assert "State: RUNNING" in three.command("status", handle, env=reader).stdout
    assert three.listed(**reader)[handle] == "RUNNING"
    cancelled = three.command("cancel", handle, env=reader)
    assert cancelled.returncode != 0 and "not all replicas could be asked to stop" in cancelled.stderr
    assert [job.state for job in three.jobs(app_id(handle))] == [job_pb2.JOB_STATE_RUNNING] * 3
    assert three.command("cancel", handle, env=tcp.env("operator")).returncode == 0
    assert [job.state for job in three.ended(app_id(handle))] == [job_pb2.JOB_STATE_STOPPED] * 3


def test_certificates_that_are_missing(tcp: TcpNodes) -> None:
    nobody = {"MUSTER_HOSTS": tcp.hosts[0], "XDG_STATE_HOME": "/none"}
    done = tcp.three.command("list", "-s", "muster", env=nobody)
    assert done.returncode != 0 and "TCP needs a certificate: give -cfg tls_ca=FILE or set MUSTER_TLS_CA" in done.stderr
