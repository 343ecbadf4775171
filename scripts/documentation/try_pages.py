"""Runs the shell commands of the pages, and compares what they print with what the pages show.

Usage: python -m scripts.documentation.try_pages [-j N] [--list] [PAGE...]

Each page runs in a home folder of its own, with a daemon of its own (`sandbox.py`); `pages.py` says how a page is
written for that, `comparison.py` what may differ. Ends with 1 where a page is wrong.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from scripts.documentation import comparison, pages
from scripts.documentation.pages import SCRIPT, Block, DocPage
from scripts.documentation.sandbox import CHECKOUT, NotEndedError, Sandbox, Shell

#: Pages that are history, or show no command.
_OTHERS = ("CHANGELOG.md",)
#: What a command says that is wrong on each machine.
_MISUSED = re.compile(r"Usage: |[Nn]o such (?:option|command)|command not found|Traceback")


@dataclass
class Tried:
    """What came of a page."""

    page: DocPage
    ran: int = 0
    skipped: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def every_page(root: Path = CHECKOUT) -> list[Path]:
    """README, the documentation, and the pages beside examples and units."""
    found = [
        *root.glob("*.md"),
        *(path for top in ("docs", "examples", "systemd") for path in (root / top).rglob("*.md")),
    ]
    return sorted(path for path in found if path.name not in _OTHERS)


def tried(path: Path, only_list: bool = False) -> Tried:
    """Runs a page."""
    page = pages.read(path)
    result = Tried(page, wrong=list(page.faults))
    due = [block for block in page.blocks if not block.not_run]
    result.skipped = [f"line {block.line}: {block.not_run}" for block in page.blocks if block.not_run]
    began = time.monotonic()
    if due and not only_list:
        with Sandbox() as sandbox:
            try:
                if page.cards:
                    sandbox.add_cards()
                if page.daemon:
                    sandbox.start_daemon()
                with Shell(sandbox) as shell:
                    for block in due:
                        result.wrong += _run(shell, block)
                        result.ran += 1
            except NotEndedError as error:
                result.wrong.append(f"after {result.ran} blocks: {error}")
    elif only_list:
        result.ran = len(due)
    result.seconds = time.monotonic() - began
    return result


def _run(shell: Shell, block: Block) -> Iterator[str]:
    """Runs a block, and says what is wrong."""
    if block.first:
        printed, failed = shell.run(block.first)
        if failed:
            yield f"line {block.line}: what runs before it fails ({failed}):\n{printed}"
    for command in block.commands:
        printed, failed = shell.run(command.text)
        if command.shown is not None:
            if differs := comparison.differs(command.shown, printed.splitlines()):
                typed = command.text.splitlines()[0]
                yield f"line {command.line}: {typed}\n  {differs}\n  it printed:\n{_indented(printed)}"
        elif block.may_fail and (misused := _MISUSED.search(printed)):
            yield f"line {command.line}: {misused[0]}:\n{_indented(printed)}"
        elif failed and block.language == SCRIPT and not block.may_fail:
            shows = "commands fail, and the page does not show it"
            yield f"line {command.line}: {shows} (line:code {failed}):\n{_indented(printed)}"


def _indented(text: str) -> str:
    return "".join(f"    | {line}\n" for line in text.splitlines()).rstrip()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.documentation.try_pages", description="Run the pages' commands."
    )
    parser.add_argument("-j", type=int, default=2, metavar="N", help="pages at the same time")
    parser.add_argument("--list", action="store_true", help="run nothing; list what would not run, and why")
    parser.add_argument("page", nargs="*", type=Path, help="these pages alone")
    args = parser.parse_args(argv)
    found = [path.resolve() for path in args.page] or every_page()
    began = time.monotonic()
    with ThreadPoolExecutor(args.j) as pool:
        results = list(pool.map(lambda path: tried(path, args.list), found))
    for result in results:
        name = result.page.path.relative_to(CHECKOUT)
        if result.ran or result.skipped or result.wrong:
            print(f"{name}: {result.ran} blocks run, {len(result.skipped)} not, {result.seconds:.1f}s")
        for line in result.skipped:
            print(f"  not run: {line}")
        for line in result.wrong:
            print(f"  WRONG: {line}")
    ran, skipped = sum(result.ran for result in results), sum(len(result.skipped) for result in results)
    wrong = [result for result in results if result.wrong]
    print(
        f"{len(results)} pages: {ran} blocks {'to run' if args.list else 'run'}, {skipped} not run, "
        f"{len(wrong)} pages wrong, {time.monotonic() - began:.0f}s"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
