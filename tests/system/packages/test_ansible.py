"""examples/ansible on two machines: install, again without a change, upgrade node by node, and one that fails."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.jobs import check_unharmed, on_a_machine, pids, start
from tests.system.machine import Machine, OverlaidMachine
from tests.system.packages.conftest import NEWER, Built
from tests.system.packages.test_packages import version

#: It takes more than a minute: `make test-ansible` runs it.
ASKED = "MUSTER_TEST_ANSIBLE"
pytestmark = [*on_a_machine(), pytest.mark.skipif(ASKED not in os.environ, reason=f"only where {ASKED} is set")]
ROLE = Path(__file__).parents[3] / "examples/ansible"
#: A machine of systemd-nspawn has no kernel log.
CONFIG = '[health]\nskip = "kernel-log"\n'


@pytest.fixture
def second(fresh: Machine, tmp_path: Path) -> Iterator[Machine]:
    """Another machine beside `fresh`."""
    (tmp_path / "wheels").mkdir()
    with OverlaidMachine(tmp_path, tmp_path / "wheels", "second", "/usr/bin") as booted:
        yield booted


class Control:
    """The machine that controls the nodes: this one."""

    def __init__(self, folder: Path, nodes: dict[str, Machine]) -> None:
        pytest.importorskip("ansible", reason="needs ansible-core (examples/ansible/requirements.txt)")
        self._folder = folder
        host = {"ansible_connection": "machine", "ansible_python_interpreter": "/usr/bin/python3"}
        hosts = {name: host | {"ansible_host": str(node.leader)} for name, node in nodes.items()}
        # As root already: no sudo is needed, and none is there.
        group = {"hosts": hosts, "vars": {"ansible_become": False}}
        (folder / "inventory.json").write_text(json.dumps({"muster_nodes": group}))

    def play(self, book: str, package: str, *options: str, code: int = 0, limit: str = "all", **variables: str) -> str:
        """What it prints. `code`: that it must exit with; `limit`: the nodes it is for."""
        given = json.dumps({"muster_package": package, "muster_config": CONFIG} | variables)
        environ = os.environ | {
            "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection"),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_HOME": str(self._folder / "ansible"),
            "LC_ALL": "C.UTF-8",
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", f"{self._folder}/inventory.json"]
        done = subprocess.run(
            [*command, *options, "--limit", limit, "-e", given, str(ROLE / book)],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            env=environ,
            cwd=self._folder,
        )
        assert done.returncode == code, done.stdout
        return done.stdout


def is_drained(node: Machine) -> bool:
    return "drain" in json.loads(node.muster("node", "-o", "json"))


def test_node_by_node(fresh: Machine, second: Machine, built: tuple[Built, Built], tmp_path: Path) -> None:
    old, new = built
    nodes = (fresh, second)
    control = Control(tmp_path, {"a": fresh, "b": second})
    control.play("install.yml", old.deb, "--check", limit="a")
    assert fresh.sh("ls -d /opt/muster /etc/muster 2>/dev/null || true") == ""
    control.play("install.yml", old.deb)
    assert all(node.sh("cat /etc/muster/musterd.toml") == CONFIG.strip() for node in nodes)
    assert "changed=0" in control.play("install.yml", old.deb, limit="b"), "again changes nothing"

    # A copy of the package before last is removed.
    fresh.sh("touch -d '2 days ago' /var/cache/muster-agent_0.0.1.deb")
    ranks = start(fresh, "runs-on")
    said = control.play("upgrade.yml", new.deb)
    assert said.index("changed: [a]") < said.index("ok: [b]"), "the second node waits for the first"
    assert [(version(node), is_drained(node)) for node in nodes] == [(NEWER, False)] * 2
    assert pids(fresh, "runs-on") == ranks
    kept = fresh.sh("cd /var/cache; ls muster-agent*").split()
    assert kept == [Path(each.deb).name for each in built]

    # A configuration that the daemon refuses: the first node stays drained, with its jobs, and the second untouched.
    said = control.play("upgrade.yml", new.deb, code=2, muster_config="nonsense = 1\n")
    assert "a stays drained (muster: upgrade)" in said and "nonsense" in said
    assert [is_drained(node) for node in nodes] == [True, False]
    # Whose drain it is is nobody's guess: the gate is closed, and nothing is done.
    assert "not fit: drained by" in control.play("upgrade.yml", old.deb, code=2, limit="a")
    assert version(fresh) == NEWER
    fresh.muster("node", "undrain")
    # What rpm leaves of an upgrade whose script failed: the new package, and the old version in use.
    fresh.sh(f"ln -sfn {old.id} /opt/muster/current; systemctl restart musterd")
    said = control.play("upgrade.yml", new.deb, code=2, limit="a")
    assert "a stays drained (muster: upgrade) because" in said
    assert f"{new.id} is installed, but {old.id} is in use" in said
    assert is_drained(fresh)
    check_unharmed(fresh, "runs-on", ranks)
    fresh.sh("dpkg -P muster-agent; rm -r /var/lib/muster /var/log/muster")
