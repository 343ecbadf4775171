"""`muster why`: one page about why a job ended, or what is wrong with it."""

import json

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.printing import coloured, emit, emit_json, format_option

#: Seconds that a report may take: the daemon waits for disks that do not answer.
REPORT_S = 60.0


@click.command()
@pass_address
@click.argument("job", metavar="JOB")
@format_option
def why(address: Address, job: str, as_json: bool) -> None:
    """Show why a job ended, with evidence and remedy; of a running job, show what is wrong."""
    from muster.agent.cli.client.calls import connect, utf8
    from muster.v1 import job_pb2

    request = job_pb2.GetReportRequest(job_id=utf8(job, "JOB"), color=coloured() and not as_json)
    with connect(address) as connection:
        answer = connection.call(connection.jobs.GetReport, request, REPORT_S)
    if as_json:
        emit_json(json.loads(answer.json))
    else:
        emit(answer.text)
