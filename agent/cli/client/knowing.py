"""Which daemon knows a job: the one that was asked for, or one that shows a standalone run which has ended."""

from collections.abc import Iterator
from contextlib import contextmanager

from muster.agent.cli.client import kept_runs
from muster.agent.cli.client.address import Address
from muster.agent.cli.client.calls import connect, get_job
from muster.agent.cli.exits import CallFailed, NoDaemon
from muster.agent.cli.printing import note
from muster.agent.text import local


@contextmanager
def knowing(address: Address, job_id: str) -> Iterator[Address]:
    """The address of a daemon that knows the job, for the length of the `with`; `address` if none does. Raises
    CommandFailed where a kept run cannot be shown."""
    past = None if address.explicit else kept_runs.find(job_id)
    if past is None or _knows(address, job_id):
        yield address
        return
    from muster.agent.cli.client import standalone

    note(f"{job_id} was a standalone run on {past.host}, kept at {local(past.kept_at)} in {past.folder}")
    with standalone.bring_back(past) as own:
        yield own


def _knows(address: Address, job_id: str) -> bool:
    """False where there is no daemon, or none that knows the job; of whatever else is wrong the command tells."""
    try:
        address.probe()
        with connect(address) as connection:
            get_job(connection, job_id)
    except NoDaemon:
        return False
    except CallFailed as failure:
        return failure.status != "NOT_FOUND"
    return True
