"""A state folder without room: what is refused, and what `muster node` says of it, are one."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.integration.box import Boxed, mounted

ROOM = 2 << 20


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[Boxed]:
    """A daemon whose state folder is a file system of 2 MiB."""
    state = tmp_path / "state"
    state.mkdir()
    daemon = Boxed(
        tmp_path, '[checks]\npolicy = "off"\n', mounted(f"mount -t tmpfs -o size={ROOM},mode=711 none {state}")
    )
    try:
        yield daemon.start()
    finally:
        daemon.close()


def fill(daemon: Boxed, but: int) -> Path:
    """Leaves so many bytes. Returns the file that has the others."""
    assert daemon.process is not None
    path = Path(f"/proc/{daemon.process.pid}/root{daemon.root.state}/fill")
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        file.truncate(file.tell() - but)
    return path


def says(daemon: Boxed, text: str) -> bool:
    shown = daemon.cli("node")
    return text in shown.stdout + shown.stderr


@pytest.mark.slow
def test_a_job_that_is_refused_and_the_node_agree(boxed: Boxed) -> None:
    filled = fill(boxed, but=49152)
    refused = boxed.cli("start", "--ranks", "4", "--", "true")
    assert refused.returncode == 5 and "No space left on device" in refused.stderr, refused
    sentence = f"cannot write {boxed.root.jobs}: No space left on device"
    eventually(lambda: says(boxed, sentence))
    assert says(boxed, "DAEMON_DEGRADED")
    assert boxed.cli("start", "--ranks", "4", "--", "true").returncode == 5
    assert says(boxed, sentence)
    os.truncate(filled, 0)
    eventually(lambda: not says(boxed, sentence), 60)
    assert boxed.cli("start", "--ranks", "4", "--", "true").returncode == 0


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_named_with_its_folder(boxed: Boxed) -> None:
    filled = fill(boxed, but=0)
    assert boxed.process is not None
    boxed.cli("node")
    boxed.config.write_text(boxed.config.read_text() + "[logs]\nmax_file_bytes = 1000000\n")
    boxed.process.send_signal(1)
    sentence = f"logs: write settings: {boxed.root.settings}: No space left on device"
    eventually(lambda: says(boxed, sentence))
    os.truncate(filled, 0)
    eventually(lambda: not says(boxed, "write settings"), 60)
