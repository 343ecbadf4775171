"""The options of `run` and `start` that make a spec, from the table of its fields."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from muster.agent.cli.parameters import Parsed
from muster.agent.cli.spec import spec_values
from muster.agent.cli.spec.job_spec import Draft, read_file
from muster.supervisors.model.rules import staging_urls
from muster.supervisors.model.spec import FIELDS, Boot
from muster.supervisors.model.spec_fields import Choice, Field, Flag, Inputs, Outputs, Services

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


class _Value(Parsed):
    """A value of a field; a shell completes the last of several words with commas between them."""

    def __init__(self, field: Field) -> None:
        super().__init__(field.name, functools.partial(spec_values.from_option, field))
        self._allowed = field.allowed

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        before, comma, begun = incomplete.rpartition(",")
        left = [name for name in self._allowed if name not in before.split(",")]
        return [CompletionItem(before + comma + name) for name in left if name.startswith(begun)]


#: Two fields may share an option: the first describes it.
_FIELDS = {field.option: field for field in reversed(FIELDS.values()) if field.option}
_OPTIONS = {field.name: field for field in FIELDS.values() if field in _FIELDS.values()}


def _option(field: Field) -> Callable[[F], F]:
    flag, repeated = isinstance(field, Flag), isinstance(field.default, dict) or isinstance(field, Services)
    kind = click.Choice(field.allowed) if isinstance(field, Choice) else _Value(field)
    default = f" Default: {field.unset}." if field.unset else ""
    return click.option(
        str(field.option),
        field.name,
        metavar=None if flag else field.metavar,
        type=None if flag else kind,
        multiple=repeated,
        is_flag=flag,
        default=None,
        help=field.help + default.replace("`", "") + (" Repeatable." if repeated else ""),
    )


def _table(field: Field, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The last value of a name wins, as with docker; of a path that is copied none may get lost. Raises UsageError."""
    if isinstance(field, (Inputs, Outputs)) and (path := staging_urls.twice(path for path, _ in pairs)):
        raise click.UsageError(f"{field.option}: names the path {path!r} twice: give each URL a path of its own")
    return dict(pairs)


def _one_node(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Raises NoSuchOption for several: muster has to know their names."""
    if value not in (None, "1", "1:1"):
        raise click.NoSuchOption("--nnodes", ctx=context)


def spec_options(command: F) -> F:
    """The options and the words of the command; the command gets one `draft` for all of them."""

    @functools.wraps(command)
    def with_draft(*args: Any, file: str | None, words: tuple[str, ...], per_node: bool, **others: Any) -> Any:
        options = Draft()
        if words:
            options.say(FIELDS["command"], words, "command")
        for name, field in _OPTIONS.items():
            value = others.pop(name)
            if value is not None and value != ():
                options.say(
                    field, _table(field, value) if isinstance(field.default, dict) else value, str(field.option)
                )
        if per_node:
            if (mode := options.asked.boot) != Boot.COMMAND and "boot" in options.written:
                raise click.UsageError(f"--per-node is --boot {Boot.COMMAND}, and --boot says {mode}: give one of them")
            options.say(FIELDS["boot"], Boot.COMMAND.value, "--per-node")
        draft = read_file(file) if file is not None else Draft()
        draft.override(options)
        return command(*args, draft=draft, **others)

    wrapped = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")(with_draft)
    for field in reversed(_OPTIONS.values()):
        wrapped = _option(field)(wrapped)
    wrapped = click.option(
        "--per-node",
        is_flag=True,
        help="Start the command once, for all cards: for a script that calls a launcher. Same as --boot command.",
    )(wrapped)
    wrapped = click.option(
        "-f", "--file", "file", metavar="FILE", help="Read the spec from a TOML file (- is stdin); options override it."
    )(wrapped)
    # Scripts for torchrun say so of one node.
    wrapped = click.option("--nnodes", hidden=True, expose_value=False, callback=_one_node)(wrapped)
    return wrapped  # type: ignore[return-value]  # takes `draft`'s parts in its place
