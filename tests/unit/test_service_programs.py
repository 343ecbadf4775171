"""Which environments `muster service install` takes: root runs what is in them."""

import os
import stat
from pathlib import Path

import pytest

from agent.cli import service
from agent.cli.errors import Failure

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="all else belongs to another than root")


@pytest.mark.parametrize(
    ("mode", "group", "said"),
    [
        (0o755, 100, ""),
        (0o775, 0, ""),
        (0o775, 4711, "chmod g-w"),
        (0o1777, 0, ""),
        (0o1775, 4711, ""),
        (0o757, 0, "others than root"),
    ],
)
def test_who_may_write_there(tmp_path: Path, mode: int, group: int, said: str) -> None:
    os.chown(tmp_path, 0, group)
    tmp_path.chmod(mode)
    found = service._who_else_changes(tmp_path)
    assert said in found and bool(said) == bool(found)


def test_debians_group_of_usr_local_is_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, 0, 50)
    tmp_path.chmod(0o2775)
    for name, told in (("staff", False), ("games", True)):
        monkeypatch.setattr("grp.getgrgid", lambda gid, name=name: type("Group", (), {"gr_name": name}))
        assert bool(service._who_else_changes(tmp_path)) == told


def test_a_way_through_a_link_is_judged_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, shared = tmp_path / "environment", tmp_path / "shared"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "musterd").touch()
    shared.mkdir()
    (shared / "link").symlink_to(environment)
    os.chown(shared, 0, 4711)
    shared.chmod(stat.S_IMODE(0o775))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(shared / "link" / "bin"))
    with pytest.raises(Failure, match=f"{shared}: the group 4711 can change it.*chmod g-w {shared}"):
        service._programs(force=False)
    assert service._programs(force=True) == shared / "link" / "bin"
