"""Says which links and paths of the documentation lead nowhere.

Every relative link of a page (`*.md`) names a file or folder, with an anchor a heading of it; the text of a link to a
page is words, not the name of a file. Every `docs/...` that a file names exists, and every path of code that a page
names. Prints a line for each that does not, and ends with 1.

Usage: python -m scripts.check_links [--titles]

--titles: puts the title of the page in the place of the name of a file. Pages that `make docs` writes have it from the
code that they are made of.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_PATH = re.compile(r"(?<![\w./-])docs/[\w./-]*\w")
#: A file or folder of code that a page names.
_CODE = re.compile(
    r"(?<![\w./-])(?:agent|supervisors|probes|proto|tests|scripts|benchmarks|examples)/[\w./-]*(?:\.py|\.toml|\.proto|/(?=`))"
)
#: A link to a page whose text is the name of a file.
_FILE_NAME = re.compile(r"\[`?[\w./-]+\.md`?\]\(([^)\s:]+\.md(?:#[\w-]+)?)\)")
#: What was true when it was written.
_PAST = ("CHANGELOG.md",)


def main() -> int:
    """Returns the exit code."""
    if sys.argv[1:] == ["--titles"]:
        for path in _files(ROOT):
            if path.suffix == ".md" and path.name not in _PAST:
                text = (ROOT / path).read_text(encoding="utf-8")
                (ROOT / path).write_text(with_titles(text, ROOT / path.parent), encoding="utf-8")
    dead = dead_links(ROOT)
    print("".join(f"{line}\n" for line in dead), end="", file=sys.stderr)
    return int(bool(dead))


def dead_links(root: Path) -> list[str]:
    """A sentence for each link or path of the files in this git checkout that leads nowhere."""
    return [line for path in _files(root) for line in _dead(root, path)]


def with_titles(text: str, folder: Path) -> str:
    """A page in this folder, with titles for texts of links."""

    def titled(link: re.Match[str]) -> str:
        return f"[{words_for(folder, link[1])}]({link[1]})"

    found, at = "", 0
    for fence in _FENCE.finditer(text):
        found += _FILE_NAME.sub(titled, text[at : fence.start()]) + fence[0]
        at = fence.end()
    return found + _FILE_NAME.sub(titled, text[at:])


def words_for(folder: Path, link: str) -> str:
    """The title of the page to which a link from this folder leads, and of its anchor the heading."""
    target, _, anchor = link.partition("#")
    page = Path(os.path.normpath(folder / target))
    title: str
    title, *headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    found = next((one for one in headings if anchor and _anchor(one) == anchor), "")
    heading = re.sub(r"[\[\]`]", "", found)
    small = heading[:1].lower() + heading[1:] if heading.partition(" ")[0][1:].islower() else heading
    return title.partition(": ")[0] + (f": {small}" if small else "")


def _files(root: Path) -> list[Path]:
    """As git has them, those that are not yet added too; a link to a folder is not looked into twice."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return sorted(path for path in map(Path, listed.stdout.split("\0")) if _is_text(root / path))


def _is_text(path: Path) -> bool:
    return path.suffix in (".md", ".py", ".toml", ".proto", ".yml", ".json", ".sh") and path.is_file()


def _dead(root: Path, path: Path) -> Iterator[str]:
    text = (root / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        for link in _LINK.findall(_FENCE.sub("", text)):
            target, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            found = os.path.normpath(path.parent / target) if target else str(path)
            if not (root / found).exists():
                yield f"{path}: the link {link} leads nowhere"
            elif anchor and found.endswith(".md") and anchor not in _anchors(root / found):
                yield f"{path}: the link {link} names no heading of {found}"
    if path.name not in _PAST and path.suffix == ".md":
        for name in _FILE_NAME.finditer(_FENCE.sub("", text)):
            words = (
                words_for(root / path.parent, name[1])
                if (root / path.parent / name[1].partition("#")[0]).exists()
                else "words"
            )
            yield f"{path}: the text of {name[0]} is the name of a file: write {words!r} (--titles does)"
    if path.name not in _PAST:
        code = _CODE.findall(text) if path.suffix == ".md" else []
        for named in sorted({*_PATH.findall(text), *code}):
            if not (root / named).exists():
                yield f"{path}: there is no {named}"


def _anchor(heading: str) -> str:
    bare = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", bare.lower()).replace(" ", "-")


@cache
def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab make them."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        anchor = _anchor(heading)
        number = found.get(anchor, 0)
        found[anchor] = number + 1
        if number:
            found[f"{anchor}-{number}"] = 1
    return set(found)


if __name__ == "__main__":
    sys.exit(main())
