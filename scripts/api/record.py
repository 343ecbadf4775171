"""Makes every call of the API once, of a real daemon on fake cards, and writes what went over the wire.

What is of this machine is replaced: the daemon's folder, the names of host and user. `make docs` makes the pages of
docs/reference/api/ from the file; a test compares it with the .proto files.

Usage: python -m scripts.api.record        (needs a C compiler or zig, for the fake cards; half a minute)
"""

import contextlib
import getpass
import json
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from muster.client.errors import MusterError
from scripts.api import wire_json
from tests.conftest import Daemon, eventually
from tests.fakes import build
from tests.fakes.cards import FakeCards

FILE = Path(__file__).with_name("recorded.json")
_CONFIG = """
[active]
seconds = 0.01
[health]
skip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
"""
#: What is shown of a job that has ended; `Get` shows all of a job.
_ENDED = ("ended", "job.jobId", "job.state", "job.startedAt", "job.endedAt", "job.stoppedBy", "job.verdict")
_STEPS = "for i in 1 2 3; do echo step $i of rank $RANK; done"


class Recorder:
    """Makes calls as a client without code of ours would, from descriptors, and keeps them."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.calls: dict[str, list[dict[str, Any]]] = {}
        self.sequence: list[dict[str, Any]] = []

    def call(
        self,
        name: str,
        *requests: dict[str, Any],
        only: tuple[str, ...] = (),
        cut: str = "",
        first: int = 0,
        keep: bool = True,
    ) -> Any:
        """The answer (of a stream: all of them, or the `first` so many) as JSON; None for an error. `name`:
        "JobService/Get". Of long answers are kept `only` these parts ("job.state"), or some of the list `cut`."""
        asks, answers, failed = self._made(name, requests, first)
        streams = wire_json.method(name).server_streaming
        kept: dict[str, Any] = {"request": asks if len(asks) > 1 else asks[0]}
        if failed is not None:
            kept["error"] = failed
        elif streams:
            kept["answers"] = answers
        else:
            kept["answer"] = answers[0]
            if only:
                kept |= {"answer": _only(answers[0], only), "cut": "the parts that matter here"}
            if cut:
                some = _some(answers[0], cut.split("."))
                kept |= {"answer": some, "cut": f"of `{cut}` the first"}
        if keep:
            self.calls.setdefault(name, []).append(kept)
        return None if failed is not None else answers if streams else answers[0]

    def step(self, name: str, request: dict[str, Any], *shown: str, first: int = 0, by: str = "") -> Any:
        """A call of a sequence. `shown`: the parts of an answer that matter there, as "job.state"."""
        asks, answers, failed = self._made(name, (request,), first)
        self.sequence.append({"call": name, "request": asks[0]})
        if failed is not None:
            self.sequence.append({"error": {key: failed[key] for key in ("status", "reason") if key in failed}})
        for answer in answers:
            self.sequence.append({"answer": _parts(answer, shown)})
        return answers

    def note(self, text: str) -> None:
        """Something that happens beside the calls of a sequence."""
        self.sequence.append({"note": text})

    def taken(self) -> list[dict[str, Any]]:
        """The sequence up to here."""
        taken, self.sequence = self.sequence, []
        return taken

    def _made(self, name: str, requests: tuple[dict[str, Any], ...], first: int) -> tuple[list[Any], list[Any], Any]:
        method = wire_json.method(name)
        asked = [json_format.ParseDict(request, GetMessageClass(method.input_type)()) for request in requests]
        channel: Any = self._daemon.channel
        kind = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, True): channel.stream_stream,
        }[method.client_streaming, method.server_streaming]
        call = kind(
            f"/muster.v1.{name}",
            GetMessageClass(method.input_type).SerializeToString,
            GetMessageClass(method.output_type).FromString,
        )
        given = iter(asked) if method.client_streaming else asked[0]
        answers: list[Any] = []
        failed = None
        try:
            made = call(given, timeout=60, metadata=(("muster-caller", "example-scheduler"),))
            if method.server_streaming:
                for answer in made:
                    answers.append(answer)
                    if len(answers) == first:
                        break
                made.cancel()
            else:
                answers.append(made)
        except grpc.RpcError as error:
            failed = _error(MusterError.of(error))
        as_json = json_format.MessageToDict
        return [as_json(one) for one in asked], [as_json(one) for one in answers], failed


def _error(error: MusterError) -> dict[str, Any]:
    told: dict[str, Any] = {"status": error.status}
    if error.answered:
        told |= {"reason": error.reason, "message": error.message}
    if error.facts:
        told["metadata"] = error.facts
    if error.violations:
        told["violations"] = [{"field": field, "description": text} for field, text in error.violations]
    if error.retry_after is not None:
        told["retryDelay"] = f"{error.retry_after:g}s"
    return told


def _parts(answer: dict[str, Any], shown: tuple[str, ...]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name in shown:
        value: Any = answer
        for key in name.split("."):
            value = value.get(key, {}) if isinstance(value, dict) else {}
        if value != {}:
            parts[name] = value
    return parts


def _only(answer: Any, names: tuple[str, ...]) -> Any:
    """These parts of an answer, at their place."""
    if isinstance(answer, list):
        return [_only(each, names) for each in answer]
    heads = dict.fromkeys(name.partition(".")[0] for name in names)
    return {
        head: _only(answer[head], rest) if (rest := _rest(names, head)) else answer[head]
        for head in heads
        if head in answer
    }


def _rest(names: tuple[str, ...], head: str) -> tuple[str, ...]:
    return tuple(name.removeprefix(f"{head}.") for name in names if name.startswith(f"{head}."))


def _some(answer: Any, names: list[str]) -> Any:
    """The answer with the first entry of a list."""
    if not names:
        return answer[:1]
    return answer | {names[0]: _some(answer[names[0]], names[1:])}


@contextlib.contextmanager
def _daemon() -> Iterator[tuple[Daemon, FakeCards]]:
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        (place / "node").mkdir()
        with FakeCards.make(place / "cards", "nvidia", 4) as cards:
            cards.install_nvidia_smi()
            shutil.copy(build.library("cuda"), cards.folder)
            daemon = Daemon(place / "node", _CONFIG, cards.env)
            try:
                yield daemon.start(), cards
            finally:
                cards.restore()
                daemon.close()


def record() -> dict[str, Any]:
    """All calls, and the sequences."""
    with _daemon() as (daemon, cards):
        recorder = Recorder(daemon)
        eventually(lambda: len(recorder.call("NodeService/GetNode", {}, keep=False)["node"]["cards"]) == 4)
        recorder.call("JobService/Start", {"spec": _spec("warm-up", ["true"])}, keep=False)
        recorder.call("JobService/Wait", {"jobId": "warm-up"}, keep=False)
        recorder.call("JobService/Delete", {"jobId": "warm-up"}, keep=False)
        _jobs(recorder)
        _node(recorder, daemon, cards)
        sequences = {
            "start": _start(recorder),
            "lost-answer": _lost_answer(recorder, daemon),
            "restart": _restart(recorder, daemon),
            "watch": _watch(recorder, daemon),
        }
        found = {"calls": recorder.calls, "sequences": sequences}
        return _without_this_machine(found, daemon)  # type: ignore[no-any-return]


def _spec(job_id: str, command: list[str], **more: Any) -> dict[str, Any]:
    return {"jobId": job_id, "command": command, **more}


def _jobs(to: Recorder) -> None:
    lasts = ["sh", "-c", f"{_STEPS}; exec sleep 1000"]
    spec = _spec("train-7", lasts, cards={"count": 2}, labels={"team": "vision"}, env={"LR": "0.1"})
    to.call("JobService/Start", {"spec": spec})
    to.call("JobService/Start", {"spec": spec | {"env": {"LR": "0.2"}}})
    to.call("JobService/Start", {"spec": _spec("train-8", ["true"], cards={"count": 3})})
    to.call("JobService/Start", {"spec": _spec("train-9", ["true"], ranks=9999)})
    eventually(lambda: _state(to, "train-7") == "JOB_STATE_RUNNING")
    eventually(lambda: "step 3" in _output(to, "train-7"))
    to.call("JobService/Get", {"jobId": "train-7"})
    to.call("JobService/Get", {"jobId": "train-6"})
    to.call("JobService/Wait", {"jobId": "train-7", "timeout": "0.1s"}, only=("job.jobId", "job.state"))
    to.call("JobService/Delete", {"jobId": "train-7"})
    to.call("JobService/GetStacks", {"jobId": "train-7", "ranks": [0]})
    to.call("TelemetryService/GetTelemetry", {"jobId": "train-7"}, cut="cards")
    to.call("TelemetryService/RecordTelemetry", {"jobId": "train-7"}, first=1)
    to.call("TelemetryService/GetHistory", {"jobId": "train-7", "metrics": ["gpuUtil"]})
    to.call("ExecService/RunCommand", {"jobId": "train-7", "argv": ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]})
    start = {"start": {"jobId": "train-7", "rank": 1, "argv": ["cat"], "stdin": True}}
    given = ({"input": {"data": "aGVsbG8K"}}, {"input": {"offset": "6", "close": True}})
    to.call("ExecService/Exec", start, *given)
    to.call("ExecService/Exec", {"attach": {"jobId": "train-7", "sessionId": "nosuch"}})
    left = {"start": {"jobId": "train-7", "argv": ["sleep", "1000"], "detached": True}}
    (begun,) = to.call("ExecService/Exec", left, keep=False)
    session = begun["started"]["sessionId"]
    to.call("ExecService/ListSessions", {"jobId": "train-7"})
    to.call("ExecService/EndSession", {"jobId": "train-7", "sessionId": session})
    to.call("JobService/Stop", {"jobId": "train-7", "reason": "a job of higher priority", "grace": "2s"}, only=_ENDED)
    to.call("LogService/ReadLogs", {"jobId": "train-7", "ranks": [0]})
    to.call("LogService/ReadLogs", {"jobId": "train-7", "offsets": {"0": "5000"}})
    to.call("LogService/ReadNodeLogs", {"tailLines": 1})
    to.call("EventService/Watch", {"jobId": "train-7", "fromOldest": True, "noFollow": True}, first=4)
    to.call("EventService/Watch", {"cursor": "0123456789abcdef-0"})
    failing = _spec("train-5", ["sh", "-c", "echo out of luck >&2; exit 7"])
    to.call("JobService/Start", {"spec": failing}, keep=False)
    eventually(lambda: to.call("JobService/Wait", {"jobId": "train-5"}, keep=False)["job"]["verdict"].get("explained"))
    to.call("JobService/Wait", {"jobId": "train-5"}, only=_ENDED)
    to.call("JobService/GetReport", {"jobId": "train-5"})
    page = ("nextPageToken", "jobs.jobId", "jobs.state", "jobs.labels", "jobs.acceptedAt", "jobs.verdict.summary")
    ended = ["JOB_STATE_FAILED", "JOB_STATE_STOPPED"]
    found = to.call("JobService/List", {"states": ended, "pageSize": 1}, only=page)
    to.call("JobService/List", {"states": ended, "pageSize": 1, "pageToken": found["nextPageToken"]}, only=page)
    to.call("JobService/Delete", {"jobId": "train-5"})
    to.call("JobService/Delete", {"jobId": "train-5"})
    saves = _spec("train-4", ["sh", "-c", "trap 'exit 0' USR1; echo ready; while :; do sleep 0.1; done"])
    to.call("JobService/Start", {"spec": saves}, keep=False)
    eventually(lambda: "ready" in _output(to, "train-4") and _state(to, "train-4") == "JOB_STATE_RUNNING")
    to.call("JobService/Signal", {"jobId": "train-4", "signal": "USR1"})
    to.call("JobService/Wait", {"jobId": "train-4"}, keep=False)
    to.call("JobService/Signal", {"jobId": "train-4", "signal": "USR1"})
    held = _spec("part-0", ["true"], hold=True)
    to.call("JobService/Start", {"spec": held}, keep=False)
    eventually(lambda: to.call("JobService/Get", {"jobId": "part-0"}, keep=False)["job"].get("awaitsRelease"))
    to.call("JobService/Release", {"jobId": "part-0"}, only=("job.jobId", "job.state", "job.awaitsRelease"))
    to.call("JobService/Wait", {"jobId": "part-0"}, keep=False)


def _state(to: Recorder, job_id: str) -> str:
    return str(to.call("JobService/Get", {"jobId": job_id}, keep=False)["job"]["state"])


def _output(to: Recorder, job_id: str) -> str:
    import base64

    answers = to.call("LogService/ReadLogs", {"jobId": job_id}, keep=False)
    return "".join(base64.b64decode(answer.get("data", "")).decode() for answer in answers)


def _node(to: Recorder, daemon: Daemon, cards: FakeCards) -> None:
    to.call("NodeService/GetNode", {}, cut="node.cards")
    to.call("NodeService/Drain", {"reason": "a new fan"}, only=("node.hostname", "node.drain"))
    to.call("JobService/Start", {"spec": _spec("train-10", ["true"])})
    to.call("NodeService/Undrain", {}, only=("node.hostname", "node.drain"))
    to.call("ProbeService/ListChecks", {}, cut="checks")
    to.call("ProbeService/RunChecks", {"items": ["inventory"]})
    to.call("ProbeService/RunChecks", {"items": ["phase-of-the-moon"]})
    to.call("ProbeService/InjectCondition", {"code": "GPU_OFF_BUS", "card": 1})
    to.call("JobService/Start", {"spec": _spec("train-11", ["true"], cards={"indices": [1]})})
    to.call("ProbeService/ClearConditions", {"code": "GPU_OFF_BUS", "device": "card 1"})
    to.call("ProbeService/ClearConditions", {"code": "GPU_OFF_BUS"})
    result = {"item": "active matmul", "code": "OK", "device": "card 0", "reason": "as fast as it should be"}
    to.call("ProbeService/ReportResults", {"results": [result]})
    to.call("NodeService/AcceptCards", {"cards": ["3"]})
    to.call("NodeService/CancelReset", {})
    to.call("NodeService/ResetCard", {"card": "2", "skipActive": True})
    spec = _spec("train-12", ["sleep", "1000"], cards={"indices": [2]})
    to.call("JobService/Start", {"spec": spec}, keep=False)
    waits = threading.Thread(
        target=to.call, args=("NodeService/ResetCard", {"card": "2", "wait": "600s"}), kwargs={"keep": False}
    )
    waits.start()
    eventually(lambda: to.call("NodeService/GetNode", {}, keep=False)["node"].get("drain"))
    eventually(lambda: _cancelled(to))
    waits.join(60)
    to.call("JobService/Stop", {"jobId": "train-12", "grace": "0s"}, keep=False)
    daemon.kill()
    cards[3].remove()
    daemon.restart()
    eventually(lambda: to.call("NodeService/GetNode", {}, keep=False)["node"].get("conditions"))
    to.call("NodeService/AcceptCards", {"all": True}, only=("accepted", "node.hostname", "node.conditions"))


def _cancelled(to: Recorder) -> bool:
    """It may be too early: only while it waits for jobs it can be cancelled."""
    if to.call("NodeService/CancelReset", {}, keep=False) is None:
        return False
    to.calls["NodeService/CancelReset"].insert(0, {"request": {}, "answer": {}})
    return True


# --- sequences --------------------------------------------------------------------------------------------------------


def _start(to: Recorder) -> list[dict[str, Any]]:
    spec = _spec("train-20", ["sh", "-c", _STEPS], ranks=2)
    to.step("JobService/Start", {"spec": spec}, "job.state", "alreadyExisted")
    to.step("JobService/Wait", {"jobId": "train-20"}, "ended", "job.state", "job.verdict.summary")
    watch = {"jobId": "train-20", "fromOldest": True, "noFollow": True}
    to.step("EventService/Watch", watch, "event.kind", "event.attributes", "cursor")
    return to.taken()


def _lost_answer(to: Recorder, daemon: Daemon) -> list[dict[str, Any]]:
    spec = _spec("train-21", ["sleep", "1000"])
    through = daemon.channel
    with _swallowing(str(daemon.root.socket)) as (path, held):
        daemon.channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])
        to.call("NodeService/GetNode", {}, keep=False)  # over the connection that breaks
        held.set()
        journal = daemon.root.job("train-21").journal
        cutting = threading.Thread(target=held.cut, args=(journal.exists,))
        cutting.start()
        to.step("JobService/Start", {"spec": spec}, "job.state", "alreadyExisted")
        cutting.join(60)
        daemon.channel.close()
    daemon.channel = through
    to.sequence.insert(1, {"note": "the daemon records the job and starts it; the connection breaks before its answer"})
    to.note("the same request again, after a pause: the caller chose the id, so nothing starts twice")
    to.step("JobService/Start", {"spec": spec}, "job.state", "alreadyExisted")
    taken = to.taken()
    to.call("JobService/Stop", {"jobId": "train-21", "grace": "0s"}, keep=False)
    return taken


class _Held(threading.Event):
    """While it is set, answers are held back; `cut` ends the connections, once something is so."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[socket.socket] = []

    def cut(self, once: Callable[[], bool]) -> None:
        eventually(once)
        for each in self.connections:
            each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _swallowing(to: str) -> Iterator[tuple[str, _Held]]:
    """A socket that leads to another one, and may hold the answers back."""
    held = _Held()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listening:
        path = f"{folder}/s"
        listening.bind(path)
        listening.listen()

        def pump(source: socket.socket, sink: socket.socket, answers: bool) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    if not (answers and held.is_set()):
                        sink.sendall(data)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, far = listening.accept()[0], socket.socket(socket.AF_UNIX)
                    far.connect(to)
                    held.connections += [near, far]
                    for pair in ((near, far, False), (far, near, True)):
                        threading.Thread(target=pump, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield path, held
        listening.shutdown(socket.SHUT_RDWR)


def _restart(to: Recorder, daemon: Daemon) -> list[dict[str, Any]]:
    go = daemon.folder / "go"
    text = f"echo before; until [ -e {go} ]; do sleep 0.02; done; echo behind"
    to.step("JobService/Start", {"spec": _spec("train-22", ["sh", "-c", text])}, "job.state")
    to.sequence[0]["request"]["spec"]["command"] = ["python3", "train.py"]
    eventually(lambda: "before" in _output(to, "train-22"))
    to.step("LogService/ReadLogs", {"jobId": "train-22", "follow": True}, "rank", "offset", "data", first=1)
    daemon.kill()
    to.sequence.append({"error": {"status": "UNAVAILABLE"}})
    to.note("the daemon is killed, or upgraded; the job runs on, and its output is kept")
    to.step("JobService/Wait", {"jobId": "train-22"}, "ended")
    go.touch()
    to.note("another daemon answers; read on behind what was received: offset 0 and 7 bytes")
    daemon.restart()
    request = {"jobId": "train-22", "follow": True, "offsets": {"0": "7"}}
    to.step("LogService/ReadLogs", request, "rank", "offset", "data", "eof", "verdict.summary")
    to.step("JobService/Wait", {"jobId": "train-22"}, "ended", "job.state", "job.verdict.exitCode")
    return to.taken()


def _watch(to: Recorder, daemon: Daemon) -> list[dict[str, Any]]:
    shown = ("event.kind", "event.jobId", "cursor")
    to.call("JobService/Start", {"spec": _spec("train-23", ["true"])}, keep=False)
    to.call("JobService/Wait", {"jobId": "train-23"}, keep=False)
    seen = to.step("EventService/Watch", {"jobId": "train-23", "fromOldest": True}, *shown, first=2)
    daemon.kill()
    to.sequence.append({"error": {"status": "UNAVAILABLE"}})
    to.note("the daemon is killed, and another one answers; go on behind the last message that was dealt with")
    daemon.restart()
    request = {"jobId": "train-23", "cursor": seen[-1]["cursor"], "noFollow": True}
    to.step("EventService/Watch", request, *shown)
    to.note("a cursor of a history that is no longer stored: list all jobs anew, then watch from the oldest")
    answers = to.call("EventService/Watch", {"cursor": "0123456789abcdef-0"}, keep=False)
    assert answers is None
    to.step("EventService/Watch", {"cursor": "0123456789abcdef-0"}, *shown)
    to.step("JobService/List", {"pageSize": 1000}, "nextPageToken")
    return to.taken()


# --- the file ---------------------------------------------------------------------------------------------------------


def _without_this_machine(found: Any, daemon: Daemon) -> Any:
    text = json.dumps(found)
    replaced = {str(daemon.folder): "/srv/node", socket.gethostname(): "node-7", getpass.getuser(): "root"}
    for what, by in replaced.items():
        text = text.replace(json.dumps(what)[1:-1], by)
    text = re.sub(r'"bootId": "[^"]+"', '"bootId": "6f1c3a52-8d0e-4b7b-9f0a-2c5d7e9b1a34"', text)
    text = re.sub(r'"build": "[^"]+"', '"build": "a1b2c3d4e of 2026-01-01"', text)
    return json.loads(text)


def main() -> int:
    """Returns the exit code."""
    found = record()
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{sum(map(len, found['calls'].values()))} calls of {len(found['calls'])} methods; now run `make docs`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
