"""Copies from and to servers: one that breaks off or holds back, and one of S3; kills in the middle of a copy."""

import functools
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2

from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually
from tests.integration.staging import servers

for needed in ("aiohttp", "s3fs", "moto"):
    pytest.importorskip(needed, reason=f"needs {needed} (examples/staging/requirements.txt)")
pytestmark = pytest.mark.slow

SUCCEEDED, FAILED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED
#: What one request of fsspec asks for, as muster uses it.
BLOCK = 8 << 20
CONTENT = os.urandom(BLOCK + BLOCK // 2)
SECRET = "hunter2-of-the-server"


@pytest.fixture
def web() -> Iterator[servers.Web]:
    with servers.web(CONTENT) as server:
        yield server


def start(daemon: Daemon, job_id: str, here: Path, command: tuple[str, ...] = ("true",), **fields: Any) -> None:
    given: dict[str, Any] = {"staging_tries": 3, "workdir": str(here), "ranks": 1}
    spec = job_pb2.JobSpec(job_id=job_id, command=command, **(given | fields))
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)


def step_pid(daemon: Daemon, job_id: str, number: int = 1) -> int:
    """Of the step's process of this number, which may ask its server before the daemon hears of it."""

    def told() -> list[Any]:
        return [event for event in daemon.event_list(job_id) if event.kind == "job.step"][number - 1 :]

    return int(eventually(told, message=f"step {number} of {job_id} is known")[0].attributes["pid"])


def parts(folder: Path) -> list[Path]:
    return list(folder.glob(".*.part"))


def test_a_server_that_breaks_off_is_asked_for_the_rest(shared: Daemon, tmp_path: Path, web: servers.Web) -> None:
    """In the middle of an answer: what it had sent counts. A signature does not get into the file's name."""
    web.breaks = [100_000, BLOCK, 1000]
    start(shared, "breaks", tmp_path, inputs={"data/": f"{web.url}?sig={SECRET}=/"})
    job = shared.wait("breaks")
    assert job.state == SUCCEEDED and (tmp_path / "data" / "file").read_bytes() == CONTENT, job
    assert web.offsets == [0, 100_000, 100_000 + BLOCK, 101_000 + BLOCK], "it went on at the byte where it was"
    own = Path(job.log_path).read_text()
    assert "trying again in 1 s" in own and SECRET not in own + str(job) and not parts(tmp_path)
    assert not any(SECRET in str(event) for event in shared.event_list("breaks"))


def test_a_file_that_changes_is_an_error(shared: Daemon, tmp_path: Path, web: servers.Web) -> None:
    web.go.clear()
    web.holds_from = BLOCK
    start(shared, "changes", tmp_path, inputs={"data": web.url})
    eventually(lambda: BLOCK in web.offsets)
    eventually(
        lambda: "inputs: 0 of 1 files, 8.0MiB of 12.0MiB" in " ".join(shared.cli("status", "changes").stdout.split())
    )
    web.tag = "second"
    seen = len(web.offsets)
    web.go_once()
    eventually(lambda: BLOCK in web.offsets[seen:])
    web.tag = "third"
    web.go.set()
    job = shared.wait("changes")
    assert job.state == FAILED and "changed while it was copied" in job.verdict.summary, job
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("killed", ["supervisor", "daemon", "both", "copy"])
def test_kills_in_the_middle_of_a_copy(make_daemon: Any, tmp_path: Path, web: servers.Web, killed: str) -> None:
    """The copy is a process of its own, which goes on. If it is killed itself, another one goes on where it was."""
    daemon = make_daemon()
    web.go.clear()
    web.holds_from = BLOCK
    start(daemon, "x", tmp_path, ("cmp", "data", "again"), inputs={"data": web.url, "again": web.url})
    eventually(lambda: BLOCK in web.offsets)
    copy, supervisor = step_pid(daemon, "x"), daemon.supervisor_pid("x")
    eventually(lambda: any(part.stat().st_size == BLOCK for part in parts(tmp_path)))
    if killed in ("supervisor", "both"):
        os.kill(supervisor, signal.SIGKILL)
    if killed in ("daemon", "both"):
        daemon.kill()
        daemon.start()
    if killed == "copy":
        os.kill(copy, signal.SIGKILL)
        eventually(lambda: web.offsets.count(BLOCK) > 1)
    if killed in ("supervisor", "both"):
        eventually(lambda: daemon.supervisor_pid("x") not in (0, supervisor))
    assert alive(copy) == (killed != "copy")
    web.go.set()
    job = daemon.wait("x")
    assert job.state == SUCCEEDED and (tmp_path / "data").read_bytes() == CONTENT, job
    assert web.offsets.count(0) == 2, "no byte was asked for twice that was there"
    assert not parts(tmp_path)
    told = [event.message for event in daemon.event_list("x") if event.kind == "job.step_ended"]
    assert told[-1] == "inputs are local" and len(told) == (2 if killed == "copy" else 1)


