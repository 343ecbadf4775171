"""`muster stacks`: where each rank of a job is."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.parameters import WHOLE
from muster.agent.cli.printing import as_dict, coloured, emit, emit_json, format_option
from muster.agent.text import clean, ranks, table

if TYPE_CHECKING:
    from muster.v1 import job_pb2

#: Seconds for an answer: the daemon may have to wait for others who ask the same, and gives up long before.
ANSWER_S = 120.0
#: Processes of a group that are shown with all that is known of them.
_SHOWN = 8


@click.command()
@pass_address
@click.argument("job", metavar="JOB")
@click.option(
    "-r", "--rank", "ranks", metavar="RANK", type=WHOLE, multiple=True, help="Show only this rank. Repeatable."
)
@click.option("--kept", is_flag=True, help="Show the stored stacks (as of a suspected hang); take no new ones.")
@format_option
def stacks(address: Address, job: str, ranks: tuple[int, ...], kept: bool, as_json: bool) -> None:
    """Show the stack of each rank of a job: Python frames, or its wait in the kernel.

    Processes with the same stack form a group; the smallest group comes first, so that a single odd rank is on top.
    Taking stacks does not stop or slow the ranks.
    """
    from muster.agent.cli.client.calls import connect, utf8
    from muster.v1 import job_pb2

    request = job_pb2.GetStacksRequest(job_id=utf8(job, "JOB"), ranks=sorted(set(ranks)), kept=kept)
    with connect(address) as connection:
        answer = connection.call(connection.jobs.GetStacks, request, ANSWER_S)
    if as_json:
        emit_json(as_dict(answer))
    else:
        emit("\n".join(text(job, answer)) + "\n")


def text(job: str, answer: "job_pb2.GetStacksResponse") -> Iterator[str]:
    """The lines that people see."""
    from muster.agent.cli import show

    if answer.groups:
        processes = sum(len(group.owners) for group in answer.groups)
        why = f" ({clean(answer.occasion)})" if answer.occasion and answer.occasion != "request" else ""
        places = "one place" if len(answer.groups) == 1 else f"{len(answer.groups)} places"
        several = f"{processes} processes" if processes != 1 else "1 process"
        yield f"{clean(job)}: {several} at {places}, {show.when(answer.at)}{why}"
        for group in answer.groups:
            yield ""
            yield from _group(group, processes)
    for note in answer.notes:
        yield ""
        yield f"note: {clean(note)}"


def _group(group: "job_pb2.StackGroup", of: int) -> Iterator[str]:
    owners = group.owners
    head = f"{ranks({owner.rank for owner in owners})}: {len(owners)} of {of} processes"
    yield click.style(head, bold=True) if coloured() else head
    yield from _owners(owners)
    for line in group.stack.split("\n"):
        yield f"  | {clean(line)}".rstrip()


def _owners(owners: "Sequence[job_pb2.StackOwner]") -> Iterator[str]:
    rows = [[str(o.rank), str(o.pid), o.state, str(o.threads), o.wchan, o.command] for o in owners[:_SHOWN]]
    shown = table(["RANK", "PID", "S", "THREADS", "WAITS IN", "COMMAND"], rows)
    yield from (f"  {line}" for line in shown.splitlines())
    if len(owners) > _SHOWN:
        yield f"  and {len(owners) - _SHOWN} more"
