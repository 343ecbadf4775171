"""What a page may show for what is printed, and which blocks of a page are run."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from muster.agent.cli.main import cli
from scripts.documentation import pages, sandbox
from scripts.documentation.comparison import differs
from scripts.documentation.try_pages import every_page


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a: FAILED at 12:49:51", "a: FAILED at 03:00:00"),
        ("the ranks ran for 0.46s", "the ranks ran for 1m12s"),
        ("rank 2 (pid 16272) exited", "rank 2 (pid 12) exited"),
        ("size 251.9 GB, 29.9 % free", "size 1.0 TB, 3 % free"),
        ("2026-11-21T07:57:28.901 [muster] x", "2030-01-02T00:00:00.000 [muster] x"),
        ("card 0  ████▁▁  100", "card 0  ▁  100"),
        ("A  B", "A      B"),
        ("loss ... (...)", "loss 1.5 (2 ms)"),
        ("first\n...\nlast", "first\nlast"),
        ("first\n...\nlast", "first\n1\n2\nlast"),
        ("...\nb\n...\nd", "a\nb\nc\nb\nd"),
        ("[rank 0] a\n[rank 1] b", "[rank 1] b\n[rank 0] a"),
        ("x", "x\n\n"),
    ],
)
def test_what_may_differ(shown: str, printed: str) -> None:
    assert differs(shown.split("\n"), printed.split("\n")) == ""


@pytest.mark.parametrize(
    ("shown", "printed", "said"),
    [
        ("exit code 1", "exit code 2", "not printed: exit code 1"),
        ("rank 2 failed", "rank 3 failed", "not printed: rank 2 failed"),
        ("a", "a\nb", "also printed: b"),
        ("a\n...\nc", "a\nb", "not printed: c"),
        ("a\nb", "b\na", "not printed: a"),
        ("[rank 0] a\n[rank 0] b", "[rank 0] b\n[rank 0] a", "not printed: [rank 0] a"),
        ("a.c", "abc", "not printed: a.c"),
        ("  indented", "indented", "not printed:   indented"),
        ("FAILED at 12:49:51", "FAILED at noon", "not printed: FAILED at 12:49:51"),
    ],
)
def test_what_may_not_differ(shown: str, printed: str, said: str) -> None:
    assert differs(shown.split("\n"), printed.split("\n")) == said


def page(folder: Path, text: str) -> pages.DocPage:
    path = folder / "page.md"
    path.write_text(text)
    return pages.read(path)


def test_a_session_a_script_and_its_output(tmp_path: Path) -> None:
    session_text = "```console\n$ a \\\n  b\none\n$ c\n```\n"
    script_text = "\n```sh\nd\ne\n```\n\n```text\ntwo\n```\n\n```text\nnot its output\n```\n"
    found = page(tmp_path, session_text + script_text)
    assert found.faults == [] and found.daemon and not found.cards
    session, script = found.blocks
    assert [(command.line, command.text, command.shown) for command in session.commands] == [
        (2, "a \\\n  b", ["one"]),
        (5, "c", []),
    ]
    assert [(command.text, command.shown) for command in script.commands] == [("d\ne", ["two"])]


def test_output_behind_words_is_not_the_scripts(tmp_path: Path) -> None:
    (script,) = page(tmp_path, "```sh\na\n```\n\nThe page looks so:\n\n```text\nx\n```\n").blocks
    assert script.commands[0].shown is None


def test_comments_direct_the_test(tmp_path: Path) -> None:
    text = (
        "<!-- page: no daemon -->\n<!-- not run: needs a GPU -->\n```sh\na\n```\n\n"
        "<!-- first: b\nc -->\n```sh\nd\n```\n\n```sh\n#!/bin/sh\nexit 1\n```\n"
    )
    found = page(tmp_path, text)
    assert not found.daemon and found.faults == []
    assert [(block.not_run, block.first) for block in found.blocks] == [
        ("needs a GPU", ""),
        ("", "b\nc"),
        ("the text of a script file", ""),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Words:\n\n    muster ps\n", "line 3: an indented block: fence it with ``` and a language"),
        ("```\na\n```\n", "line 1: this block has no language: write sh, console, text, toml, ..."),
        ("```console\nmuster ps\n```\n", "line 2: a session begins with a command behind `$ `"),
        ("```sh\na\n", "line 1: this block has no end"),
        (
            "<!-- not run: x -->\n```toml\na = 1\n```\n",
            "line 2: a comment for the test stands above a block that is not run",
        ),
        ("<!-- page: no deamon -->\n", "this comment is unknown: page: no deamon"),
    ],
)
def test_faults_of_a_page(tmp_path: Path, text: str, fault: str) -> None:
    assert fault in page(tmp_path, text).faults


def test_a_list_goes_on_indented(tmp_path: Path) -> None:
    assert page(tmp_path, "- a\n\n    still a\n\n  ```toml\n  b = 1\n  ```\n").faults == []


def refused(words: Sequence[str]) -> str:
    """What `muster WORDS` says of a command or an option that it does not have."""
    command: click.Command = cli
    context, left = click.Context(cli), list(words)
    try:
        while isinstance(command, click.Group):
            if command.name == "check" and left[:1] not in [[one] for one in command.list_commands(context)]:
                left.insert(0, "run")  # the words are names of checks
            _, left, _ = command.make_parser(context).parse_args(left)
            if not left or "--help" in words:
                return ""
            name, found, left = command.resolve_command(context, left)
            assert found is not None
            command, context = found, click.Context(found, parent=context, info_name=name)
        # Behind the first word that is no option of `run` come the words of the job.
        context.allow_interspersed_args = command.name not in ("run", "start", "exec")
        command.make_parser(context).parse_args(left)
    except click.BadOptionUsage:
        return ""  # a name of an option, without its value
    except click.UsageError as error:
        return error.message
    return ""


def shown_only() -> Iterator[tuple[str, str]]:
    """Commands that the pages' own test does not run: of blocks, and within sentences."""
    for path in every_page():
        for block in pages.read(path).blocks:
            for command in block.commands if block.not_run else ():
                lines = command.text.replace("\\\n", " ").splitlines()
                yield from ((path.name, line) for line in lines if line.startswith("muster "))
        text = re.sub(r"(?ms)^ *(```|~~~).*?^ *\1", "", path.read_text(encoding="utf-8"))
        yield from ((path.name, found) for found in re.findall(r"(?<!`)`(muster [^`\n]+)`", text))