def _asked(web: servers.Web, times: int) -> bool:
    return web.offsets.count(BLOCK) == times


def test_a_copy_that_is_killed_again_and_again_and_one_out_of_time(
    shared: Daemon, tmp_path: Path, web: servers.Web
) -> None:
    """Neither is a fault of the job: another try may help, and the verdict says what happened."""
    web.go.clear()
    web.holds_from = BLOCK
    start(shared, "killed", tmp_path, inputs={"data": web.url})
    for number in range(1, 4):
        eventually(functools.partial(_asked, web, number))
        os.kill(step_pid(shared, "killed", number), signal.SIGKILL)
    job = shared.wait("killed")
    assert job.state == FAILED and re.match("inputs .* was killed by SIGKILL: ", job.verdict.summary), job
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE
    told = [event.message for event in shared.event_list("killed") if event.kind == "job.step_ended"]
    assert told[-1].startswith("the inputs were not downloaded: was killed by SIGKILL: ")
    fields: dict[str, Any] = {"inputs": {"x": "http://127.0.0.1:1/x"}, "staging_tries": 100}
    for seconds in (2, 10, 60):  # the longer ones for a machine so busy that the copy has not begun by then
        start(shared, f"silent-{seconds}", tmp_path, staging_timeout=duration_pb2.Duration(seconds=seconds), **fields)
        job = shared.wait(f"silent-{seconds}")
        assert job.state == FAILED and job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE, job
        assert f" did not end within {seconds} s" in job.verdict.summary, job
        if "ClientConnector" in job.verdict.summary:
            break
    assert f"inputs: did not end within {seconds} s: http://127.0.0.1:1/x: ClientConnector" in job.verdict.summary, job


def keys(folder: Path, text: str) -> str:
    path = folder / "keys.toml"
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def test_keys_are_shown_nowhere(make_daemon: Any, tmp_path: Path, web: servers.Web) -> None:
    """Nor in an error of the server's."""
    daemon = make_daemon()
    web.password = SECRET
    file = keys(tmp_path, f'[http]\nheaders = {{ Authorization = "{SECRET}" }}\n')
    here = tmp_path / "here"
    here.mkdir()
    web.go.clear()
    start(daemon, "keys", here, inputs={"data": web.url}, staging_credentials=file)
    eventually(lambda: web.offsets)
    line = Path(f"/proc/{step_pid(daemon, 'keys')}/cmdline").read_bytes()
    assert b"staging.stage" in line and SECRET.encode() not in line and b"http" not in line
    web.go.set()
    assert daemon.wait("keys").state == SUCCEEDED
    web.password = "another"
    start(daemon, "wrong", here, inputs={"other": f"{web.url}?sig={SECRET}"}, staging_credentials=file)
    job = daemon.wait("wrong")
    assert job.state == FAILED and "access is refused: check staging_credentials" in job.verdict.summary, job
    said = "".join(daemon.cli(*words).stdout for words in (("events",), ("status", "wrong"), ("why", "wrong")))
    assert SECRET not in said and "?..." in said

    def telling() -> tuple[list[Path], ...]:
        """The files that have it; nothing where one was removed while they were read."""
        files = (path for path in daemon.folder.rglob("*") if path.is_file())
        try:  # a spec is for root alone, as values of the environment are
            return ([path for path in files if path.name != "spec.json" and SECRET.encode() in path.read_bytes()],)
        except FileNotFoundError:
            return ()

    assert eventually(telling) == ([],)


