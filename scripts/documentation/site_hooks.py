"""Hooks of MkDocs (mkdocs.yml): the navigation, links that lead out of docs/, and a defect of the search.

docs/README.md is the one list of pages: its headings and tables are the navigation. Pages link to files of the
repository outside of docs/ (a script, a unit, ARCHITECTURE.md); the site has these below `repository/`, so that every
link works from a folder without a network.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: Where the site has what is not in docs/.
OUTSIDE = "repository"
#: The page of a folder.
_INDEX = "README.md"

_FENCE = re.compile(r"(^ *(?:```|~~~).*?^ *(?:```|~~~)\s*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]+`")
#: In the script of the search: the name of a state of its automaton of words, which is a character and the number of
#: the next state, for each character. Without a mark between them, a1 and 23 read as a12 and 3: where words have digits
#: (node1, node12), two states became one, and the search for `node` found nothing.
_STATE_NAME, _MARKED_STATE_NAME = "e=e+s+o.id}return e}", 'e=e+s+o.id+","}return e}'
#: Code with a word that may break in a cell of a table.
_LONG = re.compile(r"<code>(?=[^<]*[^<\s]{20})")


def _root(config: MkDocsConfig) -> Path:
    """The repository."""
    return Path(config.docs_dir).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, from the list of pages."""
    found: list[Any] = [_INDEX, {"Get started": "get-started.md"}]
    listed = {_INDEX, "get-started.md"}
    section: list[Any] = []
    pages: list[Any] = []
    for line in (Path(config.docs_dir) / _INDEX).read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"##(#?) (.+)", line):
            pages = []
            (section if heading[1] else found).append({heading[2]: pages})
            section = section if heading[1] else pages
            continue
        for target in _targets(_root(config), "docs", line):
            name = _in_site(_root(config), target)
            if name.endswith(".md") and name not in listed:
                listed.add(name)
                pages.append(name)
    config.nav = [entry for entry in found if isinstance(entry, str) or all(entry.values())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what the pages name outside of docs/, and what those pages name in turn."""
    root = _root(config)
    due = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    while due:
        page = due.pop()
        if not (root / page).is_file():
            continue
        for target in _targets(root, posixpath.dirname(page), (root / page).read_text(encoding="utf-8")):
            name = _in_site(root, target)
            if name.startswith(f"{OUTSIDE}/") and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, content=_content(root, target)))
                if name.endswith(".md"):
                    due.append(name.removeprefix(f"{OUTSIDE}/"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links that lead out of docs/, and those of pages from there, to their place in the site. In code a table's
    `\\|` is a bar: GitHub needs the backslash, MkDocs shows it."""
    root, here = _root(config), page.file.src_uri
    source = here.removeprefix(f"{OUTSIDE}/") if here.startswith(f"{OUTSIDE}/") else f"docs/{here}"

    def moved(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[1].partition("#")
        there = _in_repository(posixpath.dirname(source), target)
        if not target or _is_foreign(target) or not (root / there).exists():
            return match[0]
        link = posixpath.relpath(_in_site(root, there), posixpath.dirname(here) or ".")
        return f"]({link}{hash_sign}{anchor})"

    def mended(text: str) -> str:
        return _CODE.sub(lambda match: match[0].replace("\\|", "|"), _LINK.sub(moved, text))

    return "".join(part if number % 2 else mended(part) for number, part in enumerate(_FENCE.split(markdown)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Marks code with long words, for site.css."""
    return _LONG.sub('<code class="long">', html)


def on_post_build(config: MkDocsConfig) -> None:
    """Mends the script of the search. Raises ValueError where it is another one than this was written for."""
    (script,) = Path(config.site_dir).glob("assets/javascripts/workers/search.*.min.js")
    text = script.read_text(encoding="utf-8")
    if text.count(_STATE_NAME) != 1:
        raise ValueError(f"{script}: lacks {_STATE_NAME!r}: see whether its search finds `node`, and adapt {__file__}")
    script.write_text(text.replace(_STATE_NAME, _MARKED_STATE_NAME), encoding="utf-8")


def _targets(root: Path, folder: str, text: str) -> Iterator[str]:
    """The files and folders of the repository that the links of a page in this folder name."""
    for link in _LINK.findall(_FENCE.sub("", text)):
        target = link.partition("#")[0]
        there = _in_repository(folder, target)
        if target and not _is_foreign(target) and not there.startswith("..") and (root / there).exists():
            yield there


def _is_foreign(link: str) -> bool:
    return "://" in link or link.startswith("mailto:")


def _in_repository(folder: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(folder, target))


def _in_site(root: Path, path: str) -> str:
    """Where the site has a file of the repository."""
    if (root / path).is_dir():
        path = posixpath.join(path, _INDEX)
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{OUTSIDE}/{path}"


def _content(root: Path, target: str) -> str | bytes:
    """Of a folder its README, or a list of its files."""
    path = root / target
    if path.is_dir() and (path / _INDEX).exists():
        path /= _INDEX
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
        return f"# {target}/\n\nThe files of this folder: {', '.join(f'`{name}`' for name in names)}.\n"
    return path.read_text(encoding="utf-8") if path.suffix == ".md" else path.read_bytes()
