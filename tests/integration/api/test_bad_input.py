"""Bad input is refused with the field and what is allowed, and nothing is started."""

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from muster.v1 import event_pb2, exec_pb2, exec_pb2_grpc, job_pb2, log_pb2
from tests.conftest import Daemon


def refused(call: Any, *args: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Code, ErrorInfo reason and field violations of a call that must fail."""
    with pytest.raises(grpc.RpcError) as info:
        call(*args, timeout=60)
    error = info.value
    assert isinstance(error, grpc.Call)
    status = rpc_status.from_call(error)
    reason, fields = "", {}
    for detail in status.details if status is not None else ():
        told, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(told):
            reason = told.reason
        elif detail.Unpack(bad):
            fields = {v.field: v.description for v in bad.field_violations}
    return error.code(), reason, fields


def spec(**fields: Any) -> job_pb2.StartRequest:
    return job_pb2.StartRequest(spec=job_pb2.JobSpec(**({"job_id": "bad", "command": ["true"]} | fields)))


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"command": []}, "command", "empty"),
        ({"command": [""]}, "command[0]", "empty"),
        ({"command": ["echo", "a\0b"]}, "command[1]", "NUL"),
        ({"command": ["echo", "x" * 140000]}, "command[1]", "131071"),
        ({"job_id": "a/b"}, "job_id", "A-Z"),
        ({"job_id": ".."}, "job_id", "A-Z"),
        ({"job_id": "x" * 300}, "job_id", "300 characters"),
        ({"env": {"A=B": "1"}}, "env", "'='"),
        ({"env": {"": "1"}}, "env", "empty"),
        ({"env": {"A": "b\0c"}}, "env", "NUL"),
        ({"ranks": 100000}, "ranks", "4096"),
        ({"ranks": 2, "cards": job_pb2.CardRequest(count=1)}, "ranks", "cards"),
        ({"cards": job_pb2.CardRequest(count=1, indices=[0])}, "cards", "give only one"),
        ({"cards": job_pb2.CardRequest(count=1, all=True)}, "cards", "count and all"),
        ({"cards": job_pb2.CardRequest(all=True), "ranks": 1}, "ranks", "cards"),
        ({"cards": job_pb2.CardRequest(indices=[0, 0])}, "cards.indices", "twice"),
        ({"workdir": "relative"}, "workdir", "absolute"),
        ({"workdir": "/etc/passwd"}, "workdir", "/etc/passwd"),
        ({"workdir": "/no/such/folder"}, "workdir", "/no/such/folder"),
        ({"user": "no-such-user-here"}, "user", "no-such-user-here"),
        ({"node_rank": 3, "node_count": 2, "master_addr": "a", "master_port": 1}, "node_rank", "0 to 1"),
        ({"node_count": 2}, "master_addr", "several nodes"),
        ({"master_port": 70000}, "master_port", "65535"),
        ({"labels": {"": "x"}}, "labels", "256"),
        ({"hang": {"hungs": "900"}}, "hang[hungs]", "near it: hung_s"),
        ({"hang": {"hung_s": "soon"}}, "hang[hung_s]", "'soon': must be a number"),
        ({"hang": {"rule": "half"}}, "hang[rule]", "full or plain"),
    ],
)
def test_specs(shared: Daemon, fields: dict[str, Any], field: str, words: str) -> None:
    code, reason, violations = refused(shared.jobs.Start, spec(**fields))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    [name] = [name for name in violations if name.startswith(field)]
    assert words in violations[name], violations
    assert not list(shared.root.jobs.iterdir())


def test_durations(shared: Daemon) -> None:
    request = spec()
    request.spec.max_runtime.seconds = -1
    assert "max_runtime" in refused(shared.jobs.Start, request)[2]
    request = spec()
    request.spec.grace_steps.add().seconds = 10**9
    assert any("grace_steps" in field for field in refused(shared.jobs.Start, request)[2])


def test_secrets_are_in_no_message(shared: Daemon) -> None:
    code, _, fields = refused(shared.jobs.Start, spec(env={"TOKEN": "hunter2\0"}))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "hunter2" not in str(fields)


def test_jobs_that_do_not_exist(shared: Daemon) -> None:
    for call, request in (
        (shared.jobs.Get, job_pb2.GetRequest(job_id="nobody")),
        (shared.jobs.Stop, job_pb2.StopRequest(job_id="nobody")),
        (shared.jobs.Wait, job_pb2.WaitRequest(job_id="nobody")),
        (shared.jobs.Delete, job_pb2.DeleteRequest(job_id="../etc")),
    ):
        assert refused(call, request)[:2] == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")
    read = log_pb2.ReadLogsRequest(job_id="nobody")
    code, reason, _ = refused(lambda r, timeout: list(shared.logs.ReadLogs(r, timeout=timeout)), read)
    assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")


def test_a_job_is_not_named(shared: Daemon) -> None:
    assert shared.channel is not None
    execs = exec_pb2_grpc.ExecServiceStub(shared.channel)

    def attach(request: exec_pb2.ExecRequest, timeout: float) -> object:
        return list(execs.Exec(iter([request]), timeout=timeout))

    for call, request in (
        (shared.jobs.Get, job_pb2.GetRequest()),
        (shared.jobs.Stop, job_pb2.StopRequest()),
        (shared.jobs.Release, job_pb2.ReleaseRequest()),
        (shared.jobs.Delete, job_pb2.DeleteRequest()),
        (execs.RunCommand, exec_pb2.RunCommandRequest(argv=["true"])),
        (execs.EndSession, exec_pb2.EndSessionRequest(session_id="x")),
        (attach, exec_pb2.ExecRequest(attach=exec_pb2.ExecAttach(session_id="x"))),
    ):
        _, reason, fields = refused(call, request)
        assert reason == "INVALID_REQUEST" and "is not set" in fields["job_id"]


def test_cursors_and_tokens(shared: Daemon) -> None:
    code, _, fields = refused(
        lambda r, timeout: list(shared.events.Watch(r, timeout=timeout)), event_pb2.WatchRequest(cursor="garbage")
    )
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "cursor" in fields
    code, _, fields = refused(shared.jobs.List, job_pb2.ListRequest(page_token="garbage"))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "page_token" in fields


def test_cards_that_are_not_there_or_not_free(make_daemon: Any) -> None:
    daemon: Daemon = make_daemon("[cards]\nslots = 2\n")
    code, reason, _ = refused(daemon.jobs.Start, spec(cards=job_pb2.CardRequest(count=3)))
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_SUCH_CARD")
    daemon.run("sleep", "3600", job_id="holder", ranks=0, cards=job_pb2.CardRequest(indices=[1]))
    code, reason, _ = refused(daemon.jobs.Start, spec(cards=job_pb2.CardRequest(count=2)))
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CARD_BUSY")
    job = daemon.run("true", job_id="other", ranks=0, cards=job_pb2.CardRequest(count=1))
    assert [rank.device for rank in job.ranks] == [0]
    # A card stays held over a restart of the daemon, and is free once its job has ended.
    daemon.kill()
    daemon.start()
    assert refused(daemon.jobs.Start, spec(cards=job_pb2.CardRequest(indices=[1])))[1] == "CARD_BUSY"
    daemon.stop("holder", grace_s=0)
    daemon.run("true", job_id="next", ranks=0, cards=job_pb2.CardRequest(indices=[1]))
    daemon.wait("next")
