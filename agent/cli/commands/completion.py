"""`muster completion`: a script for the shell."""

import click
from click.shell_completion import get_completion_class

from muster.agent.cli.printing import emit


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
