"""The code blocks of a page, and what its author says about running them.

A block of `console` is a session: behind each `$ ` a command, below it all that the command prints. A block of `sh` is
a script, and a block of `text` right below it is all that the script prints. Blocks in other languages are not run, nor
is the text of a script file, which begins with `#!`.
Comments, which only the source shows, direct the test:

    <!-- not run: REASON -->    above a block: it cannot run here
    <!-- first: COMMANDS -->    above a block: runs these before, in the same shell
    <!-- may fail: REASON -->   above a script without output: its exit codes depend on the machine
    <!-- page: no daemon -->    anywhere: the page starts its own daemon, or needs none
    <!-- page: eight cards -->  anywhere: the daemon and the shell have eight fake cards, in ~/cards
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SESSION, SCRIPT, OUTPUT = "console", "sh", "text"
RUN = (SESSION, SCRIPT)
NO_DAEMON, CARDS = "no daemon", "eight cards"

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})(\S*)")
_COMMENT = re.compile(r"<!-- *(not run|first|may fail|page): *(.*?) *-->", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """What is typed, and what is printed then; None: the page does not show it."""

    line: int
    text: str
    shown: list[str] | None


@dataclass(frozen=True)
class Block:
    """A block of commands."""

    line: int
    language: str
    #: Of a session: several; of a script: one.
    commands: list[Command]
    #: Commands that run before it, and are not shown.
    first: str = ""
    #: Why it is not run; empty: it is.
    not_run: str = ""
    #: Why its exit codes say nothing.
    may_fail: str = ""


@dataclass(frozen=True)
class DocPage:
    path: Path
    blocks: list[Block]
    #: Whether a daemon runs before its first block, and whether it has cards.
    daemon: bool
    cards: bool
    #: What is wrong with the page itself.
    faults: list[str]


@dataclass
class _Fenced:
    line: int
    language: str
    lines: list[str]
    #: The text between the block before and this one.
    before: str


def read(path: Path) -> DocPage:
    """The page, with the faults of its form."""
    text = path.read_text(encoding="utf-8")
    faults: list[str] = []
    fenced = list(_fenced(text, faults))
    blocks: list[Block] = []
    for number, block in enumerate(fenced):
        following = fenced[number + 1] if number + 1 < len(fenced) else None
        comments = {kind: said for kind, said in _COMMENT.findall(block.before) if kind != "page"}
        if not block.language:
            faults.append(f"line {block.line}: this block has no language: write sh, console, text, toml, ...")
        if block.language not in RUN:
            if comments:
                faults.append(f"line {block.line}: a comment for the test stands above a block that is not run")
            continue
        shown = None
        if block.language == SCRIPT and following and following.language == OUTPUT and not following.before.strip():
            shown = following.lines
        commands = (
            list(_session(block, faults))
            if block.language == SESSION
            else [Command(block.line + 1, "\n".join(block.lines), shown)]
        )
        not_run = comments.get("not run", "")
        if block.lines and block.lines[0].startswith("#!"):
            not_run = "the text of a script file"
        first, may_fail = comments.get("first", ""), comments.get("may fail", "")
        blocks.append(Block(block.line, block.language, commands, first, not_run, may_fail))
    whole = {said for kind, said in _COMMENT.findall(text) if kind == "page"}
    faults += [f"this comment is unknown: page: {said}" for said in sorted(whole - {NO_DAEMON, CARDS})]
    return DocPage(path, blocks, NO_DAEMON not in whole, CARDS in whole, faults)


def _fenced(text: str, faults: list[str]) -> Iterator[_Fenced]:
    """The fenced blocks. An indented one is a fault: nobody can tell commands from their output in it."""
    open_block: _Fenced | None = None
    fence, indent, before, blank = "", 0, "", True
    in_list = in_comment = in_code = False
    for number, line in enumerate(text.split("\n"), 1):
        match = _FENCE.match(line)
        if open_block is not None:
            if match and match[2] == fence and not match[3]:
                yield open_block
                open_block, before = None, ""
            else:
                open_block.lines.append(line[indent:] if not line[:indent].strip() else line)
            continue
        if match and not in_comment:
            indent, fence = len(match[1]), match[2]
            open_block = _Fenced(number, match[3], [], before)
            in_code = blank = False
            continue
        before += f"{line}\n"
        in_comment = ("<!--" in line or in_comment) and "-->" not in line
        if re.match(r"^ *([-*+]|\d+[.)]) ", line):
            in_list = True
        elif line.strip() and not line.startswith(" "):
            in_list = False
        if line.startswith("    ") and blank and not in_list and not in_comment and line.strip():
            if not in_code:
                faults.append(f"line {number}: an indented block: fence it with ``` and a language")
            in_code = True
        elif line.strip():
            in_code = False
        blank = not line.strip() or in_code
    if open_block is not None:
        faults.append(f"line {open_block.line}: this block has no end")


def _session(block: _Fenced, faults: list[str]) -> Iterator[Command]:
    """The commands of a session; a line that ends with a backslash, or an open quote, goes on below."""
    command: list[str] = []
    at, shown = 0, list[str]()
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            if command:
                yield Command(at, "\n".join(command), shown)
            command, at, shown = [line[2:]], number, []
        elif not command:
            faults.append(f"line {number}: a session begins with a command behind `$ `")
            return
        elif not shown and (command[-1].endswith("\\") or line.startswith("> ")):
            command.append(line.removeprefix("> "))
        else:
            shown.append(line)
    if command:
        yield Command(at, "\n".join(command), shown)
