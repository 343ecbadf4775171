"""The build of the running muster, read once at the start: pip may replace the files later."""

from pathlib import Path

from muster.agent import __version__


def _build(package: Path) -> str:
    """What `hatch_build.py` wrote into the package; in a tree of sources what is known, and that it may be changed."""
    try:
        build = (package / "build.txt").read_text().strip()
    except OSError:
        build = _head(package.parent / ".git")
    if not (package.parent / "pyproject.toml").exists():
        return build or "unknown"
    return f"{build}, editable" if build else "editable"


def _head(git: Path) -> str:
    """The commit that a checkout is at, without `git`: the daemon runs no programs. Empty where that is not known."""
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:9]
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text()[:9]
        packed = (git / "packed-refs").read_text().splitlines()
        return next((line[:9] for line in packed if line.endswith(f" {name}")), "")
    except OSError:
        return ""


#: "a1c6abd12 of 2026-05-03", with ", changed" where the tree was not as committed; "source of 2026-05-03" where nobody
#: could tell the commit; with ", editable" in a tree of sources.
BUILD = _build(Path(__file__).resolve().parents[1])
#: As people read it.
FULL = f"{__version__} ({BUILD})"
