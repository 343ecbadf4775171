"""Starting a job: what `run` and `start` have in common."""

from agent.cli.connection import Connection
from agent.cli.errors import CallFailed
from agent.cli.spec import to_proto
from muster.v1 import job_pb2
from supervisors.spec import JobSpec


def submit(connection: Connection, spec: JobSpec) -> job_pb2.StartResponse:
    """Starts the job. An answer that was lost (the daemon was restarted in the middle) is asked for again: the spec has
    an id, so that this is the same job. Raises CallFailed, NoDaemon, BadSpec."""
    request = job_pb2.StartRequest(spec=to_proto(spec))
    try:
        return connection.call(connection.jobs.Start, request)
    except CallFailed as failure:
        if not failure.transient:
            raise
    return connection.patiently(connection.jobs.Start, request)
