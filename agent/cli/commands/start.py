"""`muster start`: a job in the background."""

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.printing import as_dict, emit, emit_json, format_option, note, on_terminal
from muster.agent.cli.spec.job_spec import Draft
from muster.agent.cli.spec.spec_options import spec_options


@click.command(context_settings={"allow_interspersed_args": False})
@pass_address
@spec_options
@format_option
def start(address: Address, draft: Draft, as_json: bool) -> None:
    """Start a job and print its id.

    The ranks get a small default environment and the variables from --env. Each rank runs in a folder of its own unless
    --workdir names one. With an id that exists and the same spec, `start` prints the existing job; with another spec it
    fails with exit code 5.
    """
    spec = draft.spec()
    from muster.agent.cli.client.calls import connect
    from muster.agent.cli.spec.submit import submit

    with connect(address) as connection:
        answer = submit(connection, spec)
    if answer.already_existed and on_terminal():
        note(f"job {answer.job.job_id} exists already, with the same spec")
    if as_json:
        emit_json(as_dict(answer.job))
    else:
        emit(f"{answer.job.job_id}\n")
