"""What a command imports: each module is time that a person waits for (`make bench` has the times)."""

import subprocess
import sys

import click
import pytest

from muster.agent.cli.main import COMMANDS, cli
from tests.conftest import Daemon

#: What no command needs that makes a call and prints the answer. gRPC's import alone would bring the first two.
HEAVY = {
    *("asyncio.base_events", "grpc.aio._channel", "anyio", "uvloop", "psutil", "msgspec", "structlog", "rich"),
    *("muster.probes.checks.codes", "muster.supervisors.model.spec", "muster.agent.config.schema", "ssl"),
}
#: Modules of muster that a command may import: so many are there now, and each further one is to be asked for.
OWN = {"--help": 22, "ps": 38, "status x": 38, "logs x": 41, "stop x": 39, "events": 37, "node": 39}


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
