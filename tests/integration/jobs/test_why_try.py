"""`muster why --try`: signatures of one's own are checked, and held against a log, without a daemon."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import BIN

GOOD = """
[[signature]]
id = "our-license-server"
kind = "network"
match = ['LICENSE-[0-9]{1,4}: no seat is free']
cause = "The license server had no seat left."
next = "Ask the license team."
priority = 80
"""
LOG = "step 1\nLICENSE-42: no seat is free\nConnectionRefusedError: [Errno 111] Connection refused\n"


def try_it(*args: object, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "muster"), "why", "--try", *map(str, args)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(GOOD)
    return path


def test_a_good_file(own: Path):
    done = try_it(own)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["our-license-server", "network", "root", "80"]


def test_what_a_log_shows(own: Path, tmp_path: Path):
    log = tmp_path / "log.txt"
    log.write_text(LOG)
    done = try_it(own, log, "-o", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["line"], one["signature"], one["own"]) for one in found] == [
        (2, "our-license-server", True),
        (3, "connection-refused", False),
    ]
    assert "LICENSE-42: no seat is free" in try_it(own, "-", text=LOG).stdout
    silent = try_it(own, "-", text="all is well\n")
    assert (silent.returncode, silent.stdout) == (0, "") and "no signature matches" in silent.stderr


def test_a_signature_that_replaces_musters(own: Path):
    own.write_text(GOOD.replace("our-license-server", "connection-refused"))
    found = [json.loads(line) for line in try_it(own, "-", "-o", "json", text=LOG).stdout.splitlines()]
    assert [(one["line"], one["signature"], one["own"]) for one in found] == [
        (2, "connection-refused", True),
        (3, "exception-line", False),  # muster's own for that line does not count any more
    ]


def test_what_is_wrong_is_named_and_the_rest_counts(own: Path):
    own.write_text(GOOD + GOOD.replace("our-license-server", "bad").replace("[0-9]{1,4}", ".*"))
    done = try_it(own, "-", text=LOG)
    assert done.returncode == 1 and "LICENSE-42" in done.stdout
    assert done.stderr.startswith(f"muster: {own}: bad: skipped: ") and done.stderr.count("\n") == 1


def test_files_that_cannot_be_read(own: Path, tmp_path: Path):
    gone = tmp_path / "none"
    done = try_it(gone)
    assert done.returncode == 1 and done.stderr == f"muster: {gone}: cannot be read: No such file or directory\n"
    done = try_it(own, gone)
    assert done.returncode == 2 and done.stderr == f"muster: {gone}: cannot be read: No such file or directory\n"
