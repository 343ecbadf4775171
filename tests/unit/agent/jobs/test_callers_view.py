"""What a user may know of the node's files: by the modes and access lists of the folders on the way."""

import errno
import os
import pwd
import struct
from pathlib import Path

import pytest

from muster.agent.jobs.hardening.decided import CallersView

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who looks for others")
NOBODY = 65534
#: Tags of acl(5): owner, user, owning group, group, mask, others.
OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHERS = 1, 2, 4, 8, 16, 32
NONE = 0xFFFFFFFF


def access_list(path: Path, *more: tuple[int, int, int]) -> None:
    entries = sorted([(OWNER, 7, NONE), (OWNING_GROUP, 0, NONE), (OTHERS, 0, NONE), *more])
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system has no access lists")


@pytest.mark.parametrize(
    ("entries", "seen"),
    [
        ([], False),
        ([(USER, 5, NOBODY), (MASK, 7, NONE)], True),
        ([(USER, 5, NOBODY), (MASK, 4, NONE)], False),
        ([(USER, 0, NOBODY), (GROUP, 7, NOBODY), (MASK, 7, NONE)], False),
        ([(GROUP, 1, NOBODY), (MASK, 7, NONE)], True),
        ([(USER, 7, 12345), (MASK, 7, NONE)], False),
    ],
    ids=["mode", "user", "mask", "user before group", "group", "another user"],
)
def test_an_access_list_counts(tmp_path: Path, entries: list[tuple[int, int, int]], seen: bool) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/") and folder != Path("/tmp"):
            folder.chmod(0o755)
    project = tmp_path / "project"
    project.mkdir(mode=0o700)
    (project / "run").mkdir()
    access_list(project, *entries) if entries else None
    view = CallersView.of(pwd.getpwuid(NOBODY).pw_name)
    assert view.groups == {NOBODY}
    assert view.reaches(str(project / "run")) is seen
