import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from muster.supervisors.staging.local_files import LocalSink, LocalSource, refuse_without_room
from muster.supervisors.staging.remote_files import FileSystem, RemoteSource
from muster.supervisors.staging.staged_file import StagedFile, of_info, refuse_unsafe
from muster.supervisors.staging.troubles import FileChanged, NoRoomHere, NotCopyable, TryAgain

CONTENT = bytes(range(256)) * 40
BLOCK = 1000


class FakeSource:
    """A server's file, which sends so many bytes in all before it breaks off."""

    shown, name, is_folder = "s3://b/file", "file", False

    def __init__(self, item: StagedFile) -> None:
        self.item, self.now, self.sends, self.offsets = item, item, 20 * BLOCK, list[int]()

    def items(self, say: Callable[[str], None]) -> list[StagedFile]:
        return [self.item]

    def look(self, item: StagedFile) -> StagedFile:
        return self.now

    def has_ranges(self, item: StagedFile) -> bool:
        return True

    def read(self, item: StagedFile, offset: int) -> Iterator[bytes]:
        self.offsets.append(offset)
        while offset < len(CONTENT):
            if self.sends < BLOCK:
                raise TryAgain("it broke off")
            self.sends -= BLOCK
            yield CONTENT[offset : offset + BLOCK]
            offset += BLOCK


def file(**other: object) -> StagedFile:
    return replace(StagedFile("", "b/file", len(CONTENT), 1_700_000_000.5, "tag"), **other)  # type: ignore[arg-type]


def nothing(position: int) -> None:
    pass


def test_what_broke_off_goes_on_where_it_was(tmp_path: Path) -> None:
    source = FakeSource(file())
    source.sends = 3 * BLOCK
    with pytest.raises(TryAgain):
        LocalSink(f"{tmp_path}/x", source).write(source.item, source, nothing)
    assert not (tmp_path / "x").exists(), "a file appears when it is whole"
    source.sends = 20 * BLOCK
    seen: list[int] = []
    sink = LocalSink(f"{tmp_path}/x", source)  # of another process
    sink.write(source.item, source, seen.append)
    assert (tmp_path / "x").read_bytes() == CONTENT and source.offsets == [0, 3 * BLOCK]
    assert seen[0] == 3 * BLOCK and seen[-1] == len(CONTENT)
    assert sink.has(source.item) and not sink.has(file(mtime=1.0)) and not sink.has(file(size=1))
    assert os.listdir(tmp_path) == ["x"]


def test_the_part_of_another_content_is_not_gone_on_with(tmp_path: Path) -> None:
    source = FakeSource(file())
    source.sends = 3 * BLOCK
    with pytest.raises(TryAgain):
        LocalSink(f"{tmp_path}/x", source).write(source.item, source, nothing)
    other = FakeSource(file(tag="another"))
    LocalSink(f"{tmp_path}/x", other).write(other.item, other, nothing)
    assert other.offsets == [0]


@pytest.mark.parametrize("unknown", [{"size": None}, {"tag": "", "mtime": 0.0}])
def test_a_file_of_which_no_version_is_known_begins_anew(tmp_path: Path, unknown: dict[str, object]) -> None:
    source = FakeSource(file(**unknown))
    source.sends = 3 * BLOCK
    with pytest.raises(TryAgain):
        LocalSink(f"{tmp_path}/x", source).write(source.item, source, nothing)
    source.sends = 20 * BLOCK
    LocalSink(f"{tmp_path}/x", source).write(source.item, source, nothing)
    assert source.offsets == [0, 0] and (tmp_path / "x").read_bytes() == CONTENT


def test_a_file_that_changed_leaves_nothing(tmp_path: Path) -> None:
    source = FakeSource(file())
    source.now = file(tag="newer")
    sink = LocalSink(f"{tmp_path}/x", source)
    with pytest.raises(FileChanged):
        sink.write(source.item, source, nothing)
    assert not os.listdir(tmp_path)


