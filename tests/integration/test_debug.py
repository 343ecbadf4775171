"""`muster debug bundle`: all that is needed, nothing that is secret."""

import os
import subprocess
import tarfile

from tests.conftest import BIN, Daemon

SECRET = "planted-4711"


def bundle(root, file):
    return subprocess.run(
        [BIN / "muster", "--root", root, "debug", "bundle", file], capture_output=True, text=True, check=False
    )


def test_a_bundle_tells_much_and_no_secret(daemon: Daemon, tmp_path):
    run = daemon.cli("run", "--job-id", "told", "--env", f"TOKEN={SECRET}", "--", "sh", "-c", "echo $TOKEN")
    assert run.returncode == 0, run.stderr
    done = bundle(daemon.folder, tmp_path / "b.tar.gz")
    assert done.returncode == 0, done.stderr
    assert os.stat(tmp_path / "b.tar.gz").st_mode & 0o777 == 0o600
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        contents = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]  # all are files
    for name in ("version.txt", "node.json", "jobs.json", "events.json"):
        assert contents[f"muster-debug/{name}"]
    assert b"told" in contents["muster-debug/jobs.json"]
    assert any(name.endswith("jobs/told/journal") for name in contents)
    assert not [name for name, data in contents.items() if SECRET.encode() in data]


def test_it_works_without_a_daemon_and_overwrites_nothing(tmp_path):
    (tmp_path / "root").mkdir()
    done = bundle(tmp_path / "root", tmp_path / "b.tar.gz")
    assert done.returncode == 0
    assert "no daemon" in done.stderr
    again = bundle(tmp_path / "root", tmp_path / "b.tar.gz")
    assert again.returncode == 1
    assert "File exists" in again.stderr
