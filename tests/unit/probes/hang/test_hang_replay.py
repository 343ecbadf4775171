"""`muster hang replay` over files, pipes and damage."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.agent.cli.commands.hang import hang
from muster.agent.cli.exits import CommandFailed
from tests.corpus.measure import trace
from tests.corpus.scenarios import BY_NAME
from tests.corpus.slow import ALL as SLOW_ALL


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """A rank exits, its peers spin."""
    return [json.dumps(line) for line in trace(BY_NAME["U10"], 1)[1]]


def call(*words: object) -> int:
    import click

    try:
        code = hang.main(args=["replay", *map(str, words)], prog_name="muster hang", standalone_mode=False)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    return code or 0


def test_each_change_is_a_line_of_json(lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text("\n".join(lines) + "\n")
    assert call(file, "-o", "json") == 0
    out, err = capfd.readouterr()
    changes: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert [change["verdict"] for change in changes] == ["ALIVE", "SUSPECT", "HUNG"]
    assert set(changes[-1]) == {"t", "job", "verdict", "kind", "ranks", "confidence", "evidence"}
    assert (changes[-1]["kind"], changes[-1]["job"]) == ("spin", "job")


def test_people_see_time_evidence_and_culprit(
    lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.gz"
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert call(file) == 0
    out = capfd.readouterr().out
    assert "HUNG spin" in out
    assert "its process has ended" in out
    assert "would clear it" in out


def test_bad_lines_are_named_and_left_out(lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text("\n".join([lines[0], "{bad", "", '{"t": 1, "lost": 2}', "[]", *lines[1:]]))
    assert call(file, "-o", "json") == 1
    out, err = capfd.readouterr()
    assert "line 2: not JSON" in err
    assert "line 5: a record is a JSON object" in err
    assert err.count("; skipped") == 2
    assert [json.loads(line)["verdict"] for line in out.splitlines()][-1] == "HUNG"


def test_several_jobs_are_distinguished(lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = [json.dumps(json.loads(line) | {"job": "other"}) for line in lines]
    file = tmp_path / "f.jsonl"
    file.write_text("\n".join(line for pair in zip(lines, other, strict=True) for line in pair))
    assert call(file, "-o", "json") == 0
    jobs = [json.loads(line)["job"] for line in capfd.readouterr().out.splitlines()]
    assert jobs.count("job") == jobs.count("other") == 3


def test_settings_and_the_plain_rule(lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text("\n".join(lines))
    assert call(file, "-o", "json", "--set", "hung_s=86400", "--set", "weak_s=86400") == 0
    assert "HUNG" not in capfd.readouterr().out
    assert call(file, "-o", "json", "--rule", "plain", "--set", "plain_s=600") == 0
    assert [json.loads(line)["verdict"] for line in capfd.readouterr().out.splitlines()] == ["ALIVE", "HUNG"]


def test_slow_ranks_have_lines_of_their_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    happened, seen = trace(SLOW_ALL["L1"], 1)
    file = tmp_path / "f.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in seen))
    assert call(file, "-o", "json") == 0
    changes = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    slow = [change for change in changes if change.get("rule") == "slow"]
    assert [(change["verdict"], change["ranks"]) for change in slow] == [("SLOW", [happened.culprit]), ("EVEN", [])]
    assert {change["verdict"] for change in changes if "rule" not in change} == {"ALIVE"}
    assert call(file) == 0
    text = capfd.readouterr().out
    assert f"rank {happened.culprit} takes " in text and "no rank is slow any more" in text
    assert call(file, "--set", "slow.factor=20") == 0
    assert "SLOW" not in capfd.readouterr().out
    assert call(file, "--rule", "plain") == 0
    assert "SLOW" not in capfd.readouterr().out


def test_nothing_is_in_an_empty_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f"
    file.touch()
    assert call(file) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (("/nowhere/f",), "cannot read /nowhere/f: No such file", 1),
        (("/",), "cannot read /: ", 1),
        (("-", "--set", "hungs=3"), "--set unknown key 'hungs'", 2),
        (("-", "--set", "slow.factr=2"), "--set slow: unknown key 'factr'", 2),
        (("-", "--set", "hung_s=soon"), "--set hung_s: 'soon'", 2),
    ],
)
def test_what_cannot_be_done_is_reported(words: tuple[str, ...], says: str, code: int) -> None:
    with pytest.raises(CommandFailed) as failure:
        call(*words)
    assert says in failure.value.message
    assert failure.value.exit_code == code


def test_a_truncated_file_is_reported(lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "f.gz"
    file.write_bytes(gzip.compress("\n".join(lines).encode())[:-200])
    with pytest.raises(CommandFailed, match="damaged or truncated"):
        call(file)


def test_a_pipe_is_read_without_the_daemons_libraries(lines: list[str]) -> None:
    code = (
        "import sys; from muster.agent.cli.commands.hang import hang; "
        "hang.main(args=['replay', '-', '-o', 'json'], standalone_mode=False); "
        "sys.exit(any(name in sys.modules for name in ('grpc', 'google.protobuf', 'anyio', 'uvloop')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(lines), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"HUNG"' in done.stdout
