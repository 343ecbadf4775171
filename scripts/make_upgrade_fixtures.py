"""Makes tests/fixtures/<name>/ from the source of a release: its packages, and state and logs that it wrote.

    git archive <commit> | tar -x -C <folder>
    python scripts/make_upgrade_fixtures.py <folder> <version>-<commit>

The packages are made small: without docstrings, comments, type stubs and the commands. All else is as it was.
"""

import ast
import getpass
import io
import lzma
import os
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from muster.v1 import job_pb2, node_pb2
from tests.conftest import eventually
from tests.integration.install.old_release import FIXTURES, Node, Release, nodes

#: So long is the release watched before its state is taken, so that there is a history, in seconds.
HISTORY_S = 5.0
#: No path of the machine that makes them is to be in the fixtures.
ROOT = Path("/tmp/muster-fixture")
PACKAGES = ("agent", "probes", "proto/muster", "supervisors")
CONFIG = """
[cards]
slots = 2
[notify]
webhook = "http://127.0.0.1:9/hook"
"""


def main(source: Path, name: str) -> None:
    target = FIXTURES / name
    target.mkdir(parents=True, exist_ok=True)
    _pack(target / "packages.tar.xz", _stripped(source))
    with tempfile.TemporaryDirectory() as folder:
        release = Release(target / "packages.tar.xz", Path(folder))
        ROOT.mkdir()
        try:
            with nodes(lambda: ROOT) as make:
                _live(make(CONFIG), release)
                _pack(target / "state.tar.xz", _state(source))
        finally:
            shutil.rmtree(ROOT)
    for path in sorted(target.iterdir()):
        print(f"{path}: {path.stat().st_size} bytes")


def _stripped(source: Path) -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        for path in sorted((source / package).rglob("*")):
            name = path.relative_to(source)
            if path.suffix not in (".py", ".toml") or name.is_relative_to("agent/cli"):
                continue
            data = path.read_bytes()
            yield str(name), _small(data.decode()).encode() if path.suffix == ".py" else data


def _small(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body[:1] = [ast.Pass()] if len(node.body) == 1 else []
    return ast.unparse(tree)


def _state(source: Path) -> Iterator[tuple[str, bytes]]:
    """Of what is in state and log folder, the files; nothing of this machine may be in them."""
    ours = [socket.gethostname(), str(source), str(Path(__file__).parent.parent), sys.prefix, str(Path.home())]
    if getpass.getuser() != "root":
        ours.append(getpass.getuser())
    for folder in ("state", "log"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.name != "nursery.log":
                data = path.read_bytes()
                found = [word for word in ours if len(word) > 1 and word.encode() in data]
                if found:
                    raise SystemExit(f"{path}: has {', '.join(found)} of this machine in it")
                yield str(path.relative_to(ROOT)), data


def _pack(path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o600 if name.startswith("state") else 0o644
            archive.addfile(info, io.BytesIO(data))
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def _live(node: Node, release: Release) -> None:
    """A while in the life of a node: jobs of all ends, and one that runs when the machine goes down."""
    daemon = node.start_old(release)
    daemon.run("sh", "-c", "echo to stdout; echo to stderr >&2", job_id="good", ranks=2, labels={"team": "vision"})
    daemon.run("sh", "-c", 'echo "rank $RANK"; [ $RANK = 1 ] && exit 3; sleep 100', job_id="failed", ranks=2)
    daemon.run("sh", "-c", "kill -SEGV $$", job_id="signalled", ranks=0, cards=job_pb2.CardRequest(count=1))
    daemon.run("/nonexistent/program", job_id="absent")
    spec = job_pb2.JobSpec(job_id="restarted", command=["sh", "-c", "echo $MUSTER_ATTEMPT; exit 4"], max_restarts=1)
    spec.restart_backoff.FromMilliseconds(1)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=30)
    for job in ("good", "failed", "signalled", "absent", "restarted"):
        daemon.wait(job)
    daemon.run("sleep", "1000", job_id="stopped")
    daemon.until_running("stopped")
    daemon.stop("stopped", grace_s=1, reason="enough")
    daemon.wait("stopped")
    daemon.run("sh", "-c", "echo begun; exec sleep 1000", job_id="interrupted")
    eventually(lambda: daemon.output(daemon.get("interrupted")))
    pid = daemon.get("interrupted").ranks[0].pid
    daemon.nodes.Drain(node_pb2.DrainRequest(reason="a fan is loud"), timeout=10)
    time.sleep(HISTORY_S)
    daemon.kill(signal.SIGTERM)
    for doomed in (*node.nurseries(), node.supervisor_pid("interrupted"), pid):
        os.kill(doomed, signal.SIGKILL)
    for path in node.root.jobs.glob("*/*.fifo"):
        path.unlink()
    if not (node.root.state / "notify.json").exists():
        raise SystemExit("no notification waits: the release wrote no notify.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