def test_what_the_pages_show_and_do_not_run_is_a_command_of_muster() -> None:
    wrong, count = [], 0
    for page, line in shown_only():
        words = re.split(r" [|&;>#]", line)[0]
        if re.search(r"[\[\]…]|\.\.\.|COMMAND|\|", words):
            continue  # a form, not a command
        count += 1
        if said := refused(shlex.split(words)[1:]):
            wrong.append(f"{page}: {line}: {said}")
    assert wrong == [] and count > 300
    assert "--no-such" in refused(["run", "--no-such", "--", "true"]) and "nothing" in refused(["nothing"])


def test_each_page_calls_its_training_job_by_another_id() -> None:
    """Of the same id it would go on from the checkpoint of the page that was followed before, and not fail."""
    found: dict[str, set[str]] = {}
    for path in every_page():
        for job in re.findall(r"--job-id (\S+)[^\n]*examples/train\.py", path.read_text(encoding="utf-8")):
            found.setdefault(job, set()).add(path.name)
    assert len(found) >= 3 and [job for job, on in found.items() if len(on) > 1] == []


def test_each_picture_is_shown_on_a_page() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in every_page())
    pictures = [path.name for path in (sandbox.CHECKOUT / "docs/pictures").iterdir()]
    assert len(pictures) >= 5 and [name for name in pictures if f"pictures/{name})" not in texts] == []


def test_what_somebody_left_in_the_checkout_is_not_in_the_home_folder_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("examples", "checkpoints", "docs"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sandbox, "CHECKOUT", tmp_path)
    with sandbox.Sandbox() as made:
        assert {path.name for path in made.work.iterdir()} == {"examples", "docs"}


def test_what_the_shell_says_of_a_killed_program_is_not_the_output_of_a_block() -> None:
    """The page would be wrong or right by the moment at which the shell notices."""
    with sandbox.Sandbox() as made, sandbox.Shell(made) as shell:
        printed, _ = shell.run("sleep 1000 & pid=$!\nkill -9 $pid; wait $pid; echo code $?")
        assert printed == "code 137\n"
