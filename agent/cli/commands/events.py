"""`muster events`: what happened."""

from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CallFailed, NoDaemon
from muster.agent.cli.printing import as_dict, emit, emit_json, format_option
from muster.agent.text import clean, local, span

if TYPE_CHECKING:
    from muster.v1 import event_pb2


@click.command()
@pass_address
@click.argument("job", metavar="[JOB]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events.")
@click.option("--cursor", metavar="C", help="Begin after the event with this cursor (from `-o json`).")
@format_option
def events(address: Address, job: str | None, follow: bool, cursor: str | None, as_json: bool) -> None:
    """Show events in the order in which muster learned of them.

    The time is that of the event: one that the kernel or a supervisor reported late comes behind younger ones.

    With `-o json` every line is an object with an event and its cursor. A program that saves the last cursor and passes
    it to --cursor gets every event exactly once, even over restarts of the daemon.
    """
    from muster.agent.cli.client.calls import Patience, connect, utf8
    from muster.agent.cli.client.knowing import knowing
    from muster.v1 import event_pb2

    request = event_pb2.WatchRequest(
        job_id=utf8(job or "", "JOB"),
        cursor=utf8(cursor or "", "--cursor"),
        from_oldest=not cursor,
        no_follow=not follow,
    )
    patience: Patience | None = None
    with knowing(address, "" if follow else request.job_id) as where, connect(where) as connection:
        while True:
            try:
                for message in connection.stream(connection.events.Watch, request):
                    patience = Patience()
                    request.cursor = message.cursor
                    if message.HasField("event"):
                        _show(message, as_json)
                if not follow:
                    return
            except (CallFailed, NoDaemon) as failure:
                if patience is None:  # there was nothing yet: say so at once
                    raise
                patience.wait_or_raise(failure)


def _show(message: "event_pb2.WatchResponse", as_json: bool) -> None:
    if as_json:
        emit_json(as_dict(message), line=True)
        return
    event = message.event
    took = f" ({span(event.seconds)})" if event.seconds else ""
    subject = f" {clean(event.job_id)}" if event.job_id else ""
    time = local(event.time.ToNanoseconds() / 1e9)
    emit(f"{time}{subject} {clean(event.kind)}: {clean(event.message)}{took}\n")
