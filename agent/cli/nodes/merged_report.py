"""`muster report` over the API: of a job that only its daemon may read, and of one on several nodes."""

import gzip
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from muster.agent.cli.client.address import Address
from muster.agent.cli.client.calls import connect, utf8
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.nodes.hosts import GangHost
from muster.agent.cli.nodes.merged_why import part_of
from muster.agent.report.job_report import JobReport
from muster.agent.report.several import merging
from muster.v1 import job_pb2

#: Seconds for an answer: the daemon waits for disks that do not answer.
REPORT_S = 60.0


def read(address: Address, job: str, *, of_several: bool = False) -> JobReport:
    """What the daemon knows of a job. `of_several`: `job` may name a job of several nodes, of which the daemon has a
    part. Raises CommandFailed."""
    with connect(address) as connection:
        job_id = part_of(connection, job) if of_several else utf8(job, "JOB")
        request = job_pb2.GetReportRequest(job_id=job_id, whole=True)
        packed = connection.call(connection.jobs.GetReport, request, REPORT_S).whole
    if not packed:
        raise CommandFailed(f"the daemon at {address} is of a release that gives no reports: upgrade it")
    try:
        return merging.parsed(gzip.decompress(packed), f"the report from {address}")
    except merging.NotMergeable as error:
        raise CommandFailed(str(error)) from None


def of_hosts(hosts: Sequence[GangHost], job: str) -> tuple[JobReport, list[str]]:
    """One report of the parts of a job, and a sentence about each host that gave none. Raises CommandFailed where none
    does."""

    def ask(host: GangHost) -> JobReport | str:
        try:
            return msgspec.structs.replace(read(host.address, job, of_several=True), node=host.label)
        except CommandFailed as failure:
            return f"{host.label}: {failure.message}"

    with ThreadPoolExecutor(len(hosts)) as threads:
        answers = list(threads.map(ask, hosts))
    found = [one for one in answers if isinstance(one, JobReport)]
    failures = [one for one in answers if isinstance(one, str)]
    if not found:
        raise CommandFailed(f"no report of job {job} at these hosts: {'; '.join(failures)}", Exit.NO_SUCH_JOB)
    try:
        return merging.merged(found), failures
    except merging.NotMergeable as error:
        raise CommandFailed(f"--hosts: {error}", Exit.USAGE) from None
