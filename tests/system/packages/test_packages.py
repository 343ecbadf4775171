"""The .deb and the .rpm on a machine with a real systemd: installed, upgraded and removed while jobs run."""

import json
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.system.jobs import check_unharmed, main_pid, on_a_machine, pids, start, wait_up
from tests.system.machine import Machine
from tests.system.packages.conftest import NEWER, Built

pytestmark = on_a_machine()


def version(node: Machine) -> str:
    """That the daemon tells."""
    return str(json.loads(node.muster("node", "-o", "json"))["version"])


def versions(node: Machine) -> set[str]:
    """The folders that run, or could."""
    return set(node.sh("cd /opt/muster; find . -mindepth 2 -maxdepth 2 -name package-id -printf '%h\n'").split())


def dpkg(node: Machine, *argv: str) -> str:
    return node.run("sh", "-c", 'dpkg "$@" 2>&1', "dpkg", *argv, timeout=300)


#: Whether the package's version is the one in use.
CHECK = "/opt/muster/package/maintain check"


def failed(node: Machine, command: str) -> str:
    """What a command prints that must fail."""
    return node.sh(f"{command} 2>&1 && exit 1 || true")


def test_a_deb_under_running_jobs(fresh: Machine, built: tuple[Built, Built]) -> None:
    old, new = built
    first, second = (f"/packages/{Path(each.deb).name}" for each in built)
    assert "libstdc++6" in fresh.sh(f"dpkg-deb -f {first} Depends")
    dpkg(fresh, "-i", first)
    wait_up(fresh)
    assert fresh.sh("systemctl is-enabled musterd") == "enabled"
    assert fresh.sh("stat -c '%a %U:%G' /etc/muster/musterd.toml") == "640 root:muster"
    assert fresh.sh("muster --version") == fresh.sh(f"/opt/muster/{old.id}/bin/muster --version")
    assert fresh.sh("man -w muster-logs musterd").split() == [
        "/usr/share/man/man1/muster-logs.1.gz",
        "/usr/share/man/man8/musterd.8.gz",
    ]
    assert fresh.run("bash", "-c", ". /usr/share/bash-completion/completions/muster; complete -p muster")
    assert fresh.run("zsh", "-fc", "autoload -U compinit; compinit -D; echo $_comps[muster]") == "_muster"
    assert fresh.run("fish", "-c", "complete -C 'muster lo'").split()[0] == "logs"
    refused = fresh.sh(f"/opt/muster/{old.id}/bin/muster service install 2>&1 || true")
    assert "the package muster-agent runs musterd" in refused

    # An upgrade: what the old version's supervisors run stays, and the package is whole.
    ranks = start(fresh, "upgraded-over")
    before = main_pid(fresh)
    dpkg(fresh, "-i", second)
    assert version(fresh) == NEWER and main_pid(fresh) != before
    assert pids(fresh, "upgraded-over") == ranks
    assert versions(fresh) == {f"./{old.id}", f"./{new.id}"}
    assert fresh.sh("ls /opt/muster/package").split() == [new.id, "maintain"]
    assert dpkg(fresh, "-V", "muster-agent") == "" and fresh.sh(CHECK) == ""

    # Back, while the configuration is none: nothing is changed until it is one.
    before = main_pid(fresh)
    fresh.sh("cp -a /etc/muster/musterd.toml /tmp/good.toml; echo 'nonsense = 1' >> /etc/muster/musterd.toml")
    assert f"so {new.id} stays in use" in failed(fresh, f"dpkg -i {first}")
    assert "`dpkg --configure -a`" in failed(fresh, CHECK)
    assert main_pid(fresh) == before and version(fresh) == NEWER
    fresh.sh("mv /tmp/good.toml /etc/muster/musterd.toml")
    # Where the node's policy forbids restarts, the administrator does it.
    fresh.sh("echo 'exit 101' > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d")
    dpkg(fresh, "--configure", "-a")
    assert "runs another version. Run `systemctl restart musterd`" in failed(fresh, CHECK)
    fresh.sh("rm /usr/sbin/policy-rc.d; systemctl restart musterd")
    assert fresh.sh(CHECK) == "" and version(fresh) != NEWER
    check_unharmed(fresh, "upgraded-over", ranks)

    # A removal ends no job, and keeps what they and people need; the next installation finds them.
    ranks = start(fresh, "outlives")
    assert "jobs continue without a daemon: outlives" in dpkg(fresh, "-P", "muster-agent")
    fresh.sh(f"kill -0 {' '.join(map(str, ranks))}; ls /opt/muster/{old.id}/bin/python")
    fresh.sh("ls /var/lib/muster/jobs/outlives/journal /var/log/muster/outlives*")
    assert fresh.sh("find /etc/systemd /usr/lib/systemd /usr/bin -name 'muster*'") == ""
    dpkg(fresh, "-i", second)
    check_unharmed(fresh, "outlives", ranks)
    # With its last process the old version goes, at the next start at the latest.
    left = [new.id, "current", "package"]
    eventually(lambda: fresh.sh("systemctl restart musterd; ls /opt/muster").split() == left, 60, "the old one to go")

    said = dpkg(fresh, "-P", "muster-agent")
    assert fresh.sh("systemctl list-units --all --no-legend 'muster*'") == ""
    assert "/var/log/muster stays" in said
    fresh.sh("test ! -e /opt/muster; test ! -e /run/muster; test ! -e /etc/muster; ls /var/log/muster/outlives*")
    assert fresh.sh("stat -c '%a %U:%G' /opt") == "755 root:root", "the node's, although it is empty"
    assert fresh.sh("pgrep -a muster || true; find /usr /etc -name '*muster*'") == ""


