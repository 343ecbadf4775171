"""docs/reference/commands.md, from the commands' own options and help texts, as the man pages are."""

import re
from collections.abc import Iterator

import click

from muster.agent.cli.exits import MEANINGS
from muster.agent.cli.main import cli

_HEAD = """# Commands

Every command of `muster` with its options, as `muster COMMAND --help` and the man pages show them. `make docs` writes
this page from the commands. The guides say how to use them: [run and stop jobs](../guides/run-jobs.md),
[read output](../guides/reading-logs.md), [look at jobs and cards](../guides/look.md).

- Results go to stdout; progress and errors go to stderr.
- The options of `muster` itself may stand before or behind the name of the command.
- An option wins over the environment; `MUSTER_ADDRESS` wins over `MUSTER_ROOT`. `NO_COLOR` switches colours off;
  without a terminal there are none.
- `-o json` and `-o yaml` use the names of the API and RFC 3339 times.
- A duration is `500ms`, `15s`, `10m`, `2h`, `1d`, `1h30m`, or a number of seconds.
- Tables show a job's own text (its id, the words of its command, its last lines) without escape sequences and control
  characters. `run` and `logs` pass the output of ranks on unchanged.
"""


def commands() -> str:
    """The text of the page."""
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items())
    exits = f"\n## Exit codes\n\n| code | meaning |\n|---|---|\n{rows}"
    return _HEAD + exits + "".join(_sections(cli, click.Context(cli, info_name="muster")))


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    """A section of the command, then one of each command below it."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"\n## {context.command_path}\n", f"```text\n{usage}\n```\n", *_paragraphs(command.help or "")]
    records = [param.get_help_record(context) for param in command.get_params(context)]
    if options := [record for record in records if record and "--help" not in record[0]]:
        rows = "".join(f"| `{_cell(switch)}` | {_cell(text)} |\n" for switch, text in options)
        parts.append(f"| option | meaning |\n|---|---|\n{rows}")
    yield "\n".join(parts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _sections(found, click.Context(found, info_name=name, parent=context))


def _paragraphs(text: str) -> Iterator[str]:
    """click's mark for a paragraph that keeps its lines is a line with a backspace."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines and lines[0] == "\b":
            yield "\n".join(["```text", *lines[1:], "```\n"])
        elif paragraph:
            yield " ".join(lines).replace("<", "\\<") + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
