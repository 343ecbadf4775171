"""A daemon of one's own, for the length of one job."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.agent import name_no_folder_by_nothing
from muster.agent.cli.client import kept_runs, log_claim, own_folder
from muster.agent.cli.client.address import Address
from muster.agent.cli.client.interrupts import Interrupts
from muster.agent.cli.client.kept_runs import KeptRun
from muster.agent.cli.client.log_claim import LogClaim
from muster.agent.cli.exits import CommandFailed, Exit, NoDaemon, not_started
from muster.agent.cli.printing import note
from muster.agent.host import task_room
from muster.agent.host.early_signals import is_init
from muster.probes.kernel import endings, process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import SupervisionError
from muster.supervisors.system import lock

#: Seconds within which the daemon must answer after its start, and, over the job's grace, end when we have gone. (It
#: gives itself less: MARGIN_S and LAST_WORDS_S in agent/ending.py.)
START_S = 30.0
END_S = 90.0
#: Seconds that it may spend besides, waiting for a processor: on a crowded machine that is most of its start.
CROWDED_S = 300.0
#: Seconds between two looks whether it listens.
PROBE_S = 0.003
#: Seconds between two starts of a daemon that ends again and again.
AGAIN_S = 1.0
#: Seconds that a daemon without a job may take to end; for so long no signal ends the wait.
TIDY_S = 5.0
LOOK_S = 0.2
#: The configuration of this node's service applies to our daemon too.
_SYSTEM_CONFIG = Root.system().config
#: Without it, in a container or on a laptop, a finding is a warning and refuses no job.
_BY_ITSELF = '[checks]\npolicy = "warn"\n[health]\npolicy = "warn"\n'
#: Of a daemon that shows a run: it looks at no node, and nothing is old enough to go.
_LOOKS_ONLY = """
[checks]
policy = "off"
[health]
policy = "off"
[telemetry]
enabled = false
[jobs]
keep_ended = 0
keep_ended_days = 0
[logs]
keep_days = 0
min_free_percent = 0
"""


@dataclass(frozen=True, slots=True)
class _OwnAddress(Address):
    """Each probe restarts a daemon that was killed, first."""

    look_after: Callable[[], None] = lambda: None

    def probe(self, timeout: float = 5.0) -> None:
        """See Address."""
        self.look_after()
        Address.probe(self, timeout)


class Standalone:
    """The daemon and its folder. Set `keep_logs` to keep the job's logs, `failed` to have its report written."""

    def __init__(
        self, root: Path, owner_fd: int, interrupts: Interrupts, *, claim_fd: int = -1, past: KeptRun | None = None
    ) -> None:
        """Starts it; `owner_fd` is the end of the pipe that it reads, `claim_fd` of the claim on the names of its logs
        (log_claim.py), which it holds as long as it lives. `past`: it shows this run, and takes no job. Raises
        OSError."""
        self.root = root
        self.keep_logs = True
        #: Whether the job has failed: then its report is written, and lies there in the end.
        self.failed = False
        self.report: Path | None = None
        #: Once it has ended: what is kept of it.
        self.kept: KeptRun | None = None
        self.address: Address = _OwnAddress(Root.under(root).socket, look_after=self._look_after)
        self._interrupts = interrupts
        self._command, self._fds = _command(root, owner_fd, claim_fd, past)
        self._lock = threading.Lock()
        self._revived_at: float | None = None  # None: it is not to be started again
        self.process = _spawn(root, self._command, self._fds)

    @property
    def log_dir(self) -> Path:
        """The folder of the job's logs."""
        return self.kept.log if self.kept is not None else Root.under(self.root).log.resolve()

    def wait_ready(self) -> None:
        """Returns when the daemon listens. Raises CommandFailed: 125 with its last words when it ends or takes too
        long, and where a signal came before."""
        begun = time.monotonic()
        while True:
            if self._interrupts.first:
                raise not_started(self._interrupts.first)
            try:
                self.address.probe()
                self._revived_at = 0.0
                return
            except NoDaemon:
                pass
            if (code := self.process.poll()) is not None:
                if -code in process.END_SIGNALS:
                    raise not_started(-code)
                text = f"the daemon of this job {endings.describe_code(code)}"
                said = self._last_words()
                raise CommandFailed(f"{text}:\n{said}" if said else f"{text} before it was ready", Exit.MUSTER_FAILED)
            if (spent := time.monotonic() - begun) > START_S:
                waited = min(process.waited_for_cpu(self.process.pid), CROWDED_S)
                if spent > START_S + waited:
                    raise CommandFailed(self._silence(spent, waited), Exit.MUSTER_FAILED)
            time.sleep(PROBE_S)

    def close(self) -> None:
        """It is not needed any more, and is not started again."""
        with self._lock:
            self._revived_at = None

    @contextmanager
    def reaping(self) -> Iterator[None]:
        """Inside, as PID 1 of a container, orphans are waited for."""
        if not is_init():
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._reap, args=(over,), name="orphans", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _reap(self, over: threading.Event) -> None:
        from muster.agent import orphans

        root = Root.under(self.root)
        ours = orphans.Orphans(lambda: {self.process.pid} | orphans.of_jobs(root))
        while not over.wait(orphans.LOOK_S):
            with self._lock:  # no other daemon is being started meanwhile
                ours.look()

    def _look_after(self) -> None:
        """The daemon was killed: its jobs run on, and another one takes them over, as that of a node does."""
        with self._lock:
            if self._revived_at is None or (code := self.process.poll()) is None:
                return
            if time.monotonic() - self._revived_at < AGAIN_S:
                return
            self._revived_at = time.monotonic()
            note(f"the daemon of this job (pid {self.process.pid}) {endings.describe_code(code)}: starting another")
            self.process = _spawn(self.root, self._command, self._fds)

    def _silence(self, spent: float, waited: float) -> str:
        """`spent`: seconds since its start; `waited`: how many of them it waited for a processor."""
        text = f"the daemon of this job did not answer within {spent:.0f} s"
        if waited >= 1.0:
            text += f", {waited:.0f} s of which it waited for a processor"
        said = self._last_words()
        return f"{text}:\n{said}" if said else f"{text}: see whether this machine is overloaded, and try again"

    def _last_words(self) -> str:
        lines = _own_log(self.root).read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-10:])


