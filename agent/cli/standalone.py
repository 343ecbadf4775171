"""A daemon of one's own, for the length of one job."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.cli.address import Address
from agent.cli.errors import Exit, Failure, NoDaemon
from agent.cli.output import note
from supervisors import journal, trust
from supervisors.errors import SupervisionError, Untrusted
from supervisors.paths import JobPaths, Root
from supervisors.replay import replay

#: Seconds within which the daemon must answer after its start, and end when we have gone (longer than a usual grace).
START_S = 30.0
END_S = 120.0
#: Seconds that a daemon without a job may take to end; for so long nothing disturbs us.
TIDY_S = 5.0
#: What a service's daemon on this node would be told is true for ours too.
_SYSTEM_CONFIG = Path("/etc/muster/musterd.toml")
#: Bytes that `Root.socket` and what is beside it need below the folder, and the limit for a socket's path.
_SOCKET_BYTES = len("/run/nursery-12345678.sock")
_MAX_PATH = 107
#: Where it is tried behind $TMPDIR: a container's /tmp may be everybody's, and not sticky.
_FOLDERS = ("/tmp", "/var/tmp")


@dataclass(slots=True)
class Standalone:
    """The daemon and its folder. Set `keep_logs` for a job whose logs somebody will want to read."""

    root: Path
    address: Address
    process: subprocess.Popen[bytes]
    keep_logs: bool = True

    @property
    def log_dir(self) -> Path:
        return Root.under(self.root).log

    def wait_ready(self) -> None:
        """Returns when the daemon listens. Raises Failure (125) with its last words when it ends or takes too long."""
        end = time.monotonic() + START_S
        while True:
            try:
                self.address.probe()
                return
            except NoDaemon:
                pass
            if self.process.poll() is not None:
                code = self.process.returncode
                raise Failure(f"its own daemon ended with code {code}:\n{self._last_words()}", Exit.MUSTER_FAILED)
            if time.monotonic() > end:
                raise Failure(f"its own daemon does not answer:\n{self._last_words()}", Exit.MUSTER_FAILED)
            time.sleep(0.01)

    def _last_words(self) -> str:
        lines = _own_log(self.root).read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-10:])


def _own_log(root: Path) -> Path:
    return root / "musterd.log"


@contextmanager
def bring(log_dir: str | None) -> Iterator[Standalone]:
    """Starts a daemon in a new folder below $TMPDIR and ends it afterwards.

    The daemon holds one end of a pipe whose other end is ours: if this process is killed, the daemon notices and stops
    its job. Afterwards everything but the logs is removed (the spec in it holds the caller's environment), and the
    logs too unless they are to be kept. `log_dir`: a folder for the logs, made if need be, always kept. Raises Failure.
    """
    root = _new_root()
    read_end, write_end = os.pipe()
    try:
        if log_dir is not None:
            _link_logs(root, Path(log_dir))
        process = _spawn(root, read_end)
    except BaseException:
        os.close(write_end)
        shutil.rmtree(root, ignore_errors=True)
        raise
    finally:
        os.close(read_end)
    own = Standalone(root, Address(Root.under(root).socket), process)
    try:
        yield own
    finally:
        os.close(write_end)
        with _deaf():
            ended = _ends(process, TIDY_S)
        if not ended:
            _end(process)
        with _deaf():
            _tidy(own, log_dir is not None)


def _new_root() -> Path:
    """In the first of the usual folders that serves. Raises Failure."""
    trouble = ""
    for folder in dict.fromkeys((tempfile.gettempdir(), *_FOLDERS)):
        if len(os.fsencode(folder)) + len("/muster-12345678") + _SOCKET_BYTES > _MAX_PATH:
            trouble = trouble or f"{folder}: the name is too long for sockets below it"
            continue
        try:
            trust.check(Path(folder))
            return Path(tempfile.mkdtemp(prefix="muster-", dir=folder))
        except Untrusted as error:
            trouble = trouble or str(error)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Failure(f"{folder}: {error.strerror}: set TMPDIR to a folder with room", Exit.MUSTER_FAILED) from None
    raise Failure(f"no folder for temporary files serves: {trouble}; or set TMPDIR", Exit.MUSTER_FAILED)


def _link_logs(root: Path, log_dir: Path) -> None:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        # Not resolved: ranks are told paths below it, in the words of whoever named it.
        Root.under(root).log.symlink_to(log_dir.absolute(), target_is_directory=True)
    except OSError as error:
        raise Failure(f"folder for logs {log_dir}: {error.strerror}; name another with --log-dir", Exit.USAGE) from None


def _spawn(root: Path, owner_fd: int) -> subprocess.Popen[bytes]:
    # -P: a folder named `agent` in the caller's working folder must not be taken for ours.
    command = [sys.executable, "-P", "-m", "agent.musterd", "--root", str(root), "--owner-fd", str(owner_fd)]
    if os.access(_SYSTEM_CONFIG, os.R_OK):
        command += ["--config", str(_SYSTEM_CONFIG)]
    else:
        # A container or a laptop is what it is: its shortcomings are told, and keep nobody from trying.
        (root / "musterd.toml").write_text('[checks]\npolicy = "warn"\n[health]\npolicy = "warn"\n')
    # A service manager that started us must not hear of this one.
    env = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    with open(_own_log(root), "wb") as log:
        # A process group of its own: Ctrl-C at the terminal is for us, and we stop the job.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            pass_fds=(owner_fd,),
            process_group=0,
        )


@contextmanager
def _deaf() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM do nothing: one Ctrl-C too many must not keep us from tidying up."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a daemon that has a job to stop, which takes the job's grace. The pipe is closed already."""
    note("waiting for its own daemon, which stops the job")
    if not _ends(process, END_S):
        note(f"its own daemon (pid {process.pid}) did not end within {END_S:g} s: killing it")
        process.kill()
        process.wait()


def _tidy(own: Standalone, logs_elsewhere: bool) -> None:
    root = Root.under(own.root)
    _tidy_logs(root)
    for folder in (root.run, root.state):
        shutil.rmtree(folder, ignore_errors=True)
    if logs_elsewhere or not own.keep_logs:
        if root.log.is_symlink():
            root.log.unlink()
        shutil.rmtree(own.root, ignore_errors=True)


def _tidy_logs(root: Root) -> None:
    """Leaves what people read: the indices served the daemon alone. Best effort."""
    with contextlib.suppress(OSError, SupervisionError):
        for entry in root.jobs.iterdir():
            job = replay(journal.read(JobPaths(entry).journal).records)
            root.job_index(entry.name, job.node_rank).unlink(missing_ok=True)
            for rank in job.ranks:
                root.rank_index(entry.name, rank.rank, rank.device).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        if not root.nursery_log.stat().st_size:
            root.nursery_log.unlink()
