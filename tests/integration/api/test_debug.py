"""`muster debug bundle`: all that is needed, nothing that is secret."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from muster.agent.cli.commands import debug
from muster.supervisors.model import journal
from tests.conftest import BIN, Daemon

SECRET = "planted-4711"


def bundle(root: Path, file: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [BIN / "muster", "--root", root, "debug", "bundle", file], capture_output=True, text=True, check=False
    )


def contents(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]  # all are files


def test_a_bundle_tells_much_and_no_secret(daemon: Daemon, tmp_path: Path) -> None:
    printing = ("--env", f"TOKEN={SECRET}", "--", "sh", "-c", "echo $TOKEN; exit $0")
    for name, code in (("told", 0), ("failed", 3)):
        run = daemon.cli("run", "--job-id", name, *printing, str(code))
        assert run.returncode == code, run.stderr
    again = daemon.cli("run", "--job-id", "again", "--max-restarts", "1", "--restart-backoff", "0", *printing, "3")
    assert again.returncode == 3, again.stderr
    stopped = daemon.cli("stop", "told", "--reason", f"see HTTPS://u:{SECRET}@h/x")
    assert stopped.returncode == 0, stopped.stderr
    assert SECRET in daemon.get("failed").verdict.last_lines, "what is left out is there"
    with open(daemon.root.job("told").journal, "ab") as file:
        file.write(f"00000000 {SECRET}\n".encode())
    done = bundle(daemon.folder, tmp_path / "b.tar.gz")
    assert done.returncode == 0, done.stderr
    assert os.stat(tmp_path / "b.tar.gz").st_mode & 0o777 == 0o600
    found = contents(tmp_path / "b.tar.gz")
    for name in ("version.txt", "node.json", "jobs.json", "events.json"):
        assert found[f"muster-debug/{name}"]
    assert b"told" in found["muster-debug/jobs.json"]
    (damaged,) = [data for name, data in found.items() if name.endswith("jobs/told/journal")]
    assert b"left out" in damaged
    (of_failed,) = [data for name, data in found.items() if name.endswith("jobs/failed/journal")]
    assert b'"ended"' in of_failed and b"digest" not in of_failed
    assert not [name for name, data in found.items() if SECRET.encode() in data]
    digests = {daemon.get(name).spec_digest.encode() for name in ("failed", "again")}
    assert not [name for name, data in found.items() if any(digest in data for digest in digests)]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (b"https://hooks.example/t0ken", b"https://hooks.example/..."),
        (b"https://hooks.example:8443?t0ken", b"https://hooks.example:8443/..."),
        (b"https://u:t0ken@h/x", b"https://h/..."),
        (b"HTTPS://u:t0ken@h/x", b"HTTPS://h/..."),
        (b"https://u:t0ken@t0ken@h", b"https://h/..."),
        (b"https://u:t0ken/t0ken@h", b"https://..."),
        (b"https://u:t0ken?t0ken@h#y", b"https://..."),
        (b"https://u:t0ken'd@h/x", b"https://h/..."),
        (rb"https://u:t0\"ken@h/x", b"https://..."),
        (b"git+ssh://u:t0ken@[::1]:22/t0ken", b"git+ssh://[::1]:22/..."),
        (b"https://u:t0ken", b"https://u/..."),
    ],
)
def test_of_a_url_scheme_and_host_are_shown(url: bytes, told: bytes) -> None:
    line = b'{"said": "see %s", "n": 1}'
    assert debug.hosts_only(line % url) == line % told
    assert debug.hosts_only(b"url = '%s'" % url).count(b"t0ken") == 0


def test_records_that_are_not_as_they_were_written_are_left_out() -> None:
    whole = journal.encode({"n": 0, "kind": "ended", "verdict": {"summary": "s", "last_lines": ["secret"]}})
    told = debug.told_journal(whole[30:] + whole.replace(b"secret", b"public") + whole + whole[:-9])
    assert told.splitlines(keepends=True)[2] == journal.encode({"n": 0, "kind": "ended", "verdict": {"summary": "s"}})
    assert told.count(b"left out") == 3 and b"secret" not in told and b"public" not in told


def test_it_works_without_a_daemon_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    done = bundle(tmp_path / "root", tmp_path / "b.tar.gz")
    assert done.returncode == 0
    assert "no daemon" in done.stderr
    again = bundle(tmp_path / "root", tmp_path / "b.tar.gz")
    assert again.returncode == 1
    assert "File exists" in again.stderr
