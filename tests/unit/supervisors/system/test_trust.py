"""Whose folders and files muster works with, and on which ways."""

import grp
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.supervisors.supervision_errors import Untrusted
from muster.supervisors.system import trust
from tests.small_disk import needs_root
from tests.unit.supervision import in_own_process

NOBODY = 65534


def as_nobody(work: Callable[[], Any]) -> Any:
    """What `work` returns (as JSON has it) in a process of that user."""

    def inside() -> Any:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return work()

    return in_own_process(inside)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that nobody may get at, too."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# --- every folder on the way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "why"),
    [
        (0o755, 0, 100, ""),
        (0o775, 0, 0, ""),
        (0o1777, 0, 0, ""),
        (0o1775, 0, 4711, ""),
        (0o775, 0, 4711, "the group 4711 can write there, and {path} lies below it: chmod g-w {up}"),
        (0o757, 0, 0, "its mode 0757 lets everybody write, and {path} lies below it: chmod o-w {up}"),
        (0o755, NOBODY, 0, "belongs to .*uid 65534.*, and {path} lies below it: .*chown 0 {up}"),
        (0o1777, NOBODY, 0, "belongs to .*uid 65534"),
    ],
)
@needs_root
def test_a_folder_on_the_way(tmp_path: Path, mode: int, uid: int, gid: int, why: str) -> None:
    up = tmp_path / "up"
    path = up / "below" / "muster"
    path.mkdir(parents=True)
    os.chown(up, uid, gid)
    up.chmod(mode)
    for each in (path, path / "not" / "there"):
        if why:
            with pytest.raises(Untrusted, match=f"^{up}: {why.format(up=up, path=each)}"):
                trust.check(each)
        else:
            trust.check(each)


def test_debians_and_ubuntus_groups_are_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {50: "staff", 51: "staff", 104: "syslog"}
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=names[gid]))
    assert trust.is_our_group("/usr/local", 50) and trust.is_our_group("/var/log", 104)
    assert not trust.is_our_group("/usr/local", 51) and not trust.is_our_group("/var/lib", 104)


@needs_root
def test_an_access_list(tmp_path: Path) -> None:
    everybody = 0xFFFFFFFF

    def put(*entries: tuple[int, int, int]) -> None:
        data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        os.setxattr(tmp_path, "system.posix_acl_access", data)

    def with_user(uid: int, may: int) -> None:
        """owner, a user, group, mask, others."""
        put((1, 7, everybody), (2, may, uid), (4, 5, everybody), (0x10, 7, everybody), (0x20, 5, everybody))

    os.chown(tmp_path, 0, 4711)
    try:
        with_user(1, 7)
    except OSError as error:
        pytest.skip(f"the file system of temporary files has no access lists: {error.strerror}")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o775  # the group's bits are the list's mask
    with pytest.raises(Untrusted, match=f"its access list lets .*uid 1.* write.*: setfacl -x u:1 {tmp_path}"):
        trust.check(tmp_path / "x")
    for uid, may in ((1, 5), (0, 7)):
        with_user(uid, may)
        trust.check(tmp_path / "x")
    put((1, 7, everybody), (4, 5, everybody), (8, 7, 4712), (0x10, 7, everybody), (0x20, 5, everybody))
    with pytest.raises(Untrusted, match=f"the group 4712 can write there.*: setfacl -x g:4712 {tmp_path}"):
        trust.check(tmp_path / "x")


@needs_root
def test_links_are_followed_step_by_step(tmp_path: Path) -> None:
    good, theirs = tmp_path / "good", tmp_path / "theirs"
    for folder in (good, theirs):
        folder.mkdir()
    (tmp_path / "link").symlink_to("good/../good/.")
    trust.check(tmp_path / "link" / "x")
    (good / "over").symlink_to(theirs / "back")
    (theirs / "back").symlink_to(good)
    trust.check(good / "over")
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(Untrusted, match=f"^{theirs}: belongs to"):  # although it leads to a good folder in the end
        trust.check(good / "over")
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(OSError, match="Too many levels"):
        trust.check(tmp_path / "ring" / "x")


@needs_root
def test_a_link_of_another_in_a_sticky_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "good").mkdir()
    link = tmp_path / "link"
    link.symlink_to("good")
    trust.check(link / "x")
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(Untrusted, match=f"^{link}: belongs to .*uid 65534"):
        trust.check(link / "x")


def test_new_files_are_private_under_every_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        trust.make_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a" / "b" / "c")] == [0o755] * 2
    trust.make_folder(tmp_path / "a" / "b" / "c")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        trust.make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        trust.check(tmp_path / "file" / "x")


