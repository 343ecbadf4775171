"""The daemon's share in keeping output."""

import errno
import os
from pathlib import Path

import pytest

from muster.agent.link import holds
from muster.agent.link.holds import Holds
from muster.supervisors.output.tee import open_reader
from muster.supervisors.paths import JobPaths


def open_fds() -> set[str]:
    """What this process has open below /tmp and elsewhere, by its name."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the listing's own
            continue
    return found


def fifos_of(paths: JobPaths, *ranks: int) -> set[str]:
    return {str(path) for path in (paths.job_fifo, *map(paths.fifo, ranks))}


def test_fifos_of_ranks_and_of_the_jobs_own_log_are_made_and_held(tmp_path):
    """Before anybody writes: what a step says may be all that there ever is."""
    paths = JobPaths(tmp_path)
    held = Holds(paths)
    held.take([4, 5], create=True)
    assert {str(path) for path in tmp_path.iterdir()} == fifos_of(paths, 4, 5)
    assert fifos_of(paths, 4, 5) <= open_fds()
    writer = os.open(paths.job_fifo, os.O_WRONLY | os.O_NONBLOCK)  # fails where nobody reads
    os.write(writer, b"last words")
    os.close(writer)
    reader = os.open(paths.job_fifo, os.O_RDONLY | os.O_NONBLOCK)
    assert os.read(reader, 100) == b"last words", "the next caller still finds it"
    os.close(reader)
    held.release()
    assert not fifos_of(paths, 4, 5) & open_fds()


def test_a_job_that_had_a_supervisor_is_held_as_far_as_it_is_there(tmp_path):
    """What was drained to its end and put away is not made again: nobody would drain it."""
    paths = JobPaths(tmp_path)
    os.mkfifo(paths.fifo(1))
    held = Holds(paths)
    held.take([0, 1], create=False)
    assert open_fds() & fifos_of(paths, 0, 1) == {str(paths.fifo(1))}
    assert os.listdir(tmp_path) == ["rank-1.fifo"]
    held.release()


def test_what_is_held_is_not_taken_twice(tmp_path):
    paths = JobPaths(tmp_path)
    held = Holds(paths)
    held.take([0], create=True)
    before = len(os.listdir("/proc/self/fd"))
    held.take([0, 1], create=True)
    assert len(os.listdir("/proc/self/fd")) == before
    held.release()
    held.release()


def test_nothing_is_held_where_not_all_can_be(tmp_path, monkeypatch):
    paths = JobPaths(tmp_path)

    def full(path: Path) -> int:
        if path == paths.fifo(1):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_reader(path)

    monkeypatch.setattr(holds, "open_reader", full)
    with pytest.raises(OSError, match="Too many open files"):
        Holds(paths).take([0, 1], create=True)
    assert not fifos_of(paths, 0, 1) & open_fds()
