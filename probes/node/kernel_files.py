"""Small files of the kernel, which come and go: what cannot be read is empty."""

from pathlib import Path


def text(file: Path) -> str:
    """Its content without white space around it."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def listed(folder: Path) -> list[Path]:
    """What is in it, by name."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def number(word: str) -> int:
    """0 where it is none, as "max" in a cgroup's limit."""
    return int(word) if word.isascii() and word.isdigit() else 0
