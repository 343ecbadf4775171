"""Output of the commands: data to stdout, everything else to stderr."""

import contextlib
import functools
import io
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from muster.agent.cli.exits import CommandFailed, Exit, StdoutFailed
from muster.agent.text import clean

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from google.protobuf.message import Message

F = TypeVar("F", bound=Callable[..., Any])


_META = "muster.output"


def format_option(command: F) -> F:
    """`-o table|wide|json|yaml`, given to the command as `as_json`: whether it prints objects, by `emit_json`."""
    return _format_option(command, "-o", "--output")


def short_format_option(command: F) -> F:
    """The same without `--output`, for a command that has another option of that name."""
    return _format_option(command, "-o")


def _format_option(command: F, *names: str) -> F:

    def keep(context: click.Context, _option: click.Parameter, value: str) -> bool:
        if value != "table":  # also where the command of a group has said nothing of its own
            context.meta[_META] = value
        return context.meta.get(_META) in ("json", "yaml")

    return click.option(
        *names,
        "as_json",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        show_default=True,
        callback=keep,
        help="Print a table, a wide one with everything in it, or JSON or YAML with the names of the API.",
    )(command)


def _chosen() -> str:
    context = click.get_current_context(silent=True)
    return str(context.meta.get(_META, "table")) if context is not None else "table"


def wide() -> bool:
    """Whether tables have all columns and are cut nowhere (`-o wide`)."""
    return _chosen() == "wide"


def columns() -> int | None:
    """How many characters fit into a line: those of the terminal on stdout, or COLUMNS. None: as many as there are."""
    if wide():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(1).columns or None
    except OSError:
        return None


