"""Says which links and paths of the documentation lead nowhere.

Every relative link of a page (`*.md`) names a file or folder, with an anchor a heading of it. Every `docs/...` that a
file names exists, and every path of code that a page names. Prints a line for each that does not, and ends with 1.

Usage: python -m scripts.check_links
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
#: What was true when it was written.
_PAST = ("CHANGELOG.md",)


def main() -> int:
    """Returns the exit code."""
    dead = dead_links(ROOT)
    print("".join(f"{line}\n" for line in dead), end="", file=sys.stderr)
    return int(bool(dead))


def dead_links(root: Path) -> list[str]:
    """A sentence for each link or path of the files in this git checkout that leads nowhere."""
    # As git has them, those that are not yet added too; a link to a folder is not looked into twice.
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    files = sorted(path for path in map(Path, listed.stdout.split("\0")) if _is_text(root / path))
    return [line for path in files for line in _dead(root, path)]


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
    if path.name not in _PAST:
        code = _CODE.findall(text) if path.suffix == ".md" else []
        for named in sorted({*_PATH.findall(text), *code}):
            if not (root / named).exists():
                yield f"{path}: there is no {named}"


@cache
def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab make them."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        bare = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", bare.lower()).replace(" ", "-")
        number = found.get(anchor, 0)
        found[anchor] = number + 1
        if number:
            found[f"{anchor}-{number}"] = 1
    return set(found)


if __name__ == "__main__":
    sys.exit(main())
