"""A real daemon in a folder of its own, spoken to through its socket, its command line and its files."""

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import hypothesis
import pytest

from muster.supervisors.paths import Root
from muster.supervisors.system import cgroups, lock
from muster.v1 import (
    event_pb2,
    event_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    probe_pb2_grpc,
    telemetry_pb2_grpc,
)

BIN = Path(sys.executable).parent
FINAL = {
    job_pb2.JOB_STATE_SUCCEEDED,
    job_pb2.JOB_STATE_FAILED,
    job_pb2.JOB_STATE_STOPPED,
    job_pb2.JOB_STATE_LOST,
}


# No limit of time for one example: the machine may be busy.
hypothesis.settings.register_profile("muster", deadline=None)
hypothesis.settings.load_profile("muster")

# A process that a script starts in the background has these ignored, and with him all whom he starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _of_somebody(send: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def to(pid: int, number: int) -> None:
        # 0 is what a job tells of a rank that it does not know yet, and to the kernel it is the caller's whole group: a
        # test that looked too early once stopped pytest, its workers, make and the script above them, without a word.
        if pid <= 0:
            raise ValueError(f"signal {number} to {pid}, which is no process's number")
        send(pid, number)

    return to


os.kill = _of_somebody(os.kill)
os.killpg = _of_somebody(os.killpg)


