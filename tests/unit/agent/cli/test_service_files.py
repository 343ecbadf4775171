"""Files that `muster service` puts into the system: all or none, and nothing lost that is somebody else's."""

import json
from pathlib import Path

import pytest

from muster.agent.cli.exits import CommandFailed
from muster.agent.cli.installed import Content, alone


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "share/muster/installed.json"


def put(record: Path, wanted: dict[Path, Content], *, force: bool = False) -> list[Path]:
    with alone(record) as files:
        return files.put(wanted, force=force)


def asides(path: Path) -> list[str]:
    return [other.read_text() for other in path.parent.glob(f"{path.name}.by-hand-*")]


def test_twice_is_once(tmp_path: Path, record: Path) -> None:
    wanted: dict[Path, Content] = {tmp_path / "etc/unit": b"[Unit]\n", tmp_path / "bin/muster": Path("/opt/muster")}
    assert put(record, wanted) == [*wanted]
    before = record.stat()
    assert put(record, wanted) == []
    assert record.stat().st_mtime_ns == before.st_mtime_ns
    assert (tmp_path / "etc/unit").stat().st_mode & 0o7777 == 0o644
    assert (tmp_path / "bin/muster").readlink() == Path("/opt/muster")


def test_another_version(tmp_path: Path, record: Path) -> None:
    """What it has no more is gone, what differs is new, and back again likewise."""
    unit, page = tmp_path / "unit", tmp_path / "page"
    put(record, {unit: b"1", page: b"1"})
    assert put(record, {unit: b"2"}) == [unit, page]
    assert unit.read_text() == "2" and not page.exists()
    assert put(record, {unit: b"1", page: b"1"}) == [unit, page]
    assert asides(unit) == asides(page) == []


@pytest.mark.parametrize("there_before", [True, False])
def test_what_was_changed_by_hand_stays(
    tmp_path: Path, record: Path, there_before: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    unit = tmp_path / "unit"
    if not there_before:
        put(record, {unit: b"1"})
    unit.write_text("mine")
    for _ in range(2):
        assert put(record, {unit: b"2"}) == []
        assert unit.read_text() == "mine"
        assert ("existed before" if there_before else "was changed by hand") in capfd.readouterr().err
    assert put(record, {unit: b"2"}, force=True) == [unit]
    assert unit.read_text() == "2" and asides(unit) == ["mine"]
    assert put(record, {unit: b"3"}) == [unit], "it is ours again"


def test_removal(tmp_path: Path, record: Path) -> None:
    ours, changed, others = tmp_path / "ours", tmp_path / "changed", tmp_path / "others"
    others.write_text("others'")
    put(record, {ours: b"1", changed: b"1", others: b"1", tmp_path / "link": Path("/opt")})
    changed.write_text("mine")
    with alone(record) as files:
        files.remove()
        assert not files
    assert asides(changed) == ["mine"]
    assert others.read_text() == "others'"
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["changed", "others", "share"]
    assert not record.parent.exists()


def test_a_failure_is_taken_back(tmp_path: Path, record: Path) -> None:
    """Here: the last place is a folder."""
    unit, gone, new, folder = (tmp_path / name for name in ("unit", "gone", "new", "folder"))
    put(record, {unit: b"1", gone: b"1"})
    before = record.read_bytes()
    folder.mkdir()
    with alone(record) as files:
        with pytest.raises(OSError):
            files.put({unit: b"2", new: b"2", folder / "x": b"2", folder / "x" / "y": b"2"}, force=False)
        files.take_back()
    assert (unit.read_text(), gone.read_text(), new.exists()) == ("1", "1", False)
    assert record.read_bytes() == before


def test_what_was_cut_short_is_still_ours(tmp_path: Path, record: Path) -> None:
    """Killed in the middle: some files are the new ones, the others the old."""
    first, second = tmp_path / "first", tmp_path / "second"
    put(record, {first: b"1", second: b"1"})
    with alone(record) as files, pytest.raises(OSError):
        files.put({first: b"2", tmp_path / "x": b"", tmp_path / "x/y": b"", second: b"2"}, force=False)
    assert (first.read_text(), second.read_text()) == ("2", "1")
    assert put(record, {first: b"3", second: b"3"}) == [first, second, tmp_path / "x"]


def test_one_at_a_time(record: Path) -> None:
    with alone(record), pytest.raises(CommandFailed, match="another"), alone(record):
        pass


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": []}', "\udcff"])
def test_a_damaged_record_is_no_licence(record: Path, text: str) -> None:
    record.parent.mkdir(parents=True)
    record.write_text(text, errors="surrogateescape")
    with pytest.raises(CommandFailed, match="cannot read"), alone(record):
        pass


def test_what_is_the_users_is_made_once(tmp_path: Path, record: Path) -> None:
    path = tmp_path / "musterd.toml"
    with alone(record) as files:
        assert files.add(path, b"# yours\n", 0o640)
        assert not files.add(path, b"# other\n", 0o644)
        files.remove()
    assert path.read_text() == "# yours\n" and path.stat().st_mode & 0o777 == 0o640
    with alone(record) as files:
        path.unlink()
        files.add(path, b"# yours\n", 0o640)
        files.take_back()
    assert not path.exists()


def test_the_record_says_what_is_where(tmp_path: Path, record: Path) -> None:
    put(record, {tmp_path / "link": Path("/opt/muster")})
    assert json.loads(record.read_text()) == {"files": {str(tmp_path / "link"): ["-> /opt/muster"]}}
