"""The report in a format, and as a file: the whole file or, if it cannot be written, none."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from muster.agent.report import html_page, markdown
from muster.agent.report.job_report import JobReport

HTML, MARKDOWN, JSON = "html", "md", "json"
#: Formats by the suffix of a file.
SUFFIXES = {".html": HTML, ".htm": HTML, ".md": MARKDOWN, ".markdown": MARKDOWN, ".json": JSON}


def text(report: JobReport, form: str) -> str:
    """The report in this format."""
    if form == HTML:
        return html_page.page(report)
    if form == MARKDOWN:
        return markdown.page(report)
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def built(report: msgspec.Struct) -> dict[str, Any]:
    """As the object that its JSON is."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    return found


def is_special(path: Path) -> bool:
    """Whether it is a pipe, a terminal or such, which is written to and not replaced."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def write(path: Path, data: str, mode: int) -> None:
    """Replaces the file (of a link, the file that it leads to). Blocks. Raises OSError, and leaves nothing behind."""
    encoded = data.encode("utf-8", "replace")
    if is_special(path):
        with path.open("wb") as file:
            file.write(encoded)
    else:
        try:
            place = path.resolve() if path.is_symlink() else path
        except RuntimeError:  # what pathlib makes of links that lead to each other
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None
        put(place, encoded, mode)


def put(path: Path, data: bytes, mode: int) -> None:
    """Replaces the file, or the link of that name. The new one is made under a name that nobody can foresee: the folder
    may be open to others. Blocks. Raises OSError, and leaves nothing behind."""
    fd, new = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(data)
        os.rename(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
