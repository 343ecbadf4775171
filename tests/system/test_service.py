"""The service under a real systemd, with jobs running: rules 2 and 4 of the design hold whatever the unit meets."""

import json
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.system.jobs import check_unharmed, main_pid, nursery, on_a_machine, start, wait_up
from tests.system.machine import VENV, Machine

pytestmark = on_a_machine()


def test_the_units_are_good(node: Machine) -> None:
    assert node.sh("systemd-analyze verify --man=no musterd.service muster.slice 2>&1") == ""
    assert node.show("musterd", "ActiveState") == "active"
    assert node.show("musterd", "NRestarts") == "0"
    assert "systemd-scope" in node.muster("node", "-o", "json")


def test_a_job_has_a_scope_of_its_own(node: Machine) -> None:
    ranks = start(node, "scoped")
    assert node.show("muster-scoped.scope", "ActiveState") == "active"
    assert node.show("muster-scoped.scope", "Slice") == "muster.slice"
    for pid in ranks:
        assert node.sh(f"cat /proc/{pid}/cgroup | tail -1") == "0::/muster.slice/muster-scoped.scope/ranks"
        assert node.sh(f"cat /proc/{pid}/oom_score_adj") == "0"
    (supervisor,) = node.sh("cat /sys/fs/cgroup/muster.slice/muster-scoped.scope/supervisor/cgroup.procs").split()
    # As the daemon's, which is -900 wherever systemd may set that.
    assert node.show("musterd", "OOMScoreAdjust") == "-900"
    assert node.sh(f"cat /proc/{supervisor}/oom_score_adj") == node.sh(f"cat /proc/{main_pid(node)}/oom_score_adj")
    check_unharmed(node, "scoped", ranks)
    eventually(lambda: node.show("muster-scoped.scope", "ActiveState") == "inactive", message="the scope to go")


def test_nothing_survives_a_stop(node: Machine) -> None:
    """A process that forks twice, begins a session and clears its environment, too."""
    escape = 'env -i setsid sh -c "(sleep 4711 &) ; sleep 4711" & wait'
    start(node, "escapes", script=escape)
    eventually(lambda: len(node.sh("pgrep -f 'sleep 4711' || true").split()) >= 4, message="all of them")
    node.muster("stop", "escapes", "--grace", "0s")
    assert node.sh("pgrep -f 'sleep 471[1]' || true") == ""
    assert node.job("escapes")["state"] == "JOB_STATE_STOPPED"


def test_a_successor_of_a_killed_supervisor_is_in_the_scope(node: Machine) -> None:
    ranks = start(node, "succeeded")
    folder = "/sys/fs/cgroup/muster.slice/muster-succeeded.scope/supervisor/cgroup.procs"
    before = node.sh(f"cat {folder}")
    node.sh(f"kill -9 {before}")
    eventually(lambda: node.sh(f"cat {folder}") not in ("", before), message="the successor in the scope")
    check_unharmed(node, "succeeded", ranks)


@pytest.mark.parametrize("how", ["restart", "stop and start", "SIGKILL", "daemon-reload", "kill of the nursery"])
def test_jobs_do_not_notice(node: Machine, how: str) -> None:
    job_id = f"keeps-{how.split(maxsplit=1)[0].lower()}"
    ranks = start(node, job_id)
    before = main_pid(node)
    if how == "restart":
        node.run("systemctl", "restart", "musterd")
    elif how == "stop and start":
        node.run("systemctl", "stop", "musterd")
        assert node.run(f"{VENV}/bin/muster", "ps", check=False) == ""
        node.run("systemctl", "start", "musterd")
    elif how == "SIGKILL":
        node.run("systemctl", "kill", "-s", "KILL", "musterd")
        eventually(lambda: main_pid(node) not in (0, before), 60, "another daemon")
    elif how == "daemon-reload":
        node.run("systemctl", "daemon-reload")
        node.run("systemctl", "reload", "musterd")
    else:
        node.sh(f"kill -9 {nursery(node)}")
    wait_up(node)
    assert (main_pid(node) == before) == (how in ("daemon-reload", "kill of the nursery"))
    check_unharmed(node, job_id, ranks)


