"""The entry point of `muster`."""

import signal
import sys
from collections.abc import Sequence

import click
from click.shell_completion import get_completion_class

from muster.agent import usage_error
from muster.agent.cli.client.address import address_options
from muster.agent.cli.commands import check, debug, events, hang, jobs, logs, look, node, run, service, stacks, top, why
from muster.agent.cli.commands import exec as exec_
from muster.agent.cli.exits import Exit, Failure
from muster.agent.cli.printing import emit, keep_descriptors, note
from muster.agent.host import build
from muster.agent.host.pid_one import is_init, leave_when_asked


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(build.FULL, prog_name="muster", message="%(prog)s %(version)s")
@address_options
def cli() -> None:
    """Run, watch and explain training jobs on this node, one process per card.

    Exit codes: 0 done, 1 failure, 2 usage, 3 no such job, 4 no daemon, 5 refused. `run` and `wait` exit with the job's
    code, `exec` with the command's.
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: muster completion bash > ~/.local/share/bash-completion/completions/muster
    zsh:  muster completion zsh > a file named _muster in a folder of $fpath
    fish: muster completion fish > ~/.config/fish/completions/muster.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click.Choice allows no other
    emit(kind(context.find_root().command, {}, "muster", "_MUSTER_COMPLETE").source() + "\n")


for _command in (
    run.run,
    jobs.start,
    jobs.stop,
    jobs.wait,
    jobs.rm,
    jobs.ps,
    look.status,
    why.why,
    logs.logs,
    exec_.exec_,
    events.events,
    node.node,
    top.top,
    stacks.stacks,
    hang.hang,
    check.check,
    service.service,
    debug.debug,
    completion,
):
    cli.add_command(_command)


def execute(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (default: this process') and returns its exit code. Errors are on stderr."""
    try:
        code = cli.main(args=arguments, prog_name="muster", standalone_mode=False)
    except Failure as failure:
        failure.show()
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
        usage_error.show(error, "muster")


def main() -> None:
    """The command `muster`."""
    keep_descriptors()
    if is_init():
        leave_when_asked()
    code = execute()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or Exit.PIPE_CLOSED
    except OSError as error:
        note(f"standard output: {error.strerror}")
        code = code or Exit.FAILURE
    # Python removes its handlers before it exits: a signal in these milliseconds must not replace the exit code.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()