def _own_log(root: Path) -> Path:
    return root / "musterd.log"


@contextmanager
def bring(
    log_dir: str | None, grace_s: float, interrupts: Interrupts, job_id: str = "", node_rank: int = 0
) -> Iterator[Standalone]:
    """Starts a daemon in a new folder below $TMPDIR and ends it afterwards.

    The daemon reads a pipe whose other end is ours: if this process is killed, the daemon notices and stops its job.
    Afterwards everything but the logs is removed (the spec in it holds the caller's environment), and the logs too
    unless they are to be kept. `log_dir`: a folder for the logs, made if need be, always kept. `grace_s`: of the job.
    `job_id`, `node_rank`: whose logs will be there, if the id is known. Raises CommandFailed.
    """
    _refuse_without_room()
    root = own_folder.new_root()
    read_end, write_end = os.pipe()
    claim: LogClaim | None = None
    try:
        own_folder.make(root, log_dir)
        if log_dir is not None and job_id:
            claim = log_claim.claim(Path(log_dir), job_id, node_rank)
        own = Standalone(root, read_end, interrupts, claim_fd=claim.fd if claim is not None else -1)
    except BaseException:
        if claim is not None:
            claim.close(over=True)
        os.close(read_end)
        os.close(write_end)
        shutil.rmtree(root, ignore_errors=True)
        raise
    try:
        with own.reaping():
            yield own
    finally:
        own.close()
        os.close(write_end)
        os.close(read_end)
        ended = _end(own.process, grace_s, interrupts)
        if claim is not None:
            claim.close(over=ended)
        if ended:
            _tidy(own, log_dir is not None)


@contextmanager
def bring_back(past: KeptRun) -> Iterator[Address]:
    """Starts a daemon that shows a run which has ended, on a copy of its records. Raises CommandFailed."""
    _refuse_without_room()
    root, interrupts = own_folder.new_root(), Interrupts()
    read_end, write_end = os.pipe()
    own: Standalone | None = None
    try:
        try:
            places = Root.under(root)
            places.run.mkdir(0o755)
            shutil.copytree(past.state, places.state)
            own = Standalone(root, read_end, interrupts, past=past)
        except (OSError, shutil.Error) as error:
            raise CommandFailed(f"cannot show the run kept in {past.folder}: {error}", Exit.MUSTER_FAILED) from None
        own.wait_ready()
        yield own.address
    finally:
        if own is not None:
            own.close()
        os.close(write_end)
        os.close(read_end)
        if own is not None:
            _end(own.process, 0.0, interrupts)
            wait_nursery(Root.under(root))
        shutil.rmtree(root, ignore_errors=True)


def _refuse_without_room() -> None:
    """Raises CommandFailed: a thread that cannot be had would end the daemon, or this command, at any place."""
    if trouble := task_room.trouble(task_room.COMMAND, task_room.DAEMON):
        raise CommandFailed(trouble, Exit.MUSTER_FAILED)


