"""Code, inputs and outputs of jobs, by file URLs: fsspec must be there, and nothing else."""

import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.supervisors.model import journal
from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually, let_through

pytest.importorskip("fsspec", reason="needs fsspec (pip install 'muster-agent[staging]')")

SUCCEEDED, FAILED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED
#: A file of so many bytes fits nowhere; it has none of them.
TOO_LARGE = 1 << 43


def start(daemon: Daemon, job_id: str, script: str = "true", **fields: Any) -> None:
    given: dict[str, Any] = {"command": ("sh", "-c", script), "ranks": 1}
    spec = job_pb2.JobSpec(job_id=job_id, **(given | fields))
    spec.restart_backoff.FromMilliseconds(10)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)


def epilog(folder: Path) -> str:
    path = folder / "end.sh"
    path.write_text(f'echo "$MUSTER_STATE $MUSTER_EXIT_CODE" >>{folder}/ended\n')
    return str(path)


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_job_gets_code_and_inputs_once_and_delivers_outputs_in_the_end(shared: Daemon, tmp_path: Path) -> None:
    """As the documents have it: the code lies in ${MA_JOB_DIR}/demo-code. The first attempt fails."""
    code, data, out, here = (tmp_path / name for name in ("demo-code", "data", "out", "here"))
    for folder in (code / "lib", data, here):
        folder.mkdir(parents=True)
    (code / "main.sh").write_text('cat lib/x; ls data; mkdir -p out; echo "$PWD" >out/told; [ $MUSTER_ATTEMPT = 1 ]\n')
    (code / "main.sh").chmod(0o755)
    (code / "lib" / "x").write_text("x of lib\n")
    (data / "part-0").write_bytes(b"0" * 100_000)
    start(
        shared, "whole", 'exec "$MA_JOB_DIR/demo-code/main.sh"', workdir=str(here), code=f"file://{code}",
        inputs={"data": f"file://{data}", "one/": f"file://{data}/part-0"}, outputs={"out": f"file://{out}"},
        max_restarts=1, epilog=epilog(tmp_path),
    )  # fmt: skip
    job = shared.wait("whole")
    assert (job.state, job.attempt, job.outputs_kept) == (SUCCEEDED, 1, False), job
    assert shared.output(job).decode().splitlines()[-2:] == ["x of lib", "part-0"]
    assert (out / "told").read_text() == f"{here}/demo-code\n"
    assert (here / "demo-code" / "one" / "part-0").read_bytes() == b"0" * 100_000
    assert f"{data} -> {here}/demo-code/data: 1 file, 100000 bytes in" in Path(job.log_path).read_text()
    assert (tmp_path / "ended").read_text() == "SUCCEEDED 0\n"
    told = [event.message for event in shared.event_list("whole") if event.kind.startswith("job.step")]
    assert told == [
        "downloading training code", "training code is local", "downloading inputs", "inputs are local",
        "uploading outputs", "outputs are delivered", "epilog begins", "epilog exited with code 0",
    ]  # fmt: skip
    kept = {"spec.json", "journal", "lock", "workspace", "explained.json"}
    eventually(lambda: {path.name for path in shared.root.job("whole").folder.iterdir()} <= kept)


