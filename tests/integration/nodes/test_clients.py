"""The examples of the client's page, on real daemons."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from muster.v1 import job_pb2, node_pb2
from tests.conftest import Daemon

ROOT = Path(__file__).parents[3]
SCHEDULER = ROOT / "examples" / "clients" / "gang_scheduler.py"
PAGE = ROOT / "docs" / "guides" / "clients.md"


@pytest.mark.slow
def test_the_gang_scheduler_takes_fit_nodes_and_tries_again(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    nodes = [make_daemon() for _ in range(3)]
    nodes[0].nodes.Drain(node_pb2.DrainRequest(reason="a new card"), timeout=60)
    # The first try fails on one node, which ends the other's part too.
    fails = f'echo "rank $RANK of $WORLD_SIZE"; if mkdir {tmp_path}/first 2>/dev/null; then kill -KILL $$; fi'
    command = [
        sys.executable,
        str(SCHEDULER),
        "g",
        "2",
        "2",
        *(node.address for node in nodes),
        "--",
        "sh",
        "-c",
        fails,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "not used: a new card" in done.stderr and "SIGKILL" in done.stderr
    assert {f"rank {rank} of 4" for rank in range(4)} <= set(done.stdout.splitlines())
    assert not nodes[0].jobs.List(job_pb2.ListRequest(), timeout=60).jobs


def test_the_json_of_the_page_goes_through_reflection(daemon: Daemon) -> None:
    """As grpcurl sends it, which has no files of ours."""
    channel: Any = daemon.channel
    database = ProtoReflectionDescriptorDatabase(channel)
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("muster.v1.JobService.NoMethod")
    (described,) = re.findall(r"\$M describe (\S+)", PAGE.read_text())
    assert "JobService" in {service.name for service in database.FindFileContainingSymbol(described).service}
    pool = DescriptorPool(database)
    answers: dict[str, list[Any]] = {}
    for sent, service, name in re.findall(r"-d '(.+)' \$M (\S+)/(\S+)", PAGE.read_text()):
        method = pool.FindServiceByName(service).methods_by_name[name]
        request = json_format.Parse(sent, GetMessageClass(method.input_type)())
        kind = channel.unary_stream if method.server_streaming else channel.unary_unary
        answer = GetMessageClass(method.output_type).FromString
        call = kind(f"/{service}/{name}", type(request).SerializeToString, answer)
        got = call(request, timeout=60)
        answers[name] = list(got) if method.server_streaming else [got]
    assert answers["Wait"][0].ended and answers["Wait"][0].job.job_id == answers["Start"][0].job.job_id
    assert "job.ended" in {message.event.kind for message in answers["Watch"]}
