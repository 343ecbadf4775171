"""Progress of a job in the foreground, for the person at the terminal."""

import threading

from muster.agent.cli.client.calls import DaemonConnection, Patience
from muster.agent.cli.exits import CallFailed, CommandFailed, NoDaemon
from muster.agent.cli.printing import note
from muster.v1 import event_pb2, job_pb2

#: Events that are printed when they arrive; the command itself prints acceptance and end.
_TOLD = frozenset(
    {
        "job.waiting",
        "job.planned",
        "job.checking",
        "job.checked",
        "job.services",
        "job.service_ended",
        "job.step",
        "job.step_ended",
        "job.running",
        "job.stopping",
        "job.restarting",
        "job.taken_over",
        "job.warning",
        "job.output_lost",
        "job.supervisor_stuck",
        "job.supervisor_works",
        "rank.exited",
    }
)
#: Outcomes of ranks that are not printed: success, or a consequence of an event printed before.
_QUIET = frozenset({"GANG_VICTIM", "STOPPED"})


class Progress:
    """Writes a line to stderr for each notable event of the job, from its acceptance on."""

    def __init__(self, connection: DaemonConnection, job: job_pb2.Job) -> None:
        self._connection = connection
        self._job = job
        self._thread = threading.Thread(target=self._serve, name="progress", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits a moment for the lines up to the job's end."""
        self._thread.join(1.0)

    def _serve(self) -> None:
        request = event_pb2.WatchRequest(job_id=self._job.job_id, from_oldest=True)
        patience = Patience()
        while True:
            try:
                # The reader of the output waits for a slot as well, and reports it.
                for message in self._connection.stream(self._connection.events.Watch, request, quiet=True):
                    patience = Patience()
                    request.cursor = message.cursor
                    if message.HasField("event") and self._tell(message.event):
                        return
                return
            except (CallFailed, NoDaemon) as failure:
                try:
                    patience.wait_or_raise(failure)
                except CommandFailed:
                    return  # the reader of the output has the same error, and reports it
            except (CommandFailed, ValueError):
                return  # the same; ValueError: the channel was closed because the command is over

    def _tell(self, event: event_pb2.Event) -> bool:
        """Prints an event. Returns True if it was the job's last."""
        before = self._job.accepted_at.ToNanoseconds() - 50_000_000
        if event.time.ToNanoseconds() < before:
            return False  # of an earlier job with this id
        if event.kind in _TOLD and not _unremarkable(event):
            note(event.message.removeprefix("muster "))  # who says it comes before it
        return event.kind == "job.ended"


def _unremarkable(event: event_pb2.Event) -> bool:
    if event.kind != "rank.exited":
        return False
    return event.attributes.get("outcome") in _QUIET or event.attributes.get("exit_code") == "0"