def folded(text: str, indent: int) -> str:
    """A line that goes on below itself, `indent` spaces in, where the terminal is too narrow for it."""
    width = columns()
    if width is None or len(text) <= width:
        return text
    import textwrap

    room = max(width, indent + 20)
    lines = textwrap.wrap(text, room, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


class Aside(Protocol):
    """Draws on the terminal, and steps aside for output."""

    def passing(self, fd: int, data: bytes) -> None:
        """Writes it by `write_through`. Raises StdoutFailed."""


#: The one that draws at the moment.
_ASIDE: list[Aside] = []


def step_aside(line: Aside | None) -> None:
    """From now on all output goes through this; None: it is written as it is."""
    _ASIDE[:] = [line] if line is not None else []


#: Sequences that leave the cursor where it is, alone and behind the end of a line.
_HARMLESS = re.compile(rb"(?:\x1b\[[0-9;:?]*[mKJhl])*\Z")
_LINE_ENDED = re.compile(rb"\n(?:\x1b\[[0-9;:?]*[mKJhl])*\Z")
#: Whether the last line on the terminal of stderr has not ended.
_UNFINISHED = [False]
#: Who writes to that terminal; and for how many seconds a message waits for it.
_TURN, WAIT_S = threading.RLock(), 1.0


@functools.cache
def is_terminal_of_stderr(fd: int) -> bool:
    """Whether this is a terminal, and that of stderr."""
    try:
        return os.isatty(fd) and os.isatty(2) and os.fstat(fd).st_rdev == os.fstat(2).st_rdev
    except OSError:
        return False


def write(data: bytes, fd: int = 1) -> None:
    """Writes all of it to stdout (or stderr, 2), unbuffered. Raises StdoutFailed."""
    if not is_terminal_of_stderr(fd):
        _pass(data, fd)
        return
    with _in_turn(fd):
        if not _HARMLESS.match(data):
            _UNFINISHED[0] = not _LINE_ENDED.search(data, max(0, len(data) - 256))
        _pass(data, fd)


@contextlib.contextmanager
def _in_turn(fd: int) -> Iterator[None]:
    """Inside, nobody else writes to the terminal, so that `_UNFINISHED` is true of it. A message waits for a terminal
    that takes nothing for a second, and comes all the same."""
    held = _TURN.acquire(timeout=-1 if fd == 1 else WAIT_S)
    try:
        yield
    finally:
        if held:
            _TURN.release()


def _pass(data: bytes, fd: int) -> None:
    if _ASIDE:
        _ASIDE[0].passing(fd, data)
    else:
        write_through(data, fd)


def write_through(data: bytes, fd: int) -> None:
    """As `write`, past whatever is drawn on the terminal. Raises StdoutFailed."""
    name = "standard output" if fd == 1 else "standard error"
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another user of the pipe made it non-blocking
            select.select([], [fd], [])
        except BrokenPipeError:
            raise StdoutFailed(f"{name} is closed", Exit.PIPE_CLOSED) from None
        except OSError as error:
            raise StdoutFailed(f"{name}: {error.strerror}") from None


def emit(text: str) -> None:
    """Writes the output of a read-only command. Without a reader it exits quietly, as if by SIGPIPE."""
    _emit(text.encode("utf-8", "surrogateescape"))


def _emit(data: bytes) -> None:
    try:
        write(data)
    except StdoutFailed as failure:
        if failure.exit_code == Exit.PIPE_CLOSED:
            raise click.exceptions.Exit(failure.exit_code) from None
        raise


class _Stdout(io.RawIOBase):
    """What click prints (help, version) takes the way of all output, so that its errors are those of `emit`."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(1)

    def write(self, data: "ReadableBuffer") -> int:
        _emit(bytes(data))
        return memoryview(data).nbytes


def emit_json(value: Mapping[str, Any], *, line: bool = False) -> None:
    """Writes an object as JSON, indented; with `line` on one line. As YAML if asked for; with `line` a document."""
    if _chosen() == "yaml":
        emit(("---\n" if line else "") + _yaml(value))
        return
    import json  # only now: a table needs none

    emit(json.dumps(value, ensure_ascii=False, indent=None if line else 2) + "\n")


def emit_json_list(name: str, values: Iterable[Mapping[str, Any]]) -> None:
    """Writes an object with one list, indented; writes each value of the list as soon as it arrives."""
    if _chosen() == "yaml":
        begin = f"{name}:\n"
        for value in values:
            emit(begin + _yaml([value]))
            begin = ""
        emit(f"{name}: []\n" if begin else "")
        return
    import json

    begin = f'{{\n  "{name}": ['
    between = begin + "\n"
    for value in values:
        text = json.dumps(value, ensure_ascii=False, indent=2)
        emit(between + "\n".join(f"    {line}" for line in text.split("\n")))
        between = ",\n"
    emit(begin + "]\n}\n" if between.startswith(begin) else "\n  ]\n}\n")


def yaml_text(value: Mapping[str, Any]) -> str:
    """An object as YAML."""
    return _yaml(value)


def _yaml(value: object) -> str:
    import yaml

    # The one written in C, where it was built: a report has a hundred thousand numbers.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=2**31 - 1))


def as_dict(message: "Message") -> dict[str, Any]:
    """The JSON form of a message: the API's JSON names, RFC 3339 times, including zeros and empty lists."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, always_print_fields_with_no_presence=True)


def note(text: str) -> None:
    """Writes a line for people to stderr; on a terminal below what a program has written, not behind it."""
    try:
        data = f"muster: {clean(text)}\n".encode("utf-8", "replace")
        with _in_turn(2) if on_terminal() else contextlib.nullcontext():
            if _UNFINISHED[0]:
                data, _UNFINISHED[0] = b"\r\n" + data, False  # \r: the terminal may be raw
            if _ASIDE:
                _ASIDE[0].passing(2, data)
            else:
                os.write(2, data)
    except (OSError, StdoutFailed):
        pass  # stderr has no reader; the command continues


def note_failure(failure: CommandFailed) -> None:
    """Writes the message of a command that failed to stderr, each line as `note` does."""
    for line in failure.message.splitlines() or [""]:
        note(line)


def on_terminal() -> bool:
    """Whether to show progress: stderr is a terminal."""
    try:
        return os.isatty(2)
    except OSError:
        return False


def coloured() -> bool:
    """Whether to use colours: stdout is a terminal and NO_COLOR is not set (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and os.isatty(1)


def take_streams() -> None:
    """Opens /dev/null for each closed standard descriptor. Otherwise the next socket gets its number, and output for
    stdout goes into that socket. `sys.stdout` writes as `emit` does."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            if number == 2:
                sys.stderr = os.fdopen(null, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(_Stdout(), "utf-8", "surrogateescape", write_through=True)