def test_a_daemon_that_hangs_is_started_again(node: Machine) -> None:
    """Stopped, it feeds no watchdog."""
    node.sh("mkdir -p /run/systemd/system/musterd.service.d")
    node.sh("printf '[Service]\\nWatchdogSec=2\\n' > /run/systemd/system/musterd.service.d/quick.conf")
    node.sh("systemctl daemon-reload; systemctl restart musterd")
    try:
        ranks = start(node, "watched")
        before = main_pid(node)
        node.sh(f"kill -STOP {before}")
        eventually(lambda: main_pid(node) not in (0, before), 60, "another daemon")
        wait_up(node)
        assert "watchdog" in node.sh("journalctl -u musterd -o cat | grep -i watchdog | tail -1").lower()
        check_unharmed(node, "watched", ranks)
        hung = nursery(node)
        before = main_pid(node)
        node.sh(f"kill -STOP {hung}")
        eventually(lambda: main_pid(node) not in (0, before), 60, "another daemon, since the nursery does not answer")
        node.sh(f"kill -CONT {hung}")
    finally:
        node.sh("rm -r /run/systemd/system/musterd.service.d; systemctl daemon-reload; systemctl restart musterd")


def test_an_upgrade(node: Machine) -> None:
    """A newer wheel is installed over the running one; the job's supervisor is the old one, and goes on."""
    ranks = start(node, "upgraded")
    node.sh(f"{VENV}/bin/pip install -q --no-index --find-links /wheels --force-reinstall --no-deps muster-agent")
    node.run("systemctl", "restart", "musterd")
    wait_up(node)
    more = start(node, "newer")
    check_unharmed(node, "upgraded", ranks)
    check_unharmed(node, "newer", more)


def test_a_reboot(node: Machine) -> None:
    """An orderly one stops the jobs first, as by hand; each says why it ended, and its output is there."""
    start(node, "rebooted")
    eventually(lambda: len(node.muster("logs", "rebooted", "-r", "0").splitlines()) > 3, message="some output")
    node.reboot()
    wait_up(node)
    job = node.job("rebooted")
    assert job["state"] == "JOB_STATE_STOPPED", job
    assert "the node is being shut down" in json.dumps(job["verdict"])
    assert node.muster("logs", "rebooted", "-r", "0").splitlines()[:3] == ["0", "1", "2"]


def test_a_power_cut(node: Machine) -> None:
    """Nothing of another boot lives: the job is lost, not succeeded."""
    start(node, "cut")
    node.cut_power()
    wait_up(node)
    job = node.job("cut")
    assert job["state"] == "JOB_STATE_LOST", job
    assert "reboot" in json.dumps(job["verdict"])


def test_modes_and_owners(node: Machine) -> None:
    """What each file of a running installation is, and whose."""
    node.sh("useradd --create-home trainer || true")
    start(node, "owned", "--user", "trainer")
    found = dict(
        line.split(" ", 1)[::-1]
        for line in node.sh("find /run/muster /var/lib/muster /var/log/muster -printf '%M:%u:%g %p\\n'").splitlines()
    )
    assert found["/run/muster"] == "drwxr-xr-x:root:root"
    assert found["/run/muster/muster.sock"] == "srw-rw----:root:muster"
    nurseries = [
        mode for path, mode in found.items() if path.startswith("/run/muster/nursery") and path.endswith(".sock")
    ]
    assert nurseries and set(nurseries) == {"srw-------:root:root"}
    assert found["/var/lib/muster"] == "drwx--x--x:root:root"
    assert found["/var/lib/muster/jobs/owned/spec.json"] == "-rw-------:root:root"
    assert found["/var/lib/muster/jobs/owned/control"] == "srw-------:root:root"
    assert found["/var/lib/muster/jobs/owned/rank-0.fifo"].startswith("prw-------:trainer:")
    logs = [mode for path, mode in found.items() if Path(path).name.startswith("owned-proc-rank")]
    assert logs and all(mode.startswith("-rw-r-----:trainer:") for mode in logs)
    others = [path for path, mode in found.items() if mode[8] == "w" and not path.endswith(".sock")]
    assert others == [], "nobody else may write anywhere"
