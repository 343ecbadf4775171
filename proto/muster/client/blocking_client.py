"""The client of one daemon, for programs without an event loop.

`make docs` writes this file from async_client.py: change that.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from muster.client import requests
from muster.client.blocking_exec import BlockingExec, session
from muster.client.errors import MusterError
from muster.client.places import LogPlace, NodeLogPlace, Streamed, StreamPlace, WatchPlace
from muster.client.requests import ANSWER_S, SEARCH_S, SLICE_S
from muster.client.retries import Attempts
from muster.v1 import event_pb2, exec_pb2, job_pb2, log_pb2, node_pb2

if TYPE_CHECKING:
    from muster.v1.event_pb2_grpc import EventServiceStub
    from muster.v1.exec_pb2_grpc import ExecServiceStub
    from muster.v1.job_pb2_grpc import JobServiceStub
    from muster.v1.log_pb2_grpc import LogServiceStub
    from muster.v1.node_pb2_grpc import NodeServiceStub
    from muster.v1.probe_pb2_grpc import ProbeServiceStub
    from muster.v1.telemetry_pb2_grpc import TelemetryServiceStub

Response = TypeVar("Response")
Ending = TypeVar("Ending", job_pb2.WaitResponse, job_pb2.StopResponse)


@dataclass(frozen=True, slots=True)
class BlockingClient:
    """The services of one daemon: its stubs, and calls that block, are repeated where that is safe, and
    raise MusterError. Any thread may make them."""

    channel: grpc.Channel
    jobs: "JobServiceStub"
    logs: "LogServiceStub"
    events: "EventServiceStub"
    node: "NodeServiceStub"
    execs: "ExecServiceStub"
    probes: "ProbeServiceStub"
    telemetry: "TelemetryServiceStub"

    def call(self, method: Callable[..., Response], request: Message, within_s: float = ANSWER_S) -> Response:
        """The answer of a stub's method. Repeats the call where retries.py allows it, until `within_s` is over.
        Raises MusterError."""
        attempts = Attempts(request, within_s)
        while True:
            try:
                return method(request, timeout=attempts.left_s)
            except grpc.RpcError as error:
                pause = attempts.pause_s(error)
            time.sleep(pause)

    def start(self, spec: job_pb2.JobSpec, within_s: float = ANSWER_S) -> job_pb2.StartResponse:
        """Starts a job. Without `spec.job_id` it is tried once: a lost answer then leaves a job of unknown id."""
        return self.call(self.jobs.Start, job_pb2.StartRequest(spec=spec), within_s)

    def get(self, job_id: str, within_s: float = ANSWER_S) -> job_pb2.Job:
        """One job with its ranks."""
        answer = self.call(self.jobs.Get, job_pb2.GetRequest(job_id=job_id), within_s)
        return answer.job

    def list_jobs(
        self,
        states: Sequence[job_pb2.JobState.ValueType] = (),
        labels: Mapping[str, str] | None = None,
        within_s: float = ANSWER_S,
    ) -> Iterator[job_pb2.Job]:
        """All jobs, newest first, page by page; `within_s` is for each page."""
        request = job_pb2.ListRequest(states=states, labels=labels or {})
        while True:
            page = self.call(self.jobs.List, request, within_s)
            yield from page.jobs
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def wait(self, job_id: str, timeout_s: float = math.inf, search_s: float = SEARCH_S) -> job_pb2.WaitResponse:
        """Waits for the end of a job, over restarts of the daemon, or for `timeout_s` (then `ended` is false). A daemon
        that does not answer is looked for during `search_s`."""
        return self._ended(self.jobs.Wait, job_pb2.WaitRequest(job_id=job_id), timeout_s, search_s)

    def stop(
        self,
        job_id: str,
        reason: str = "",
        grace_s: float | None = None,
        timeout_s: float = math.inf,
        search_s: float = SEARCH_S,
    ) -> job_pb2.StopResponse:
        """Stops a job and waits for its end, over restarts of the daemon, or for `timeout_s` (0: only orders it).
        `grace_s`: 0 kills; None: as the spec says."""
        request = requests.stop_request(job_id, reason, grace_s)
        return self._ended(self.jobs.Stop, request, timeout_s, search_s)

    def delete(self, job_id: str, *, keep_logs: bool = False, within_s: float = ANSWER_S) -> None:
        """Deletes an ended job."""
        request = job_pb2.DeleteRequest(job_id=job_id, keep_logs=keep_logs)
        self.call(self.jobs.Delete, request, within_s)

    def get_node(self, within_s: float = ANSWER_S) -> node_pb2.GetNodeResponse:
        """The node: its cards, and whether it is fit."""
        return self.call(self.node.GetNode, node_pb2.GetNodeRequest(), within_s)

    def watch(
        self,
        cursor: str = "",
        job_id: str = "",
        *,
        from_oldest: bool = False,
        follow: bool = True,
        search_s: float = SEARCH_S,
    ) -> Iterator[event_pb2.WatchResponse]:
        """Events, each once, over restarts of the daemon, and bookmarks: messages without an event. Keep the cursor of
        what you have dealt with, to begin there the next time. Raises CursorLost, MusterError."""
        place = WatchPlace(requests.watch_request(cursor, job_id, from_oldest=from_oldest, follow=follow))
        return self._resumed(lambda: self.events.Watch(place.request), place, place.request, search_s)

    def read_logs(
        self, what: str | log_pb2.ReadLogsRequest, *, follow: bool = False, search_s: float = SEARCH_S
    ) -> Iterator[log_pb2.ReadLogsResponse]:
        """The output of a job (of its id, or as a request says), each byte once, over restarts of the daemon. The last
        message has `eof`, and the verdict of a job that has ended. Raises MusterError."""
        place = LogPlace(requests.log_request(what, follow=follow))
        return self._resumed(lambda: self.logs.ReadLogs(place.request), place, place.request, search_s)

    def read_node_logs(
        self, request: log_pb2.ReadNodeLogsRequest | None = None, *, follow: bool = False, search_s: float = SEARCH_S
    ) -> Iterator[log_pb2.ReadNodeLogsResponse]:
        """The output of all jobs of the node (or as a request says, which `follow` does not change), each byte once,
        over restarts of the daemon. Without `follow` the last message has `output.eof`. Raises MusterError."""
        place = NodeLogPlace(request or log_pb2.ReadNodeLogsRequest(follow=follow))
        return self._resumed(lambda: self.logs.ReadNodeLogs(place.request), place, place.request, search_s)

    def exec(
        self,
        job_id: str,
        argv: Sequence[str],
        rank: int | None = None,
        env: Mapping[str, str] | None = None,
        *,
        stdin: bool = False,
        tty: bool = False,
        search_s: float = SEARCH_S,
    ) -> AbstractContextManager[BlockingExec]:
        """A command in a rank of a job, as a session that is attached to again when the daemon was restarted:

        with muster.exec("train-7", ["nvidia-smi"]) as command:
            for part in command: ...
        print(command.exit_code)
        """
        first = requests.exec_request(job_id, argv, rank, env, stdin=stdin, tty=tty)
        return session(self.execs, first, search_s, self._heard)

    def attach(self, job_id: str, session_id: str, search_s: float = SEARCH_S) -> AbstractContextManager[BlockingExec]:
        """A session that there is; another client that was attached is detached."""
        attach = exec_pb2.ExecAttach(job_id=job_id, session_id=session_id)
        return session(self.execs, exec_pb2.ExecRequest(attach=attach), search_s, self._heard)

    def _ended(
        self, method: Callable[..., Ending], request: requests.Slice, timeout_s: float, search_s: float
    ) -> Ending:
        """The answer once the job has ended, or `timeout_s` is over. One call waits for half of what is left of
        `search_s`: a daemon that is there answers within the other half."""
        end = time.monotonic() + timeout_s
        attempts = Attempts(request, search_s)
        while True:
            left = max(0.0, end - time.monotonic())
            slice_s = min(left, SLICE_S, attempts.try_s / 2)
            request.timeout.CopyFrom(requests.duration(slice_s))
            try:
                answer = method(request, timeout=attempts.try_s)
            except grpc.RpcError as error:
                pause = attempts.pause_s(error)
            else:
                if answer.ended or slice_s >= left:
                    return answer
                attempts.renew()
                continue
            time.sleep(pause)

    def _heard(self, within_s: float) -> None:
        """Returns once the daemon answers; before a stream, which has no deadline. Raises grpc.RpcError."""
        check: Callable[..., bytes] = self.channel.unary_unary(requests.HEALTH_CHECK)
        check(b"", timeout=within_s)

    def _resumed(
        self, stream: Callable[[], Any], place: StreamPlace[Streamed], request: Message, search_s: float
    ) -> Iterator[Streamed]:
        """What is new in the messages of a stream that is begun again at its place where it was cut."""
        attempts = Attempts(request, search_s)
        while True:
            call = None
            failed, moved = MusterError.cut(), None
            try:
                self._heard(attempts.try_s)
                call = stream()
                for message in call:
                    if (new := place.take(message)) is not None:
                        yield new
                    attempts.renew()
                    if place.over:
                        return
                if place.at_end:
                    return
            except grpc.RpcError as error:
                failed = MusterError.of(error)
                moved = place.moved(failed.reason, failed.facts)
            finally:
                if call is not None:
                    call.cancel()
            if moved is None:
                time.sleep(attempts.pause_s(failed))
            elif (new := place.take(moved)) is not None:
                yield new
