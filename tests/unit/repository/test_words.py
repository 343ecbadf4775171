"""Pages, and the words of the code, are the field's: none of those that the glossary replaces."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

REPLACED = {
    r"heed(s|ed|ing)?": "handle, honour",
    r"bears?|bore|born|births?": "spawn, have",
    r"wards?": "job under supervision",
    r"midwi(fe|ves)": "process builder",
    r"rotas?": "schedule",
    r"crews?": "thread pool",
    r"beats": "heartbeat, period",
    r"for want of": "out of memory, without",
    r"such an? one": "the noun",
    r"nobody can tell": "is unknown",
    r"must have gone": "has exited",
    r"whom?ever": "the noun",
    r"(is|are)\s+(told|said)": "the driver reports, muster prints",
}

EXCEPTIONS = {
    # It lists the words to avoid.
    "docs/contributing/glossary.md",
}

# Scripts write these pages from the code and the .proto files: their words have their home there.
# Of the reference, only the pages of rank tables and of files are written by hand.
HAND_WRITTEN_REFERENCE = {"docs/reference/rank-tables.md", "docs/reference/files.md"}


def hand_written_pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = sorted(str(page.relative_to(ROOT)) for page in found)
    return [
        name
        for name in names
        if name not in EXCEPTIONS and (not name.startswith("docs/reference/") or name in HAND_WRITTEN_REFERENCE)
    ]


def prose(text: str) -> str:
    """The text without what it quotes from a terminal or from code, with its line numbers kept."""
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"^ {4}.*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`", "", text)


@pytest.mark.parametrize("page", hand_written_pages())
def test_a_page_has_no_replaced_word(page: str) -> None:
    found = [
        f"{page}:{number}: {match[0]!r}: write {instead}"
        for number, line in enumerate(prose((ROOT / page).read_text()).splitlines(), 1)
        for pattern, instead in REPLACED.items()
        for match in re.finditer(rf"\b({pattern})\b", line, re.I)
    ]
    assert not found, "\n".join(found)


# --- code -----------------------------------------------------------------------------------------------------------

ROOMS = ["supervisors", "probes", "proto/muster/client", "proto/muster/torchx"]
ROOMS += sorted({f"agent/{path.parent.name}" for path in (ROOT / "agent").glob("*/__init__.py")})
#: The column of the history's database, which stays as it is.
OLD_NAMES = {"agent/telemetry/history": "born"}


def words_of_code(path: Path) -> list[tuple[int, str]]:
    """Comments and strings (docstrings and messages), with the number of their first line."""
    kinds = (tokenize.COMMENT, tokenize.STRING)
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [(token.start[0], re.sub(r"`[^`]*`", "", token.string)) for token in tokens if token.type in kinds]


@pytest.mark.parametrize("room", [*ROOMS, "agent"])
def test_code_has_no_replaced_word(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: write {instead}"
        for path in sorted((ROOT / room).glob("*.py" if room == "agent" else "**/*.py"))
        for line, text in words_of_code(path)
        for pattern, instead in REPLACED.items()
        for match in re.finditer(rf"\b({pattern})\b", text, re.I)
        if match[0] != OLD_NAMES.get(str(path.parent.relative_to(ROOT)))
    ]
    assert not found, "\n".join(found)


def test_names_of_tests_have_no_replaced_word() -> None:
    names = [
        (path, node.name)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    found = [
        f"{path.relative_to(ROOT)}: {name}: {match[0]!r}: write {instead}"
        for path, name in names
        for pattern, instead in REPLACED.items()
        for match in re.finditer(rf"\b({pattern})\b", name.replace("_", " "))
    ]
    assert len(names) > 1000 and not found, "\n".join(found)
