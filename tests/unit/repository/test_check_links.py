import subprocess
from pathlib import Path

import pytest

from scripts.check_links import dead_links, with_titles

#: Put together, so that this file does not name it.
ABSENT = "/".join(("docs", "none.md"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/a.md").write_text("# Page A\n\n## The `[table]` of it\n\n## Twice\n\n## Twice\n")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "[a](pages/a.md) [b](pages) [c](#here)\n\n# Here\n",
        "[a](pages/a.md#page-a) [b](pages/a.md#the-table-of-it) [c](pages/a.md#twice-1)",
        "[a](https://example.com/none.md)",
        "```sh\n# [a](none.md)\n```\n",
    ],
)
def test_links_that_lead_somewhere(checkout: Path, text: str) -> None:
    (checkout / "README.md").write_text(text)
    assert dead_links(checkout) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("README.md", "[a](pages/none.md)", "README.md: the link pages/none.md leads nowhere"),
        ("README.md", "[a](pages/a.md#none)", "README.md: the link pages/a.md#none names no heading of pages/a.md"),
        ("README.md", "[a](#none)", "README.md: the link #none names no heading of README.md"),
        (
            "README.md",
            "[a.md](pages/a.md#the-table-of-it)",
            "README.md: the text of [a.md](pages/a.md#the-table-of-it) is the name of a file: "
            "write 'Page A: the table of it' (--titles does)",
        ),
        ("README.md", "The rule is in `agent/none.py`.", "README.md: there is no agent/none.py"),
        ("README.md", "The room `agent/none/`.", "README.md: there is no agent/none/"),
        ("x.py", f"#: {ABSENT} has it.", f"x.py: there is no {ABSENT}"),
    ],
)
def test_links_that_lead_nowhere(checkout: Path, name: str, text: str, said: str) -> None:
    (checkout / name).write_text(text)
    assert said in dead_links(checkout)


def test_titles_replace_names_of_files_as_texts_of_links(checkout: Path) -> None:
    fence = "```sh\n[a.md](pages/a.md)\n```\n"
    text = f"[`a.md`](pages/a.md), [pages/a.md](pages/a.md#twice)\n\n{fence}\n[words](pages/a.md) [c](x.py)\n"
    assert with_titles(text, checkout) == (
        f"[Page A](pages/a.md), [Page A: twice](pages/a.md#twice)\n\n{fence}\n[words](pages/a.md) [c](x.py)\n"
    )