@needs_root
def test_a_user_trusts_root_and_nobody_else(open_path: Path) -> None:
    tmp_path = open_path
    for name, uid in (("mine", NOBODY), ("roots", 0), ("anothers", 1)):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, uid, 0)

    def look() -> object:
        found = []
        for name in ("mine", "roots", "anothers"):
            try:
                trust.check(tmp_path / name / "x")
                found.append("")
            except Untrusted as error:
                found.append(str(error))
        return found

    mine, roots, anothers = as_nobody(look)
    assert mine == roots == "" and "uid 1" in anothers and "only root and nobody (uid 65534)" in anothers


# --- files of our own -------------------------------------------------------------------------------------------------


@needs_root
def test_a_file_of_another_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text("{}")
    assert trust.read(path) == b"{}"
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(Untrusted, match=rf"^{path}: belongs to .*uid 65534.*: chown 0 {path}$"):
        trust.read(path)
    os.chown(path, 0, 0)
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(Untrusted, match=f"^{tmp_path}: belongs to"):
        trust.read(path)


def test_links_and_fifos_are_no_files_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many levels"):
        trust.read(tmp_path / "link")
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(Untrusted, match="fifo: is not a regular file"):
            trust.open_own(tmp_path / "fifo", flags)
    with pytest.raises(FileNotFoundError, match="missing"):
        trust.read(tmp_path / "missing")
    assert len(os.listdir("/proc/self/fd")) == before


# --- folders for logs -------------------------------------------------------------------------------------------------


@pytest.fixture
def volume(open_path: Path) -> Path:
    """A folder of nobody's, and in it another."""
    made = open_path / "volume"
    (made / "logs").mkdir(parents=True)
    for folder in (made, made / "logs"):
        os.chown(folder, NOBODY, NOBODY)
    return made


def logs(path: Path) -> int:
    """Its inode."""
    fd = trust.open_logs(path)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


@needs_root
def test_logs_may_lie_in_anybodys_volume(tmp_path: Path, volume: Path) -> None:
    (tmp_path / "link").symlink_to(volume / "logs")
    assert logs(tmp_path / "link") == (volume / "logs").stat().st_ino
    with pytest.raises(FileNotFoundError):
        logs(tmp_path / "none")


@needs_root
def test_a_link_of_theirs_leads_where_they_could_write_themselves(open_path: Path, volume: Path) -> None:
    (volume / "logs").rename(volume / "away")

    def link(where: Path) -> None:
        as_nobody(lambda: (volume / "logs").unlink(missing_ok=True))
        as_nobody(lambda: (volume / "logs").symlink_to(where))

    (open_path / "etc").mkdir()
    (open_path / "open").mkdir()
    (open_path / "open").chmod(0o777)
    link(volume / "away")
    assert logs(volume / "logs") == (volume / "away").stat().st_ino
    link(open_path / "open")
    assert logs(volume / "logs") == (open_path / "open").stat().st_ino
    before = len(os.listdir("/proc/self/fd"))
    link(open_path / "etc")
    with pytest.raises(Untrusted, match=f"^{volume}/logs: is a link that .*uid 65534.* can replace"):
        logs(volume / "logs")
    # Nor one of root's, which they may have moved there.
    os.chown(volume / "logs", 0, 0, follow_symlinks=False)
    with pytest.raises(Untrusted, match="can replace"):
        logs(volume / "logs")
    assert len(os.listdir("/proc/self/fd")) == before


@needs_root
def test_files_for_logs_in_a_folder_of_others(open_path: Path, volume: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    secret = volume / "secret"
    secret.write_text("root's")
    (open_path / "roots").touch()
    os.link(secret, volume / "logs" / "other-name")  # as it works where fs.protected_hardlinks is off
    as_nobody(lambda: os.mkfifo(volume / "logs" / "fifo"))
    as_nobody(lambda: (volume / "logs" / "link").symlink_to(open_path / "roots"))
    as_nobody((volume / "logs" / "theirs").touch)
    folder = trust.open_logs(volume / "logs")
    try:
        for name in ("other-name", "fifo"):
            with pytest.raises(Untrusted):
                trust.open_log(name, flags, folder=folder)
        with pytest.raises(OSError, match="Too many levels"):
            trust.open_log("link", flags, folder=folder)
        for name, free in (("theirs", False), ("new", True), ("new", False)):
            fd, may_be_given = trust.open_log(name, flags, folder=folder)
            os.close(fd)
            assert may_be_given == free, name
        # What is open stays the folder that was looked at, whatever is put in its place.
        as_nobody(lambda: os.rename(volume / "logs", volume / "away"))
        as_nobody(lambda: (volume / "logs").symlink_to(open_path))
        os.close(trust.open_log("late", flags, folder=folder)[0])
    finally:
        os.close(folder)
    folder = trust.open_logs(open_path)
    fd, may_be_given = trust.open_log("roots", flags, folder=folder)
    os.close(fd)
    os.close(folder)
    assert may_be_given  # nobody but root gives names there
    assert (volume / "away" / "late").exists() and not (open_path / "late").exists()
    assert secret.read_text() == "root's" and secret.stat().st_nlink == 2
