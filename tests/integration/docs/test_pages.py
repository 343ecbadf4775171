"""The commands of the pages do what the pages show: each page in a home folder of its own, with a daemon of its own."""

from pathlib import Path

import pytest

from scripts.documentation import pages
from scripts.documentation.try_pages import every_page, tried
from tests.conftest import alive

ROOT = Path(__file__).parents[3]
#: Tried by `make test`; the others by CI and `make docs-test`: they wait, as a reader does, for jobs of some seconds.
QUICK = {"README.md", "docs/guides/exec.md", "docs/guides/fake-cards.md"}
RUN = [path for path in every_page() if any(not block.not_run for block in pages.read(path).blocks)]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=name, marks=[pytest.mark.slow] * (name not in QUICK))
        for path in RUN
        for name in [str(path.relative_to(ROOT))]
    ],
)
def test_commands_print_what_their_page_shows(path: Path) -> None:
    result = tried(path)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.ran


def test_every_block_of_every_page_says_what_it_is() -> None:
    """A block is run, or says why not; none is indented, where commands and output look alike."""
    faults = {str(path.relative_to(ROOT)): pages.read(path).faults for path in every_page()}
    assert {name: found for name, found in faults.items() if found} == {}


def wrong(folder: Path, text: str) -> list[str]:
    path = folder / "page.md"
    path.write_text(f"<!-- page: no daemon -->\n{text}")
    return tried(path).wrong


def test_a_page_that_shows_something_else_is_wrong(tmp_path: Path) -> None:
    (said,) = wrong(tmp_path, "```console\n$ echo one; (exit 3)\none\n$ echo $?\n4\n$ pwd\n/home/me/muster\n```\n")
    assert "echo $?" in said and "not printed: 4" in said and "| 3" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```sh\ntrue\nfalse\ntrue\n```\n", "line:code 2:1"),
        ("<!-- first: no-such-command -->\n```sh\ntrue\n```\n", "no-such-command: command not found"),
        ("<!-- may fail: here -->\n```sh\nno-such-command\n```\n", "command not found"),
        ("```sh\nexit 3\n```\n", "the shell has ended"),
        ("```sh\ntrue\n", "has no end"),
    ],
)
def test_commands_that_fail_make_their_page_wrong(tmp_path: Path, text: str, said: str) -> None:
    (found,) = wrong(tmp_path, text)
    assert said in found


def test_variables_folders_and_processes_go_on_and_nothing_is_left(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"```sh\ncd ~; NAME=value; setsid sleep 1000 & echo $! > {mark}\n```\n"
    text = f"{script}\n```console\n$ echo $NAME $PWD\nvalue /home/me\n```\n"
    assert wrong(tmp_path, text) == []
    assert not alive(int(mark.read_text()))
