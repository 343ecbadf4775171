"""`muster service install` and `uninstall`, twice, half, over each other and over what somebody changed by hand."""

import json

from tests.conftest import eventually
from tests.system.jobs import check_unharmed, main_pid, on_a_machine, pids, start, wait_up
from tests.system.machine import VENV, Machine

pytestmark = on_a_machine()

UNIT = "/etc/systemd/system/musterd.service"
NEWER = "/opt/newer"


def service(node: Machine, *argv: str, venv: str = VENV, code: int = 0) -> str:
    """What it said on both streams."""
    script = f'code=0; {venv}/bin/muster service "$@" 2>&1 || code=$?; [ $code = {code} ] || exit 99'
    return node.run("sh", "-c", script, "sh", *argv)


def version(node: Machine) -> str:
    """That the daemon tells."""
    return str(json.loads(node.muster("node", "-o", "json"))["version"])


def test_twice_is_once(node: Machine) -> None:
    before = main_pid(node)
    said = service(node, "install")
    assert said == "musterd is installed and runs: no changes were necessary"
    assert main_pid(node) == before


def test_the_configuration_is_for_operators_alone(node: Machine) -> None:
    assert node.sh("stat -c '%a %U:%G' /etc/muster/musterd.toml") == "640 root:muster"


def test_what_was_changed_by_hand(node: Machine) -> None:
    """It stays and is told of; with --force it is put aside."""
    ours = node.sh(f"cat {UNIT}")
    node.sh(f"echo '# mine' >> {UNIT}")
    before = main_pid(node)
    assert f"{UNIT} was changed by hand: leaving it unchanged" in service(node, "install")
    assert node.sh(f"tail -1 {UNIT}") == "# mine"
    assert main_pid(node) == before
    assert f"kept as {UNIT}.by-hand-" in service(node, "install", "--force")
    assert node.sh(f"cat {UNIT}") == ours
    assert node.sh(f"tail -1 {UNIT}.by-hand-*") == "# mine"
    node.sh(f"rm {UNIT}.by-hand-*")


def test_upgrade_and_rollback(node: Machine) -> None:
    """From another environment, with a job that runs; the first of its versions does not start, and changes nothing."""
    package = "lib/python3*/site-packages/muster/agent"
    node.sh(
        f"cp -a {VENV} {NEWER}; cd {NEWER}; sed -i 's,{VENV},{NEWER},' bin/muster bin/musterd pyvenv.cfg; "
        f"sed -i 's/^__version__ = .*/__version__ = \"99.1\"/' {package}/__init__.py; "
        f"sed -i 's,^Type=notify,&\\nExecStartPre=/bin/false,' {package}/units/musterd.service"
    )
    ranks = start(node, "upgraded-over")
    old, unit = version(node), node.sh(f"cat {UNIT}")
    said = service(node, "install", venv=NEWER, code=1)
    assert "restoring the previous files" in said and "systemctl restart musterd" in said
    wait_up(node)
    assert node.sh(f"cat {UNIT}") == unit
    assert node.sh("readlink /usr/local/bin/musterd") == f"{VENV}/bin/musterd"
    assert version(node) == old
    node.sh(f"sed -i /ExecStartPre/d {NEWER}/{package}/units/musterd.service")
    service(node, "install", venv=NEWER)
    assert version(node) == "99.1"
    assert node.sh("muster --version").startswith("muster 99.1 (")
    assert "99.1" in node.sh("man -P cat muster | tail -1")
    assert pids(node, "upgraded-over") == ranks
    service(node, "install")
    assert version(node) == old
    assert node.sh(f"cat {UNIT}") == unit
    check_unharmed(node, "upgraded-over", ranks)


def test_what_would_not_start_is_not_installed(node: Machine) -> None:
    """A configuration that is none is found before anything is changed, and so is an environment that others own."""
    before = main_pid(node)
    node.sh(
        f"cp -a /etc/muster/musterd.toml /tmp/good.toml; echo 'nonsense = 1' >> /etc/muster/musterd.toml; rm {UNIT}; "
        f"useradd mallory || true; chown mallory {VENV}/bin/musterd"
    )
    assert "belongs to mallory" in service(node, "install", code=5)
    node.sh(f"chown root {VENV}/bin/musterd")
    assert "nonsense" in service(node, "install", code=1)
    node.sh(f"test ! -e {UNIT}; mv /tmp/good.toml /etc/muster/musterd.toml")
    assert f"wrote {UNIT}" in service(node, "install")
    assert main_pid(node) != before


def test_uninstall(node: Machine) -> None:
    """Refused while a job runs, whether or not the daemon does; what is left then is what was there before."""
    ranks = start(node, "outlives")
    assert "jobs run: outlives" in service(node, "uninstall", code=5)
    node.run("systemctl", "stop", "musterd")
    assert "jobs run: outlives" in service(node, "uninstall", code=5)
    assert "jobs run: outlives" in service(node, "uninstall", "--purge", "--force", "--yes", code=5)
    assert node.sh(f"ls {UNIT} /var/lib/muster/jobs/outlives/journal")
    assert "jobs continue without a daemon: outlives" in service(node, "uninstall", "--force")
    node.sh(f"test ! -e {UNIT}; test ! -e /usr/local/bin/muster; kill -0 {' '.join(map(str, ranks))}")
    service(node, "install", "--no-start")
    assert node.show("musterd", "ActiveState") == "inactive"
    assert node.show("musterd", "UnitFileState") == "disabled"
    service(node, "install")
    check_unharmed(node, "outlives", ranks)

    eventually(lambda: node.show("muster-outlives.scope", "ActiveState") == "inactive", message="the scope to go")
    assert "add --yes" in service(node, "uninstall", "--purge", code=5)
    assert node.show("musterd", "ActiveState") == "active"
    service(node, "uninstall")
    assert node.sh("systemctl list-units --plain --no-legend --all 'muster*' | grep -v muster.slice || true") == ""
    assert node.sh("test ! -e /run/muster; pgrep -a muster || true") == ""
    assert node.sh("find /usr/local /etc -name '*muster*' -not -path '/etc/muster*' | grep -v wants || true") == ""
    assert node.sh("ls /var/lib/muster/jobs") == "outlives"
    assert "was not installed" in service(node, "uninstall")
    service(node, "uninstall", "--purge", "--yes")
    node.sh("test ! -e /var/lib/muster; test ! -e /var/log/muster; test ! -e /etc/muster")
    service(node, "install")
    assert node.muster("ps", "-a", "-o", "json") == '{\n  "jobs": []\n}'