def test_files_of_the_code_prepare_the_ranks(shared: Daemon, tmp_path: Path) -> None:
    """Those beside the boot file where that is asked for, as on ModelArts, in the folder above; one that is named."""
    code, here = tmp_path / "demo-code", tmp_path / "here"
    for folder in (code, here):
        folder.mkdir()
    (code / "train.py").write_text(
        "import os, sys\nprint(os.environ.get('AT'), 'packages' in os.environ.get('PYTHONPATH', ''))\n"
        "sys.exit(os.environ['MUSTER_ATTEMPT'] == '0')\n"
    )
    (code / "ma-pre-start.sh").write_text("export AT=$PWD\n")
    (code / "pip-requirements.txt").write_text("# nothing\n")
    common: dict[str, Any] = {"workdir": str(here), "command": (sys.executable, "train.py"), "max_restarts": 1}
    start(shared, "beside", code=f"file://{code}", boot_files=True, **common)
    named = str(here / "demo-code" / "ma-pre-start.sh")
    start(shared, "named", code=f"file://{code}", pre_start=named, env={"MA_JOB_DIR": str(tmp_path)}, **common)
    start(shared, "left", code=f"file://{code}", **common)
    start(shared, "here", boot_files=True, **common | {"workdir": str(code)})
    start(shared, "not", **common | {"workdir": str(code)})
    platform = {"MA_VJ_NAME": "ma-job-7", "MA_JOB_DIR": f"{tmp_path}/user-job-dir"}
    words = (sys.executable, f"{tmp_path}/user-job-dir/demo-code/train.py")
    start(shared, "platform", code=f"file://{code}", boot_files=True, env=platform, command=words, max_restarts=1)
    at = {"beside": f"{here} True", "named": f"{tmp_path} False", "left": "None False"}
    at |= {"here": f"{tmp_path} True", "not": "None False"}
    for job_id, told in (at | {"platform": f"{tmp_path}/user-job-dir True"}).items():
        job = shared.wait(job_id)
        assert job.state == SUCCEEDED, job
        lines = shared.output(job).decode().splitlines()
        assert [line for line in lines if not line.startswith("[muster")] == [told] * 2
    log = Path(shared.get("beside").log_path).read_text()
    assert f"pre_start {named}: is done" in log and f"requirements {here}/demo-code/pip-requirements.txt: begins" in log
    start(shared, "missing", code=f"file://{code}", pre_start=str(here / "demo-code" / "no.sh"), **common)
    job = shared.wait("missing")
    assert job.state == FAILED and "demo-code/no.sh" in job.verdict.summary, job


def test_what_cannot_be_copied_is_refused_before_the_job_begins(shared: Daemon, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("[s3]\n")
    keys.chmod(0o644)
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"code": "nix://bucket/code"}, "code", "nix is not a known scheme"),
        ({"inputs": {"d": "smb://host/share"}}, "inputs['d']", "needs the package smbprotocol"),
        ({"inputs": {"d": "/data/set"}}, "inputs['d']", "must be a URL, as in"),
        ({"inputs": {"d": "https://me:hunter2@host/x"}}, "inputs['d']", "staging_credentials"),
        ({"outputs": {"o": "https://host/x?sig=hunter2"}}, "outputs['o']", "nothing can be copied to https"),
        ({"outputs": {"o": "file://relative/x"}}, "outputs['o']", "must have an absolute path"),
        ({"inputs": {"x": "file:///a", "./x/": "file:///b"}}, "inputs", "names the path"),
        ({"outputs": {"x": "file:///a", "y/../x": "file:///b"}}, "outputs", "names the path"),
        ({"code": "file:///c", "staging_credentials": str(keys)}, "staging_credentials", "chmod 600"),
        ({"code": "file:///c", "staging_credentials": f"{keys}.no"}, "staging_credentials", "give a file that exists"),
    ]
    for fields, field, text in refused:
        with pytest.raises(grpc.RpcError) as error:
            start(shared, "refused", **fields)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        said = error.value.details() or ""
        assert field in said and text in said and "hunter2" not in said, said
    for option, first, second in (
        ("--input", "file:///a=x", "file:///b=./x"),
        ("--output", "x=file:///a", "x=file:///b"),
    ):
        done = shared.cli("start", option, first, option, second, "--", "true")
        assert done.returncode == 2 and "twice: give each URL a path of its own" in done.stderr, done.stderr


