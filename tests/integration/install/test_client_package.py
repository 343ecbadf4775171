"""muster-client: by itself in an environment, and what it shares with muster-agent."""

import re
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import muster.agent
from tests.conftest import Daemon
from tests.integration.install.test_packages import REPOSITORY, build, run, unpacked

#: What it may need, and what that needs: as it lies in the folder of installed packages.
NEEDED = ("grpc", "google/protobuf", "google/_upb", "typing_extensions.py")
DISTRIBUTIONS = ("grpcio", "protobuf", "typing_extensions")
#: Drives a daemon, over each kind of call.
PROGRAM = """
import sys
from muster.client import MusterError, connect_blocking
from muster.v1 import job_pb2

with connect_blocking(sys.argv[1]) as muster:
    muster.start(job_pb2.JobSpec(job_id="j", command=["sh", "-c", "echo said by $RANK; sleep 1000"], ranks=2))
    lines = set()
    for message in muster.read_node_logs(follow=True):
        lines.update(message.output.data.decode().splitlines())
        if {"said by 0", "said by 1"} <= lines:
            break
    while muster.get("j").state != job_pb2.JOB_STATE_RUNNING:
        pass  # a rank may write before the daemon has heard that all have started
    with muster.exec("j", ["cat"], stdin=True) as command:
        command.write(b"in")
        command.close_input()
        assert b"".join(part.data for part in command) == b"in" and command.exit_code == 0
    try:
        muster.start(job_pb2.JobSpec(job_id="j", command=["false"]))
    except MusterError as error:
        assert error.reason == "JOB_ID_CONFLICT" and "command" in error.facts["fields"], error
    try:
        muster.start(job_pb2.JobSpec(job_id="k", command=["true"], ranks=9999))
    except MusterError as error:
        assert error.violations[0][0] == "ranks", error
    assert muster.stop("j", grace_s=0).ended
    events = [message.event.kind for message in muster.watch(from_oldest=True, follow=False)]
    assert "job.ended" in events
    print(muster.wait("j").job.state)
ours = {name for name in sys.modules if name.startswith("muster.") and name.split(".")[1] not in ("client", "v1")}
assert not ours and "google.rpc" not in sys.modules, ours
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packages")]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The client's, of its sdist, and the agent's."""
    folder = tmp_path_factory.mktemp("wheels")
    sdist = build(REPOSITORY / "proto", folder / "sdist", "sdist")
    client = build(unpacked(sdist, folder / "unpacked"), folder / "client", "wheel")
    return client, build(REPOSITORY, folder / "agent", "wheel", MUSTER_WHEEL="any")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """What the client may need, and nothing else."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "google").mkdir()
    have = Path(sysconfig.get_path("platlib"))
    for name in (*NEEDED, *(path.name for each in DISTRIBUTIONS for path in have.glob(f"{each}-*.dist-info"))):
        (site / name).symlink_to(have / name)
    return tmp_path / "venv"


def pip(venv: Path, *arguments: str | Path) -> None:
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", venv / "bin/python")
    run(*command, *arguments, PIP_CONSTRAINT="", PIP_NO_INDEX="1")


def files(wheel: Path) -> dict[str, bytes]:
    """Of the import package."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.startswith("muster/")}


def installed(venv: Path, wheel: Path) -> dict[str, bytes]:
    """Those files of a wheel that are there."""
    (site,) = venv.glob("lib/python*/site-packages")
    return {name: (site / name).read_bytes() for name in files(wheel) if (site / name).is_file()}


def program(venv: Path, text: str, *arguments: str) -> str:
    return run(venv / "bin/python", "-P", "-c", text, *arguments, cwd=venv, PYTHONPATH="")


def test_it_needs_grpc_and_protobuf_and_nothing_of_the_daemon(
    wheels: tuple[Path, Path], venv: Path, daemon: Daemon
) -> None:
    pip(venv, "install", wheels[0])  # with what it needs: that must be there
    assert program(venv, PROGRAM, daemon.address).isdigit()
    told = "import importlib.metadata as m; print(m.version('muster-client'), *m.requires('muster-client'))"
    version, *requires = program(venv, told).split()
    assert version == muster.agent.__version__
    assert {re.split("[<>=]", line)[0] for line in requires} == {"grpcio", "protobuf"}


def test_the_agent_contains_it(wheels: tuple[Path, Path]) -> None:
    """Its files are the same bytes, and the agent needs no other distribution of ours."""
    client, agent = (files(wheel) for wheel in wheels)
    assert {name.split("/")[1] for name in client} == {"__init__.py", "py.typed", "client", "v1"}
    assert client == {name: agent[name] for name in client if name in agent}
    assert not {name for name in agent.keys() - client.keys() if name.startswith(("muster/client/", "muster/v1/"))}
    with zipfile.ZipFile(wheels[1]) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        assert not re.search("^Requires-Dist: *muster", archive.read(metadata).decode(), re.MULTILINE | re.IGNORECASE)


def test_after_one_of_both_is_removed_a_reinstall_mends_the_other(wheels: tuple[Path, Path], venv: Path) -> None:
    """As docs/guides/clients.md says."""
    client, agent = wheels
    pip(venv, "install", "--no-deps", client, agent)
    assert (installed(venv, client), installed(venv, agent)) == (files(client), files(agent))
    pip(venv, "uninstall", "--yes", "muster-client")
    assert installed(venv, client) == {}
    pip(venv, "install", "--no-deps", "--force-reinstall", agent)
    assert installed(venv, agent) == files(agent)
