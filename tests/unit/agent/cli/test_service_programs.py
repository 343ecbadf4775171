"""Which environments `muster service install` takes: root runs what is in them."""

import os
import stat
from pathlib import Path

import pytest

from muster.agent.cli.commands import service, service_files
from muster.agent.cli.exits import CommandFailed
from muster.agent.cli.main import cli

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="all else belongs to another than root")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that is good, by a way through the link `shared/link`."""
    made, shared = tmp_path / "environment", tmp_path / "shared"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "musterd").touch()
    shared.mkdir()
    (shared / "link").symlink_to(made)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(shared / "link" / "bin"))
    return shared / "link" / "bin"


def test_an_environment_that_only_root_can_change_is_taken(environment: Path) -> None:
    assert service.checked_programs(force=False) == environment


def test_a_way_through_a_link_is_judged_as_well(environment: Path) -> None:
    shared = environment.parent.parent
    os.chown(shared, 0, 4711)
    shared.chmod(stat.S_IMODE(0o775))
    with pytest.raises(
        CommandFailed, match=f"{shared}: the group 4711 can write there.*: chmod g-w {shared}. Make the .*--force"
    ):
        service.checked_programs(force=False)
    assert service.checked_programs(force=True) == environment


def test_the_unit_of_a_forced_environment_starts(environment: Path) -> None:
    """musterd itself refuses it, too."""
    files = service_files.wanted_files(cli, environment, ("--trust-environment",))
    unit = files[Path("/etc/systemd/system/musterd.service")]
    assert isinstance(unit, bytes) and f"ExecStart={environment}/musterd --trust-environment\n" in unit.decode()
    plain = service_files.wanted_files(cli, environment)[Path("/etc/systemd/system/musterd.service")]
    assert isinstance(plain, bytes) and f"ExecStart={environment}/musterd\n" in plain.decode()
