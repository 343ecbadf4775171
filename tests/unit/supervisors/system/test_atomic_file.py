import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from muster.supervisors.system.atomic_file import replace_file

WRITE = """
import resource, sys
from pathlib import Path
from muster.supervisors.system.atomic_file import replace_file
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    replace_file(Path(sys.argv[1]), bytes(8192))
except OSError as error:
    print(error.errno, error.filename)
"""


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_the_mode_is_independent_of_the_umask(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077 if mode != 0o600 else 0)
    try:
        replace_file(tmp_path / "file", b"text", mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_failed_write_names_the_file_and_leaves_the_old_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    run = subprocess.run([sys.executable, "-c", WRITE, path], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(errno.EFBIG), str(path)]
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".file.new").symlink_to(victim)
    with pytest.raises(OSError) as caught:
        replace_file(tmp_path / "file", b"text")
    assert caught.value.errno == errno.ELOOP and caught.value.filename == str(tmp_path / ".file.new")
    replace_file(tmp_path / "file", b"text")
    assert victim.read_bytes() == b"mine" and (tmp_path / "file").read_bytes() == b"text"