def test_an_rpm_under_running_jobs(fresh: Machine, built: tuple[Built, Built]) -> None:
    """With rpm's own order of scripts and removals, which is not dpkg's."""
    old, new = built
    first, second = (f"/packages/{Path(each.rpm).name}" for each in built)
    if fresh.sh("command -v rpm || true") == "":
        pytest.skip("needs rpm")

    def rpm(*argv: str) -> str:
        """Without dependencies: it is dpkg that knows what is here."""
        return fresh.run("sh", "-c", 'rpm --nodeps "$@" 2>&1', "rpm", *argv, timeout=300)

    rpm("-i", first)
    wait_up(fresh)
    assert version(fresh) != NEWER
    assert fresh.sh("rpm -V --nodeps muster-agent") == ""
    required = fresh.sh("rpm -qR muster-agent")
    assert "/usr/bin/python3" in required and "libstdc++.so.6()(64bit)" in required
    ranks = start(fresh, "in-an-rpm")
    rpm("-U", second)
    assert version(fresh) == NEWER
    assert pids(fresh, "in-an-rpm") == ranks
    assert versions(fresh) == {f"./{old.id}", f"./{new.id}"}
    assert fresh.sh("ls /opt/muster/package").split() == [new.id, "maintain"]

    # Back, while the configuration is none: rpm takes that for a success, and the package's check does not.
    before = main_pid(fresh)
    fresh.sh("cp -a /etc/muster/musterd.toml /tmp/good.toml; echo 'nonsense = 1' >> /etc/muster/musterd.toml")
    assert f"so {new.id} stays in use" in rpm("-U", "--oldpackage", first)
    assert main_pid(fresh) == before and version(fresh) == NEWER
    told = f"{old.id} is installed, but {new.id} is in use"
    assert told in failed(fresh, CHECK)
    assert told in failed(fresh, "rpm --nodeps -V muster-agent")
    assert "nonsense" in failed(fresh, "/opt/muster/package/maintain installed")
    fresh.sh("mv /tmp/good.toml /etc/muster/musterd.toml; /opt/muster/package/maintain installed")
    assert fresh.sh(f"{CHECK}; rpm --nodeps -V muster-agent") == "" and version(fresh) != NEWER
    assert pids(fresh, "in-an-rpm") == ranks

    assert "jobs continue without a daemon: in-an-rpm" in rpm("-e", "muster-agent")
    rpm("-i", second)
    check_unharmed(fresh, "in-an-rpm", ranks)
    rpm("-e", "muster-agent")
    assert fresh.sh("pgrep -a muster || true; find /usr /etc -name '*muster*' -not -path '/etc/muster*'") == ""
