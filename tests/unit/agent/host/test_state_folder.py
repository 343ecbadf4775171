"""The folders of a node and the daemon's lock."""

import os
from pathlib import Path

import pytest

from muster.agent.errors import StartupError
from muster.agent.host import lockfile, state_folder
from muster.supervisors.paths import Root
from tests.small_disk import needs_root


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_folders_are_made_under_every_umask(tmp_path: Path):
    root = Root.under(tmp_path / "new" / "root")
    before = os.umask(0o077)
    try:
        state_folder.prepare(root)
    finally:
        os.umask(before)
    assert (mode(root.run), mode(root.log), mode(root.events)) == (0o755, 0o755, 0o700)
    assert not mode(root.state) & 0o066
    assert root.version.read_text() == "muster-state 1\n"
    state_folder.prepare(root)  # again


def test_another_version_is_refused_and_left_alone(tmp_path: Path):
    root = Root.under(tmp_path)
    root.state.mkdir()
    root.version.write_text("muster-state 2\n")
    with pytest.raises(StartupError, match=r"muster-state 2.*muster-state 1"):
        state_folder.prepare(root)
    assert list(root.state.iterdir()) == [root.version]


def test_a_state_folder_without_its_mark_is_refused(tmp_path: Path):
    root = Root.under(tmp_path)
    root.jobs.mkdir(parents=True)
    with pytest.raises(StartupError, match="version: is missing"):
        state_folder.prepare(root)


def test_a_socket_path_that_is_too_long(tmp_path: Path):
    root = Root.under(tmp_path / ("x" * 100))
    with pytest.raises(StartupError, match=rf"has {len(str(root.socket))} bytes.*allows 107.*shorter --root"):
        state_folder.prepare(root)
    assert not root.run.parent.exists()


def test_a_file_in_the_way_and_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "state").touch()
    with pytest.raises(StartupError, match="is not a folder"):
        state_folder.prepare(Root.under(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StartupError, match="no permission"):
        state_folder.prepare(Root.under(tmp_path / "other"))


@pytest.mark.parametrize("name", [".", "run", "state", "log"])
@needs_root
def test_a_folder_of_another_user_is_refused_and_left_alone(tmp_path: Path, name: str):
    folder = tmp_path / "root" / name
    folder.mkdir(parents=True)
    os.chown(folder, 65534, 65534)
    with pytest.raises(StartupError, match=rf"{folder}: belongs to .*uid 65534.*another path, or.*: chown 0 {folder}$"):
        state_folder.prepare(Root.under(tmp_path / "root"))
    assert list(folder.iterdir()) == []


def test_a_folder_that_everybody_may_write_to(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.raises(StartupError, match=rf"{tmp_path}: .*mode 0777 lets everybody write.*: chmod o-w {tmp_path}$"):
        state_folder.prepare(Root.under(tmp_path))
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o1777)  # nobody can replace what is another's
    state_folder.prepare(Root.under(tmp_path))


@needs_root
def test_a_link_to_a_folder_for_logs_that_everybody_may_write_to_is_taken(tmp_path: Path):
    """As the volumes of containers are."""
    root, volume = Root.under(tmp_path / "root"), tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    os.chown(volume, 65534, 65534)
    tmp_path.joinpath("root").mkdir()
    root.log.symlink_to(volume)
    state_folder.prepare(root)


def test_the_umask_makes_no_folder_that_is_refused_next_time(tmp_path: Path):
    root = Root.under(tmp_path / "new")
    before = os.umask(0)
    try:
        state_folder.prepare(root)
    finally:
        os.umask(before)
    state_folder.prepare(root)


def test_the_epoch_stays(tmp_path: Path):
    epoch = state_folder.event_epoch(tmp_path)
    assert len(epoch) == 16
    assert state_folder.event_epoch(tmp_path) == epoch


def test_the_key_of_digests_stays_and_is_private(tmp_path: Path):
    key = state_folder.digest_key(tmp_path)
    assert len(key) == 32 and state_folder.digest_key(tmp_path) == key
    assert (tmp_path / "digest.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "digest.key").write_text("damaged")
    new = state_folder.digest_key(tmp_path)
    assert new != key and state_folder.digest_key(tmp_path) == new
    assert len(state_folder.digest_key(tmp_path / "not there")) == 32


def test_one_daemon_per_root(tmp_path: Path):
    path = tmp_path / "lock"
    with lockfile.held(path):
        with pytest.raises(StartupError, match=rf"another musterd \(pid {os.getpid()}\)"), lockfile.held(path):
            pass
        assert path.read_text() == f"{os.getpid()}\n"
    with lockfile.held(path):
        pass