@contextlib.contextmanager
def running(command: Sequence[str | Path], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """A process that does not outlive the `with`, whatever goes wrong in it: Popen's own would wait for ever."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


#: Bytes of a temporary folder's path that leave room for our folder, pytest's and a root in a socket's address (107).
LONGEST_TMP = 9
#: Beginnings of the variables that choose tests.
_CHOICES = ("MUSTER_TEST_", "MUSTER_CHAOS_", "MUSTER_FUZZ_", "MUSTER_SOAK_")


#: Where pytest makes its folders, if not in the temporary folder itself.
_TEMPROOT = "PYTEST_DEBUG_TEMPROOT"


def pytest_configure(config: pytest.Config) -> None:
    """Tests, and what they start, find the same for every user: nothing of the user's shell, session or name."""
    # nohup has SIGHUP ignored. With a handler we still survive it, while programs begin with the default.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    os.umask(0o022)
    os.environ.pop("COLUMNS", None)
    for name in [name for name in os.environ if name.startswith("MUSTER_") and not name.startswith(_CHOICES)]:
        del os.environ[name]
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMP:
        os.environ["TMPDIR"] = tempfile.tempdir = "/tmp"
    # A folder of this session's own: at its start pytest closes the folder that all its sessions share to other users,
    # and with it the folders of tests that run as one.
    if _TEMPROOT not in os.environ and not config.option.basetemp:
        os.environ[_TEMPROOT] = config.stash[_OURS] = tempfile.mkdtemp(prefix="t-")
    # No standalone run is kept, where a test names no folder for it: another test's run is not to be found.
    os.environ["XDG_STATE_HOME"] = "/dev/null/state"


_OURS = pytest.StashKey[str]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Removes the session's folder, unless a test failed: then its files may show why."""
    if exitstatus == pytest.ExitCode.OK and (folder := session.config.stash.get(_OURS, "")):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that wait, tests with daemons and tests that compute are spread over the whole run, a module at a time:
    each worker has its share of all, no core is idle while others wait, and none of the last ones is slow."""
    if not hasattr(config, "workerinput"):
        return  # one process: as they stand in the files
    kinds: dict[tuple[bool, bool], list[list[pytest.Item]]] = {}
    modules: dict[tuple[Path, bool, bool], list[pytest.Item]] = {}
    for item in items:
        slow = any(item.iter_markers("slow")) or any(item.iter_markers("chaos"))
        kind = (slow, "unit" in item.path.parts)
        key = (item.path, *kind)
        if key not in modules:
            modules[key] = []
            kinds.setdefault(kind, []).append(modules[key])
        modules[key].append(item)
    placed: list[tuple[float, list[pytest.Item]]] = []
    for (slow, _), some in kinds.items():
        total, before = sum(map(len, some)), 0
        for module in some:
            placed.append(((0.85 if slow else 1.0) * (before + len(module) / 2) / total, module))
            before += len(module)
    items[:] = [item for _, module in sorted(placed, key=lambda each: each[0]) for item in module]


def pytest_collection_finish() -> None:
    """What was collected stays to the end: a look for garbage need not walk over it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Of `-n auto`: most tests wait rather than compute, so that each core has room for two workers."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else min(2 * len(os.sched_getaffinity(0)), 16)


def eventually(what: Callable[[], Any], seconds: float = 60.0, message: str | Callable[[], str] = "") -> Any:
    """Looks until `what` gives something true, and returns that. For what sends no event; the limit is for defects.
    `message`: what is awaited, or what tells why it did not come."""
    began = time.monotonic()
    while True:
        result = what()
        if result:
            return result
        waited = time.monotonic() - began
        if waited > seconds:
            text = message if isinstance(message, str) else message()
            raise AssertionError(f"not within {seconds} s: {text or what}")
        # Often at first, and then so that many who wait leave the cores to those who work.
        time.sleep(min(max(0.005, waited / 20), 0.05))


def remove(folder: Path) -> None:
    """A folder with all that is in it, where a nursery that is about to end may still make and remove files."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    eventually(gone)


def pending(pid: int) -> set[int]:
    """Signals that wait to be handled."""
    lines = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    waiting = int(lines["SigPnd"], 16) | int(lines["ShdPnd"], 16)
    return {number for number in range(1, 65) if waiting >> number - 1 & 1}


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def let_through(folder: Path) -> None:
    """Lets other users pass through a folder of a test and those above it."""
    above = Path(tempfile.gettempdir())
    for each in (folder, *folder.parents):
        if above in each.parents:
            each.chmod(each.stat().st_mode | 0o011)


def _kill(pid: int) -> None:
    """Kills a process that may have exited."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Daemon:
    """One root folder with, most of the time, a daemon on it."""

    def __init__(self, folder: Path, config: str = "", env: Mapping[str, str] | None = None) -> None:
        """`env`: over that of the tests, for the daemon and for commands."""
        self.folder = folder
        self.env = dict(env or {})
        #: The daemon that is started; of another release where a test says so.
        self.musterd: Sequence[str | Path] = (BIN / "musterd",)
        self.root = Root.under(folder)
        self.config = folder / "musterd.toml"
        # A machine on which tests run may have anything in its kernel's log, and a disk that is nearly full.
        health = "" if "[health]" in config else '[health]\npolicy = "off"\n'
        logs = "[logs]\nmin_free_percent = 0\n"
        if "min_free_percent" in config:
            logs = ""
        elif "[logs]\n" in config:
            config, logs = config.replace("[logs]\n", logs, 1), ""
        self.config.write_text(logs + '[checks]\npolicy = "off"\n' + health + config)
        self.stderr = folder / "musterd.stderr"
        #: Seconds within which it answers; the limit is for defects.
        self.starts_in = 60.0
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: grpc.Channel | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.root.socket}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> "Daemon":
        """Returns once it answers."""
        with open(self.stderr, "ab") as err:
            self.process = subprocess.Popen(
                [*self.musterd, "--root", self.folder, "--config", self.config],
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                env=os.environ | self.env,
            )
        self.connect()
        eventually(self._answers, self.starts_in, f"musterd answers; it said: {self.stderr.read_text()[-2000:]}")
        return self

    def connect(self) -> None:
        if self.channel is not None:
            self.channel.close()
        # A pool of its own: the library would else hand out a connection that broke with an earlier daemon.
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.max_reconnect_backoff_ms", 100),
        ]
        self.channel = grpc.insecure_channel(self.address, options=options)
        self.jobs = job_pb2_grpc.JobServiceStub(self.channel)
        self.logs = log_pb2_grpc.LogServiceStub(self.channel)
        self.events = event_pb2_grpc.EventServiceStub(self.channel)
        self.nodes = node_pb2_grpc.NodeServiceStub(self.channel)
        self.probes = probe_pb2_grpc.ProbeServiceStub(self.channel)
        self.telemetry = telemetry_pb2_grpc.TelemetryServiceStub(self.channel)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"musterd ended with {self.process.returncode}: {self.stderr.read_text()[-2000:]}")
        try:
            self.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=5, wait_for_ready=True)
        except grpc.RpcError:
            return False
        return True

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Ends the daemon by a signal and returns its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.process = None
        return code

    def restart(self) -> "Daemon":
        return self.start()

    def kill_with_nursery(self) -> None:
        """Kills the daemon, and then its nursery, which may have exited by itself: it has no jobs."""
        nursery = eventually(self.nursery_pid)
        self.kill()
        _kill(nursery)

    def nursery_pid(self) -> int:
        """Of the one that lives, if one does; its name goes by the code that this daemon runs."""
        files = self.root.run.glob("nursery*.lock")
        return next((pid for file in files if (pid := lock.holder(file))), 0)

    def supervisor_pid(self, job_id: str) -> int:
        return lock.holder(self.root.job(job_id).lock)

    def cli(self, *args: str, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
        env = dict(os.environ, MUSTER_ROOT=str(self.folder), NO_COLOR="1") | self.env
        env.update(kwargs.pop("env", {}))
        return subprocess.run(
            [str(BIN / "muster"), *args], capture_output=True, text=True, timeout=120, env=env, check=False, **kwargs
        )

    def run(self, *command: str, job_id: str = "", ranks: int = 1, **fields: Any) -> Any:
        """Starts a job and returns it as accepted."""
        env = {"PYTHONUNBUFFERED": "1"} | fields.pop("env", {})
        spec = job_pb2.JobSpec(job_id=job_id, command=command, ranks=ranks, env=env, **fields)
        return self.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job

    def get(self, job_id: str) -> Any:
        return self.jobs.Get(job_pb2.GetRequest(job_id=job_id), timeout=60).job

    def wait(self, job_id: str, seconds: float = 120.0) -> Any:
        """The job once it has ended, over restarts of the daemon."""
        request = job_pb2.WaitRequest(job_id=job_id)
        request.timeout.FromMilliseconds(int(seconds * 1000))
        answer = self.jobs.Wait(request, timeout=seconds + 10, wait_for_ready=True)
        assert answer.ended, f"{job_id} has not ended after {seconds} s: {answer.job}"
        return answer.job

    def explained(self, job_id: str) -> Any:
        """The job once its end is explained too, which `wait` waits for only so long."""
        self.wait(job_id)
        return eventually(lambda: (job := self.get(job_id)).verdict.explained and job)

    def until_running(self, job_id: str) -> Any:
        def running() -> Any:
            job = self.get(job_id)
            return job if job.state not in (job_pb2.JOB_STATE_ACCEPTED, 2, 3) else None

        return eventually(running, message=f"{job_id} runs")

    def cgroups(self, job_id: str) -> list[str]:
        """The job's folders in all hierarchies. Those of others may go meanwhile, where pathlib would raise."""
        name = cgroups.name_of(self.root, job_id)
        return [os.path.join(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup") if name in names]

    def rank_pid(self, job_id: str, rank: int = 0) -> int:
        """Of a rank that runs; its output may well be there before the daemon knows it."""
        pid: int = eventually(lambda: self.get(job_id).ranks[rank].pid, message=f"rank {rank} of {job_id} is known")
        return pid

    def stop(self, job_id: str, grace_s: float | None = None, reason: str = "") -> Any:
        request = job_pb2.StopRequest(job_id=job_id, reason=reason)
        if grace_s is not None:
            request.grace.FromMilliseconds(int(grace_s * 1000))
        return self.jobs.Stop(request, timeout=90)

    def output(self, job: Any, rank: int = 0) -> bytes:
        """What is in a rank's file; nothing where there is none yet."""
        path = Path(job.ranks[rank].log_path)
        return path.read_bytes() if path.exists() else b""

    def event_list(self, job_id: str = "") -> list[Any]:
        request = event_pb2.WatchRequest(job_id=job_id, from_oldest=True, no_follow=True)
        return [m.event for m in self.events.Watch(request, timeout=60) if m.HasField("event")]

    def read_logs(self, job_id: str, **fields: Any) -> list[Any]:
        return list(self.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id=job_id, **fields), timeout=60))

    def why(self, job_id: str) -> dict[str, Any]:
        """What `muster why` prints as JSON."""
        done = self.cli("why", job_id, "-o", "json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def until_put_away(self, job_id: str) -> None:
        """The supervisor removes its last file right behind the job's last record; nothing but what is kept is left."""
        kept = {"spec.json", "journal", "lock", "workspace", "packages", "explained.json"}
        eventually(lambda: {path.name for path in self.root.job(job_id).folder.iterdir()} <= kept)

    def close(self) -> None:
        """Ends every job, the daemon and, as its last job is gone, the nursery; nothing is left over. A daemon that has
        crashed by now fails the test, whatever the test looked at."""
        stack = self.root.crash_stack
        crashed = stack.read_text(errors="replace") if stack.exists() else ""
        if self.process is None:
            with contextlib.suppress(AssertionError):
                self.start()
        if self.process is not None:
            with contextlib.suppress(grpc.RpcError):
                for job in self.jobs.List(job_pb2.ListRequest(page_size=1000), timeout=60).jobs:
                    if job.state not in FINAL:
                        self.stop(job.job_id, grace_s=0)
            self.kill(signal.SIGKILL)
        if self.channel is not None:
            self.channel.close()
        if nursery := self.nursery_pid():
            _kill(nursery)
        assert not crashed, f"musterd crashed: {crashed}"


@pytest.fixture
def make_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """Makes daemons with a configuration of their own; they are ended with the test."""
    with contextlib.ExitStack() as made:

        def make(config: str = "", env: Mapping[str, str] | None = None, by: Sequence[str | Path] = ()) -> Daemon:
            """`by`: the command that runs the daemon in its own process."""
            daemon = Daemon(tmp_path_factory.mktemp("root"), config, env)
            daemon.musterd = (*by, *daemon.musterd)
            made.callback(daemon.close)
            return daemon.start()

        yield make


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A socket's address takes 107 bytes, and more of a folder's name would be too much."""
    folder = Path(tempfile.mkdtemp(prefix="m-", dir="/tmp"))
    yield folder
    remove(folder)


@pytest.fixture
def open_daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A running daemon whose root other users can pass through: for jobs of another user."""
    daemon = make_daemon()
    let_through(daemon.folder)
    return daemon


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A running daemon that skips the pre-checks."""
    return make_daemon()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One running daemon for a module whose tests leave nothing behind."""
    daemon = Daemon(tmp_path_factory.mktemp("shared"))
    yield daemon.start()
    daemon.close()
