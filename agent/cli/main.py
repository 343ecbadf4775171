"""The entry point of `muster`."""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from muster.agent import usage_error
from muster.agent.cli.client.address import address_options
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import note_failure, take_streams
from muster.agent.host import build

#: The commands: the module in `commands` that has each, its name there, and what `muster --help` says of it. A module
#: is imported for its own command alone: what it imports, each other command would wait for.
COMMANDS = {
    "check": ("check", "check", "Check this node, with or without a daemon."),
    "completion": ("service_files", "completion", "Print the completion script of a shell."),
    "debug": ("debug", "debug", "Collect data for a bug report."),
    "events": ("events", "events", "Show events in the order in which muster learned of them."),
    "exec": ("exec", "exec_", "Run a command in a rank of a job."),
    "hang": ("hang", "hang", "Try the hang rule on recorded telemetry."),
    "kube": ("kube.kube_command", "kube", "Tell Kubernetes whether this node is fit."),
    "logs": ("logs", "logs", "Show the output of a job's ranks, or of all jobs of the node."),
    "node": ("node", "node", "Show the node: daemon, conditions, cards; or take it out of service."),
    "ps": ("ps", "ps", "List jobs, the newest first."),
    "report": (
        "explain.report_file",
        "report",
        "Write one file about a job: verdict, time line, telemetry, stacks, last lines.",
    ),
    "rm": ("jobs", "rm", "Remove ended jobs."),
    "run": ("run", "run", "Run a job, show its output, and exit with its exit code."),
    "service": ("service", "service", "Install or remove the systemd service of this node."),
    "stacks": ("stacks", "stacks", "Show the stack of each rank of a job: Python frames, or its wait in the kernel."),
    "signal": ("jobs", "signal", "Send a signal to the ranks of a job."),
    "start": ("run", "start", "Start a job and print its id."),
    "status": ("look", "status", "Show a job with its ranks."),
    "stop": ("jobs", "stop", "Stop jobs and everything that they started."),
    "top": ("top", "top", "Show the activity of cards and ranks, live; q or Ctrl-C exits."),
    "wait": ("jobs", "wait", "Wait for a job's end."),
    "why": (
        "explain.why",
        "why",
        "Show why a job ended, with evidence and remedy; of a running job, show what is wrong.",
    ),
}


#: The commands in the order of `muster --help`.
GROUPS = {
    "Run": ("run", "start", "exec", "signal", "stop", "wait", "rm"),
    "Look": ("ps", "status", "logs", "events", "top"),
    "Explain": ("why", "report", "stacks", "hang"),
    "Node": ("node", "check", "kube"),
    "Service": ("service", "debug", "completion"),
}


class _Modules(Mapping[str, click.Command]):
    """The commands by name; each is imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        module, attribute, _ = COMMANDS[name]
        found = getattr(importlib.import_module(f"muster.agent.cli.commands.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(click.Group):
    """The commands of muster, which are listed without being imported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = _Modules()  # type: ignore[assignment]  # nothing adds one

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """After the commands, which people look for."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(widest), COMMANDS[name][2]) for name in names])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(build.FULL, prog_name="muster", message="%(prog)s %(version)s")
@address_options
def cli() -> None:
    """Run, watch and explain training jobs on this node, one process per card.

    Exit codes: 0 done, 1 failure, 2 usage, 3 no such job, 4 no daemon, 5 refused. `run` and `wait` exit with the job's
    code, `exec` with the command's.
    """


def execute(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (default: this process') and returns its exit code. Errors are on stderr."""
    try:
        code = cli.main(args=arguments, prog_name="muster", standalone_mode=False)
    except CommandFailed as failure:
        note_failure(failure)
        return failure.exit_code
    except click.ClickException as error:
        show(error)
        return error.exit_code
    except click.Abort:  # Ctrl-C; the terminal's ^C is enough
        return Exit.INTERRUPTED
    except click.exceptions.Exit as ending:
        return ending.exit_code
    return code if isinstance(code, int) else 0


def show(error: click.ClickException) -> None:
    """Writes an error of click's to stderr as an error of muster's, after the usage."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # not an error: the help of a group
        error.show()
    else:
        from muster.agent.cli import other_words

        usage_error.show(other_words.answered(error), "muster")


def main() -> None:
    """The command `muster`."""
    take_streams()
    try:
        code = execute()
    except KeyboardInterrupt:  # behind another one, which is being answered
        code = Exit.INTERRUPTED
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        sys.stderr.flush()
    # At once: Python would take a fifth of the command's time to tear down what the kernel frees anyway, and would have
    # removed its signal handlers before that, so that a signal in these milliseconds replaced the exit code.
    os._exit(code)


if __name__ == "__main__":
    main()
