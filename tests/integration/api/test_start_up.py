"""What a command imports: each module is time that a person waits for (`make bench` has the times)."""

import os
import re
import subprocess
import sys

import click
import pytest

from muster.agent.cli.main import COMMANDS, cli
from tests.conftest import BIN, Daemon

#: What no command needs that makes a call and prints the answer. gRPC's import alone would bring the first two.
HEAVY = {
    *("asyncio.base_events", "grpc.aio._channel", "anyio", "uvloop", "psutil", "msgspec", "structlog", "rich"),
    *("muster.probes.checks.codes", "muster.supervisors.model.spec", "muster.agent.config.schema", "ssl"),
}
#: Modules of muster that a command may import: so many are there now, and each further one is to be asked for.
OWN = {"--help": 22, "ps": 34, "status x": 36, "logs x": 44, "stop x": 35, "events": 37, "node": 38}
#: What the daemon of one job does not need before it listens, nor until a job has failed, is watched or asked about.
LATER = {
    *("rich.console", "psutil", "google.protobuf.text_format", "google.protobuf.json_format", "http.client"),
    *("muster.agent.why.facts", "muster.agent.why.report", "muster.agent.api.report_json", "muster.probes.hang.rule"),
    *("muster.probes.library", "muster.probes.stacks.taking", "muster.supervisors.job.supervisor"),
    *("ssl", "_ssl"),
    "muster.agent.logs.pieces",
}
#: Modules of muster that this daemon imports before it listens.
DAEMON = 413


def imported(*arguments: str) -> set[str]:
    """The modules that were run for a command line."""
    # A module that was only noted is of another class.
    code = (
        "import sys; from muster.agent.cli import main; code = main.execute(sys.argv[1:]);"
        "ran = [name for name, module in sys.modules.items() if type(module).__name__ != '_LazyModule'];"
        "print(*ran, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stderr.splitlines()[-1].split())


def test_a_command_imports_what_it_needs(daemon: Daemon) -> None:
    daemon.run("true", job_id="x")
    daemon.wait("x")
    for command, most in OWN.items():
        where = [] if command == "--help" else ["--address", f"unix:{daemon.root.socket}"]
        found = imported(*where, *command.split())
        assert not found & HEAVY, command
        own = sorted(name for name in found if name.partition(".")[0] == "muster")
        assert len(own) <= most, f"{command}: {own}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_muster_says_what_the_command_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.name == name
    assert command.get_short_help_str(limit=200) == COMMANDS[name][2]


def test_the_daemon_of_a_standalone_run_imports_what_it_needs_before_it_listens(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # Python writes each import to stderr, which is the daemon's log; the folder with that stays where a job has failed.
    folder = tmp_path_factory.mktemp("m")  # a short name: a socket's path is below it
    env = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", "TMPDIR": str(folder)}
    command = [str(BIN / "muster"), "run", "--standalone", "-q", "--skip-check", "--", "false"]
    assert subprocess.run(command, env=env, capture_output=True, timeout=60, check=False).returncode == 1
    (log,) = folder.glob("muster-*/musterd.log")
    before, serving, _ = log.read_text().partition('"event": "serving"')
    found = set(re.findall(r"^import time: .*\| +(\S+)$", before, re.MULTILINE))
    assert serving and "muster.agent.wiring" in found
    assert found & LATER == set()
    own = sorted(name for name in found if name.partition(".")[0] == "muster")
    assert len(own) <= DAEMON, own
