"""Man pages, generated from the commands' help texts, so that both always agree."""

import re
from collections.abc import Iterator

import click

from muster.agent.host import build


def pages(command: click.Command, name: str, section: int = 1) -> Iterator[tuple[str, str]]:
    """Name of the file ("muster-logs.1") and text (roff) of each command, the group first."""
    context = click.Context(command, info_name=name)
    yield f"{name.replace(' ', '-')}.{section}", _page(command, context, section)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            if found is not None and not found.hidden:
                yield from pages(found, f"{name} {sub}", section)


def _page(command: click.Command, context: click.Context, section: int) -> str:
    # The date of the build; a source tree has none.
    day = re.search(r"\d{4}-\d\d-\d\d", build.BUILD)
    title = (context.info_name or "").replace(" ", "-")
    lines = [f'.TH "{title.upper()}" "{section}" "{day[0] if day else ""}" "muster {_plain(build.FULL)}" "muster"']
    lines += [".SH NAME", f"{title} \\- {_plain(command.get_short_help_str(limit=200))}"]
    lines += [
        ".SH SYNOPSIS",
        f".B {_plain(context.info_name or '')}",
        _plain(" ".join(command.collect_usage_pieces(context))),
    ]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    records = [param.get_help_record(context) for param in command.get_params(context)]
    if options := [record for record in records if record]:
        lines.append(".SH OPTIONS")
        for switch, text in options:
            lines += [".TP", f"\\fB{_plain(switch)}\\fP", _plain(text)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            if found is not None and not found.hidden:
                lines += [".TP", f"\\fB{title}-{sub}\\fP(1)", _plain(found.get_short_help_str(limit=200))]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """click's mark for a paragraph that is not filled is a line with a backspace."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines and lines[0] == "\b":
            yield from (".nf", *map(_plain, lines[1:]), ".fi")
        else:
            yield _plain(" ".join(lines))


def _plain(text: str) -> str:
    """The text for roff: without escapes and requests."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