@pytest.mark.parametrize("trouble", ["no room", "no permission", "no such folder", "a folder in its way"])
def test_inputs_that_cannot_be_copied_leave_nothing_behind(shared: Daemon, tmp_path: Path, trouble: str) -> None:
    """The first input alone could be copied; nothing of it is there in the end."""
    good, bad, here = tmp_path / "good", tmp_path / "bad", tmp_path / "here"
    for folder in (good, here):
        folder.mkdir()
    (good / "part-0").write_text("0")
    fields: dict[str, Any] = {}
    said = ""
    if trouble == "no room":
        with open(bad, "wb") as file:
            try:
                file.truncate(TOO_LARGE)
            except OSError:
                pytest.skip("the file system has no files of 8 TiB")
        said = f"no room for {TOO_LARGE + 1} bytes"
    elif trouble == "no permission":
        if os.geteuid():
            pytest.skip("only root starts jobs of other users")
        if not all(
            folder.stat().st_mode & stat.S_IXOTH
            for path in (sys.executable, os.path.realpath(sys.executable))
            for folder in Path(path).parents
        ):
            pytest.skip("other users may not run this Python")
        bad.write_text("bad")
        let_through(tmp_path)
        let_through(shared.folder)
        fields, said = {"user": "nobody"}, f"user nobody may not write into {here}"
    elif trouble == "no such folder":
        said = f"{bad}: no such file or directory"
    else:
        bad.write_text("bad")
        (here / "b" / "bad").mkdir(parents=True)
        said = f"{here}/b/bad: is a folder, but a file is to be copied there: give another path"
    before = below(here)
    job_id = "bad-" + trouble.replace(" ", "-")
    inputs = {"a": f"file://{good}", "b/": f"file://{bad}"}
    start(shared, job_id, f"touch {tmp_path}/ran", workdir=str(here), inputs=inputs, **fields)
    job = shared.wait(job_id)
    assert job.state == FAILED and said in job.verdict.summary and "no rank was started" in job.verdict.summary, job
    elsewhere = job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    assert (job.verdict.recommendation == elsewhere) == (trouble == "no room"), job.verdict
    assert below(here) == before and not (here / "a").exists() and not (tmp_path / "ran").exists()
    [told] = [e.message for e in shared.event_list(job_id) if e.kind == "job.step_ended"]
    assert told.startswith("the inputs were not downloaded: ") and said in told


def test_outputs_that_cannot_be_delivered_are_kept_and_reported(make_daemon: Any, tmp_path: Path) -> None:
    """The others are delivered. Neither age nor number removes the job's folder, where they may be."""
    daemon = make_daemon("[jobs]\nkeep_ended = 1\n")
    out = tmp_path / "out"
    wanted = {"gone": f"file://{tmp_path}/no", "there": f"file://{out}"}
    start(daemon, "kept", "echo result >there", outputs=wanted, epilog=epilog(tmp_path))
    job = daemon.wait("kept")
    assert (job.state, job.verdict.exit_code, job.outputs_kept) == (FAILED, 125, True), job
    assert "exited with code 0, and the outputs were not delivered" in job.verdict.summary
    assert "gone: no such file or directory" in job.verdict.summary and "gone" in job.warnings[0]
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_FAIL
    assert out.read_text() == "result\n" and (tmp_path / "ended").read_text() == "FAILED 125\n"
    assert "Copy them from this node: gone." in eventually(lambda: daemon.cli("why", "kept").stdout)
    assert re.search(r"outputs +not delivered: gone$", daemon.cli("status", "kept").stdout, re.MULTILINE)
    daemon.kill()
    daemon.start()
    assert daemon.get("kept").outputs_kept
    [last] = [r for r in journal.read(daemon.root.job("kept").journal).records if r["kind"] == "ended"]
    assert last["kept"] is True


def test_outputs_of_a_failed_job_are_delivered_where_that_is_asked_for(shared: Daemon, tmp_path: Path) -> None:
    for always in (False, True):
        out = tmp_path / f"out-{always}"
        job_id = f"fails-{always}"
        start(shared, job_id, "echo x >x; exit 3", outputs={"x": f"file://{out}"}, output_always=always)
        job = shared.wait(job_id)
        assert (job.state, job.verdict.exit_code, job.outputs_kept) == (FAILED, 3, False), job
        assert out.exists() == always
