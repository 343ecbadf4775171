"""Which calls the client repeats, after which errors, and for how long."""

import time

import pytest
from google.protobuf import descriptor_pool

from muster.client import MusterError, may_pass, may_repeat
from muster.client.error_reasons import REASONS
from muster.client.retries import REPEATS, Attempts
from muster.v1 import event_pb2, exec_pb2, job_pb2, log_pb2, node_pb2, probe_pb2, telemetry_pb2

FILES = (event_pb2, exec_pb2, job_pb2, log_pb2, node_pb2, probe_pb2, telemetry_pb2)
STOPPING = MusterError("UNAVAILABLE", "STOPPING", "it stops", retry_after=0.0)
FULL = MusterError("RESOURCE_EXHAUSTED", "TOO_MANY", "16 commands", retry_after=0.0)
NOT_FOUND = MusterError("NOT_FOUND", "JOB_NOT_FOUND", "no job x")
RUN = exec_pb2.RunCommandRequest(job_id="x", argv=["true"])


def test_the_rule_knows_each_call() -> None:
    pool = descriptor_pool.Default()
    files = [pool.FindFileByName(module.DESCRIPTOR.name) for module in FILES]
    services = [service for file in files for service in file.services_by_name.values()]
    assert {method.input_type.name for service in services for method in service.methods} == set(REPEATS)


def test_what_may_run_twice_is_not_repeated() -> None:
    assert may_repeat(job_pb2.StartRequest(spec=job_pb2.JobSpec(job_id="x")))
    assert not may_repeat(job_pb2.StartRequest(spec=job_pb2.JobSpec(command=["true"])))
    assert not may_repeat(exec_pb2.ExecRequest(start=exec_pb2.ExecStart(job_id="x")))
    assert may_repeat(exec_pb2.ExecRequest(attach=exec_pb2.ExecAttach(job_id="x")))
    assert not may_repeat(RUN)
    assert not may_repeat(exec_pb2.ExecAck())  # of which the rule knows nothing


def test_a_call_that_runs_something_is_repeated_only_if_it_was_refused_before() -> None:
    assert Attempts(RUN, 60).pause_s(FULL) < 1
    with pytest.raises(MusterError, match="STOPPING"):
        Attempts(RUN, 60).pause_s(STOPPING)


def test_pauses_grow_and_end_with_the_time() -> None:
    attempts = Attempts(job_pb2.GetRequest(job_id="x"), 60)
    pauses = [attempts.pause_s(STOPPING) for _ in range(8)]
    assert pauses[0] < 0.2 and 1.0 <= pauses[-1] <= 1.3
    with pytest.raises(MusterError, match="JOB_NOT_FOUND"):
        attempts.pause_s(NOT_FOUND)
    began = time.monotonic()
    with pytest.raises(MusterError, match="it stops"):
        Attempts(job_pb2.GetRequest(job_id="x"), 0.01).pause_s(STOPPING)
    assert time.monotonic() - began < 30


def test_a_daemon_that_waits_long_is_believed() -> None:
    error = MusterError("RESOURCE_EXHAUSTED", "NO_ROOM", "full", retry_after=30.0)
    assert 30 <= Attempts(job_pb2.GetRequest(), 60).pause_s(error) <= 39
    with pytest.raises(MusterError):
        Attempts(job_pb2.GetRequest(), 20).pause_s(error)


def test_the_table_and_the_rule_agree() -> None:
    for row in REASONS:
        assert may_pass(row.code, row.reason) == (row.passes or row.code in ("UNAVAILABLE", "CANCELLED")), row
        assert row.passes <= row.again.startswith("yes"), row
        assert not row.remedy.startswith(("no", "yes")), row
    assert may_pass("INTERNAL", "INTERNAL", "Received RST_STREAM with error code 2")
    assert not may_pass("INTERNAL", "DEFECT", "a stream of them")


def test_a_remedy_is_an_order() -> None:
    assert MusterError("ALREADY_EXISTS", "JOB_ID_CONFLICT", "").remedy == "use another id"
    assert MusterError("FAILED_PRECONDITION", "NODE_DRAINING", "").remedy == "try again elsewhere"
    assert MusterError("UNAVAILABLE", "UNAVAILABLE", "").remedy == "try again, for as long as a restart may take"
    assert NOT_FOUND.remedy == "list the jobs of the node"
    assert all(each.remedy for each in REASONS)
