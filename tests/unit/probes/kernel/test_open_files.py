import os
import socket
from pathlib import Path

import pytest

from muster.probes.kernel import open_files


def test_files_and_sockets_of_a_process(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file, socket.socket() as sock:
        assert {file.fileno(), sock.fileno()} <= set(open_files.numbers(os.getpid()))
        assert open_files.target("self", file.fileno()) == str(tmp_path / "file")
        inode = os.fstat(sock.fileno()).st_ino
        assert {str(tmp_path / "file"), f"socket:[{inode}]"} <= set(open_files.targets(os.getpid()))
        (tmp_path / "file").unlink()
        assert open_files.target("self", file.fileno()) == f"{tmp_path / 'file'} (deleted)"
    assert str(tmp_path / "file") not in set(open_files.targets(os.getpid()))


def test_a_process_that_does_not_exist() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    with pytest.raises(FileNotFoundError):
        open_files.numbers(pid)
    assert list(open_files.targets(pid)) == []
