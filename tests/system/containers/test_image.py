"""What is in the images, and what is not."""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.fakes.cards import FakeCards
from tests.system.containers.engine import IMAGE, Engine
from tests.system.containers.marks import MARKS

pytestmark = MARKS


def test_its_size_and_contents(engine: Engine) -> None:
    said = re.search(r"^localhost/muster: (\d+) MB of 150 at most$", engine.made, re.MULTILINE)
    assert said is not None, engine.made
    size = int(engine.podman("image", "inspect", "--format", "{{.Size}}", IMAGE).stdout)
    assert abs(size / 1e6 - int(said[1])) < 1 and size < 150e6
    script = """
    set -e; id -u; muster --version; command -v python3
    for tool in pip apt-get dpkg perl gcc cc strip; do ! command -v $tool; done
    cd /opt/muster/lib/python3*/site-packages
    ls -d pip* 2>/dev/null || echo none
    python3 - <<'END'
from pathlib import Path
from importlib.util import cache_from_source
print([str(path) for path in Path('muster').rglob('*.py') if not Path(cache_from_source(path)).exists()])
END
    grep -c '^Package: python3$' /var/lib/dpkg/status; ls /usr/share/man /usr/share/locale 2>/dev/null || echo none
    """
    seen = engine.run(IMAGE, "sh", "-c", script)
    assert seen.returncode == 0, seen
    user, version, python, pip, uncompiled, record, pages = seen.stdout.splitlines()
    assert version.startswith("muster ") and (user, python) == ("65532", "/usr/bin/python3")
    assert (pip, uncompiled, record, pages) == ("none", "[]", "1", "none")


def test_its_health_check_and_command(engine: Engine) -> None:
    found = json.loads(engine.podman("image", "inspect", IMAGE).stdout)[0]
    assert found["Healthcheck"]["Test"] == ["CMD", "muster", "check", "--gate"], found
    assert found["Config"]["Cmd"] == ["musterd", "--config", "/etc/muster/musterd.toml"]
    assert found["Config"]["User"] == "65532:65532"


@pytest.mark.parametrize("root", ["its own folders", "MUSTER_ROOT"])
def test_its_daemon_is_healthy_without_rights(engine: Engine, root: str) -> None:
    """As the page starts it: such a container may not read the kernel's log."""
    places = () if root == "its own folders" else ("--tmpfs", "/muster:mode=1777", "-e", "MUSTER_ROOT=/muster")
    with engine.container("--cap-drop", "all", "--shm-size", "16m", *places, IMAGE) as daemon:
        daemon.wait_up()
        eventually(daemon.healthy, 120, f"the health check to say fit: {daemon.exec('muster', 'check', '--gate')}")


def test_on_ascends_base_the_driver_of_the_host_is_used(engine: Engine, ascend: str, tmp_path: Path) -> None:
    """A fake one, where the host's is mounted."""
    with FakeCards.for_test(tmp_path, "ascend", 2) as cards:
        library = Path(cards.env["LD_LIBRARY_PATH"].split(":")[0], "libdcmi.so")
        there = "/usr/local/Ascend/driver/lib64/driver/libdcmi.so"
        mounted = ["-v", f"{library}:{there}:ro", "-v", f"{tmp_path}:{tmp_path}"]
        with engine.container(*mounted, "-e", f"MUSTER_FAKE_CARDS={cards.env['MUSTER_FAKE_CARDS']}", ascend) as agent:
            agent.wait_up()
            eventually(lambda: agent.muster("node").count("Ascend") == 2, 60, "both cards to be listed")
            assert agent.exec("sh", "-c", "command -v python3; id -u").stdout.split()[-1] == "0"
            gate = agent.exec("muster", "check", "--gate").stdout
            assert "KERNEL_LOG_UNREADABLE" not in gate, gate