def test_a_wrong_checksum_is_another_try_and_two_copies_that_are_alike_are_whole(tmp_path: Path) -> None:
    """Of some servers the tag of a file looks like a checksum, and is none."""
    right = hashlib.md5(CONTENT).hexdigest()
    source = FakeSource(file(md5=right, mtime=0.0))
    sink = LocalSink(f"{tmp_path}/x", source)
    sink.write(source.item, source, nothing)
    assert sink.has(source.item), "by checksum: the time is not known"
    odd = FakeSource(file(md5="0" * 32))
    odd.sends = 30 * BLOCK
    sink = LocalSink(f"{tmp_path}/y", odd)
    with pytest.raises(TryAgain, match="checksum"):
        sink.write(odd.item, odd, nothing)
    sink.write(odd.item, odd, nothing)
    assert (tmp_path / "y").read_bytes() == CONTENT


def test_two_that_copy_the_same(tmp_path: Path) -> None:
    source = FakeSource(file())
    source.sends = BLOCK
    sink = LocalSink(f"{tmp_path}/x", source)
    with pytest.raises(TryAgain):
        sink.write(source.item, source, nothing)
    [part] = tmp_path.iterdir()
    with open(part, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TryAgain, match="another process"):
            sink.write(source.item, source, nothing)


def test_what_was_made_is_removed_and_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine").write_text("mine")
    (tmp_path / "src" / "a" / "b").mkdir(parents=True)
    (tmp_path / "src" / "a" / "b" / "c").write_text("c")
    (tmp_path / "src" / "link").symlink_to("nowhere")
    source = LocalSource(f"{tmp_path}/src")
    left_out: list[str] = []
    [item] = source.items(left_out.append)
    sink = LocalSink(f"{tmp_path}/old", source)
    sink.write(item, source, nothing)
    assert (tmp_path / "old" / "a" / "b" / "c").read_text() == "c" and len(left_out) == 1
    sink.undo()
    assert [path.name for path in (tmp_path / "old").rglob("*")] == ["mine"]


def test_what_was_begun_is_removed_with_it(tmp_path: Path) -> None:
    """Not what another process had begun, of which somebody may go on."""
    source = FakeSource(file())
    source.sends = 3 * BLOCK
    sink = LocalSink(f"{tmp_path}/new/x", source)
    with pytest.raises(TryAgain):
        sink.write(source.item, source, nothing)
    other = LocalSink(f"{tmp_path}/new/x", source)
    with pytest.raises(TryAgain):
        other.write(source.item, source, nothing)
    other.undo()
    assert list((tmp_path / "new").iterdir())
    sink.undo()
    assert not list(tmp_path.iterdir())


def test_no_room(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    with pytest.raises(NoRoomHere, match="no room for"):
        refuse_without_room({1: free.f_bavail * free.f_frsize * 2 + 1}, {1: str(tmp_path)})
    refuse_without_room({1: 0}, {1: str(tmp_path)})


@pytest.mark.parametrize(
    "names", [("../x",), ("a/../../x",), ("/etc/x",), ("a", "a/b"), ("a//b",), ("a\0b",)], ids=repr
)
def test_names_that_no_folder_can_hold(names: tuple[str, ...]) -> None:
    with pytest.raises(NotCopyable):
        refuse_unsafe([StagedFile(name, name, 1) for name in names], "s3://b")


def test_names_of_a_web_server_are_decoded() -> None:
    class There:
        scheme, shown, name, path, is_into = "http", "http://h/d%20e/", "d%20e", "http://h/d%20e/", True

        def below(self) -> dict[str, dict[str, Any]]:
            return {f"{self.path}{name}": self.info("") for name in ("a%20b", "s/%E4%B8%AD", "x?y")}

        def info(self, place: str) -> dict[str, Any]:
            return {"type": "file", "size": 1}

    source = RemoteSource(cast(FileSystem, There()))
    found = {item.name: item.place for item in source.items(print)}
    assert found == {"a b": "http://h/d%20e/a%20b", "s/中": "http://h/d%20e/s/%E4%B8%AD"}
    assert source.name == "d e"


def test_what_servers_tell() -> None:
    web = of_info("x", "p", {"size": 3, "ETag": 'W/"abc"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"})
    assert (web.mtime, web.tag, web.md5) == (1735689600.0, "abc", "")
    s3 = of_info(
        "x", "p", {"size": 3, "ETag": '"900150983CD24FB0D6963F7D28E17F72"', "LastModified": "2025-01-01T00:00:00Z"}
    )
    assert s3.md5 == "900150983cd24fb0d6963f7d28e17f72" and s3.mtime == web.mtime
    assert of_info("x", "p", {"size": None, "LastModified": "nonsense"}).is_known is False