def test_s3_both_ways(make_daemon: Any, tmp_path: Path) -> None:
    """`obs` is S3 at another address. A large output that broke off is not sent twice."""
    import boto3

    with servers.s3() as address:
        names = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=address, **names)
        client.create_bucket(Bucket="bkt")
        client.put_object(Bucket="bkt", Key="demo-code/", Body=b"")
        client.put_object(Bucket="bkt", Key="demo-code/train.sh", Body=b"cat lib/x; cp -r data out\n")
        client.put_object(Bucket="bkt", Key="demo-code/lib/x", Body=b"x of lib\n")
        large = os.urandom(40 << 20)
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "large").write_bytes(large)
        begun = client.create_multipart_upload(Bucket="bkt", Key="out/large")["UploadId"]
        client.upload_part(
            Bucket="bkt", Key="out/large", UploadId=begun, PartNumber=1, Body=large[: 16 << 20]
        )  # fmt: skip
        file = str(tmp_path / "keys.toml")
        section = f'key = "AKIATEST"\nsecret = "{SECRET}"\nendpoint_url = "{address}"\n'
        keys(tmp_path, f"[obs]\n{section}[s3]\n{section}")
        daemon = make_daemon()
        start(
            daemon, "s3", tmp_path, ("sh", "train.sh"), code="obs://bkt/demo-code", outputs={"out": "s3://bkt/out"},
            inputs={"data": f"file://{tmp_path}/data"}, staging_credentials=file,
        )  # fmt: skip
        job = daemon.wait("s3")
        assert job.state == SUCCEEDED, job
        assert daemon.output(job) == b"x of lib\n"
        assert client.get_object(Bucket="bkt", Key="out/large")["Body"].read() == large
        assert not client.list_multipart_uploads(Bucket="bkt").get("Uploads"), "the upload that was begun is the one"
        start(
            daemon, "back", tmp_path, inputs={"back/": "s3://bkt/out"}, staging_credentials=str(tmp_path / "keys.toml")
        )
        assert daemon.wait("back").state == SUCCEEDED and (tmp_path / "back" / "large").read_bytes() == large
        start(
            daemon,
            "none",
            tmp_path,
            outputs={"back": "s3://no-such/out"},
            staging_credentials=str(tmp_path / "keys.toml"),
        )
        job = daemon.wait("none")
        assert (job.state, job.verdict.exit_code) == (FAILED, 125) and "no such bucket" in job.verdict.summary, job
        # Two keys that are one path, and two nodes that write one object.
        client.put_object(Bucket="bkt", Key="twice/x", Body=b"1")
        client.put_object(Bucket="bkt", Key="twice//x", Body=b"2")
        start(daemon, "twice", tmp_path, inputs={"t": "s3://bkt/twice"}, staging_credentials=file)
        job = daemon.wait("twice")
        assert job.state == FAILED and "has a file '/x', which is no path below a folder" in job.verdict.summary, job
        assert not (tmp_path / "t").exists()
        nodes: dict[str, Any] = {"nodes": ["a", "b"], "node_rank": 1, "master_addr": "a", "master_port": 29500}
        start(daemon, "apart", tmp_path, outputs={"train": "s3://bkt/{job}/{node}-{host}"}, **nodes,
              command=("sh", "-c", "echo x >train"), staging_credentials=file)  # fmt: skip
        assert daemon.wait("apart").state == SUCCEEDED
        assert client.get_object(Bucket="bkt", Key="apart/1-b")["Body"].read() == b"x\n"


def test_an_upload_that_is_given_up_leaves_no_part(make_daemon: Any, tmp_path: Path) -> None:
    """Where the server refuses a part for good, and where somebody stops the copy in the middle."""
    import boto3

    with servers.s3() as address:
        names = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=address, **names)
        client.create_bucket(Bucket="bkt")
        daemon = make_daemon()
        with servers.gate(address) as gate:
            file = keys(tmp_path, f'[s3]\nkey = "AKIATEST"\nsecret = "{SECRET}"\nendpoint_url = "{gate.url}"\n')
            command = ("sh", "-c", "head -c 40000000 /dev/zero >large")
            fields: dict[str, Any] = {"command": command, "outputs": {"large": "s3://bkt/large"}}
            gate.refused = "partNumber=2"
            start(daemon, "refused", tmp_path, staging_credentials=file, **fields)
            job = daemon.wait("refused")
            assert (job.state, job.verdict.exit_code) == (FAILED, 125) and "Forbidden" in job.verdict.summary, job
            assert gate.asked("partNumber=1") and not client.list_multipart_uploads(Bucket="bkt").get("Uploads")
            gate.refused, gate.held = "", "partNumber=2"
            command = ("sh", "-c", "mkdir out; for name in a b; do head -c 40000000 /dev/zero >out/$name; done")
            fields = {"command": command, "outputs": {"out": "s3://bkt/out"}}
            start(daemon, "stopped", tmp_path, staging_credentials=file, **fields)
            eventually(lambda: sum(gate.held in path for path in gate.paths) >= 2)
            assert len(client.list_multipart_uploads(Bucket="bkt")["Uploads"]) == 2
            # Whoever ends a job's scope signals the copy as well, which the supervisor ends.
            gate.slow = "DELETE"
            order = job_pb2.StopRequest(job_id="stopped", timeout=duration_pb2.Duration())
            daemon.jobs.Stop(order, timeout=60)
            eventually(lambda: gate.came)
            os.kill(step_pid(daemon, "stopped"), signal.SIGTERM)
            gate.go.set()
            job = daemon.wait("stopped")
            assert job.state == FAILED and job.outputs_kept, job
            assert not client.list_multipart_uploads(Bucket="bkt").get("Uploads")
