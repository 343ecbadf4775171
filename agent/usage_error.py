"""Errors of click in muster's form: the usage, a hint, and one line that begins with the name of the program."""

import click

from muster.agent.text import clean, uncapitalized


def show(error: click.ClickException, program: str) -> None:
    """Writes an error of click to stderr. The line has a lower-case first letter and no full stop."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        hint = f"Try '{context.command_path} {context.help_option_names[0]}' for help."
        click.echo(f"{context.get_usage()}\n{hint}\n", err=True)
    text = uncapitalized(error.format_message().rstrip("."))
    for line in text.splitlines() or [""]:
        click.echo(f"{program}: {clean(line)}", err=True)
