"""muster-client: by itself in an environment, and beside muster-agent."""

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


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def lost(venv: Path, wheel: Path) -> set[str]:
    """Files of a wheel that are not installed."""
    (site,) = venv.glob("lib/python*/site-packages")
    return {name for name in names(wheel) if not (site / name).is_file()}


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


def test_no_file_is_of_both_and_the_agent_goes_without_the_client(wheels: tuple[Path, Path], venv: Path) -> None:
    client, agent = wheels
    assert names(client) & names(agent) == set()
    # `muster` itself is a namespace: it has no __init__.py that one of them could own.
    assert not {name for name in names(client) | names(agent) if name.startswith("muster/") and name.count("/") == 1}
    pip(venv, "install", "--no-deps", client, agent)
    asked = "import importlib.metadata as m; print(*m.requires('muster-agent'))"
    assert f"muster-client=={muster.agent.__version__}" in program(venv, asked)
    assert lost(venv, client) == lost(venv, agent) == set()
    pip(venv, "uninstall", "--yes", "muster-agent")
    assert lost(venv, client) == set()
    assert program(venv, "import muster.client, muster.v1.job_pb2; print(muster.client.Gang.__name__)") == "Gang"
    (site,) = venv.glob("lib/python*/site-packages")
    assert {path.name for path in (site / "muster").iterdir()} == {"client", "v1"}
