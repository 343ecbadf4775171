"""Starting a job: what `run` and `start` have in common."""

from muster.agent.cli.client.calls import DaemonConnection
from muster.agent.cli.exits import CallFailed
from muster.agent.messages.spec_message import spec_to
from muster.supervisors.model.spec import JobSpec
from muster.v1 import job_pb2

#: The reason of a daemon that ends: it takes no new job.
STOPPING = "STOPPING"


def submit(
    connection: DaemonConnection, spec: JobSpec, *, folder: tuple[int, int] | None = None, own: bool = False
) -> job_pb2.StartResponse:
    """Starts the job. An answer that was lost (the daemon was restarted in the middle) is asked for again, and so is a
    daemon that ends, for its successor: the spec has an id, so that this is the same job. The wait is bounded, and the
    command says so after a second. `folder`: device and inode of spec.workdir, where that is the caller's own. `own`:
    the daemon is this command's, and has no successor. Raises CallFailed, NoDaemon, BadSpec."""
    request = job_pb2.StartRequest(spec=spec_to(spec, secrets=True))
    if folder is not None:
        request.workdir_identity.device, request.workdir_identity.inode = folder
    try:
        return connection.call(connection.jobs.Start, request)
    except CallFailed as failure:
        if not failure.transient or (own and failure.reason == STOPPING):
            raise
    return connection.patiently(connection.jobs.Start, request, aloud=True)