def _command(root: Path, owner_fd: int, claim_fd: int, past: KeptRun | None) -> tuple[list[str], list[int]]:
    """The daemon's command line and descriptors. Raises OSError."""
    # -P: a folder named `agent` in the caller's working folder must not be taken for ours.
    command = [sys.executable, "-P", "-m", "muster.agent.musterd", "--root", str(root), "--owner-fd", str(owner_fd)]
    if claim_fd >= 0:
        command += ["--claim-fd", str(claim_fd)]
    if past is not None:
        command += ["--log-dir", str(past.log)]
    if past is None and os.access(_SYSTEM_CONFIG, os.R_OK):
        command += ["--config", str(_SYSTEM_CONFIG)]
    else:
        (root / "musterd.toml").write_text(_BY_ITSELF if past is None else _LOOKS_ONLY)
    return command, [fd for fd in (owner_fd, claim_fd) if fd >= 0]


def _spawn(root: Path, command: list[str], fds: list[int]) -> subprocess.Popen[bytes]:
    # A service manager that started us must not hear of this one.
    env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    name_no_folder_by_nothing(env)
    # A signal to every process of a step may come before the daemon handles it: it is blocked there until then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, process.USER_SIGNALS)
    try:
        with open(_own_log(root), "ab") as log:
            # A process group of its own: Ctrl-C at the terminal is for us, and we stop the job.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, pass_fds=fds, process_group=0
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(daemon: "subprocess.Popen[bytes]", grace_s: float, interrupts: Interrupts) -> bool:
    """Waits for the end of a daemon whose pipe is closed; a daemon with a job stops it first, which takes its grace. A
    signal that asks for something new ends that: false, and the daemon goes on."""
    if _has_ended(daemon, TIDY_S):
        return True
    note(f"waiting for the daemon of this job (pid {daemon.pid}) to exit")
    asked, end = interrupts.asked, time.monotonic() + grace_s + END_S
    while time.monotonic() < end:
        if _has_ended(daemon, LOOK_S):
            return True
        if interrupts.asked > asked:
            note(f"no longer waiting: the daemon of this job (pid {daemon.pid}) stops the job and exits")
            return False
    note(f"the daemon of this job (pid {daemon.pid}) did not exit within {grace_s + END_S:g} s: killing it")
    daemon.kill()
    daemon.wait()
    return True


def _has_ended(daemon: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Whether it ends within so many seconds. Returns as soon as it does; `Popen.wait` looks each 50 ms."""
    if daemon.poll() is None:  # so its pid is not another's
        pidfd = os.pidfd_open(daemon.pid)
        try:
            process.wait_ended(pidfd, seconds)
        finally:
            os.close(pidfd)
    return daemon.poll() is not None


def wait_nursery(root: Root) -> None:
    """The nursery ends behind its daemon, by itself: when the command has ended, nothing of it runs. Best effort: one
    that does not end is left, but not because it waits for a processor."""
    with contextlib.suppress(OSError):
        if pid := lock.holder(root.nursery_lock):
            pidfd = os.pidfd_open(pid)
            try:
                begun, waited = time.monotonic(), process.waited_for_cpu(pid)
                if lock.holder(root.nursery_lock) != pid:  # so the pid was another's
                    return
                while not process.wait_ended(pidfd, LOOK_S):
                    crowded = min(process.waited_for_cpu(pid) - waited, CROWDED_S)
                    if time.monotonic() - begun > TIDY_S + crowded:
                        return
            finally:
                os.close(pidfd)


def _tidy(own: Standalone, logs_elsewhere: bool) -> None:
    root = Root.under(own.root)
    wait_nursery(root)
    _keep(own, logs_elsewhere)
    if logs_elsewhere:
        own_folder.set_report_aside(root, root.log.resolve())
    if own.failed:
        own.report = own_folder.write_report(root, root.log.resolve() if logs_elsewhere else own.log_dir)
    own_folder.tidy_logs(root)
    for folder in (root.run, root.state):
        shutil.rmtree(folder, ignore_errors=True)
    if logs_elsewhere or not own.keep_logs or own.log_dir != root.log.resolve():
        if root.log.is_symlink():
            root.log.unlink()
        shutil.rmtree(own.root, ignore_errors=True)


def _keep(own: Standalone, logs_elsewhere: bool) -> None:
    """Best effort: where there is no place for it, as in a container whose home is read-only, nothing is kept."""
    try:
        own.kept = kept_runs.keep(Root.under(own.root), logs_stay=logs_elsewhere, succeeded=not own.keep_logs)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR):
            where = f"{error.strerror}: set {kept_runs.VARIABLE} to another folder, or to nothing"
            note(f"this run is not kept in {kept_runs.folder()}: {where}")
    except (SupervisionError, ValueError, TypeError):
        pass  # records that somebody damaged
