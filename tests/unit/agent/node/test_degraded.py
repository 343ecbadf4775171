"""What is said of a folder that cannot be written."""

import errno
import os
from pathlib import Path

import pytest

from muster.agent.host.state_folder import writable
from muster.agent.node.degraded import trouble_of


def test_a_folder_that_was_moved_away_is_to_be_moved_back(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        writable(tmp_path / "moved")
    assert trouble_of(caught.value) == (
        "No such file or directory; the folder no longer exists: move it back, or create it"
    )
    assert "mount the file system read-write" in trouble_of(OSError(errno.EROFS, os.strerror(errno.EROFS)))
