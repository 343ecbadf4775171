"""What to do about an errno is said in one place."""

import errno
import os
import re
from pathlib import Path

import pytest

from muster.supervisors.supervision_errors import explain, remedy

CODE = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("number", "word"),
    [(errno.EMFILE, "limit of open files"), (errno.ENOSPC, "room"), (errno.EROFS, "mount"), (errno.EACCES, "access")],
)
def test_a_remedy_fits_its_error(number: int, word: str) -> None:
    error = OSError(number, os.strerror(number), "/some/file")
    assert word in remedy(error) and word in explain(error) and "/some/file" in explain(error)
    assert ("room" in remedy(error)) == (number == errno.ENOSPC)


def test_an_unknown_error() -> None:
    assert remedy(OSError(errno.ENXIO, "no"), "otherwise") == "otherwise"


def test_there_is_no_second_table() -> None:
    table = re.compile(r"errno\.E[A-Z]+: *f?\"")
    homes = {
        path.name
        for name in ("agent", "supervisors")
        for path in (CODE / name).rglob("*.py")
        if table.search(path.read_text())
    }
    assert homes == {"supervision_errors.py"}
