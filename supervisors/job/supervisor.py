"""The process that supervises one job: the nursery forks it, and it exits with the job."""

import contextlib
import os
import signal
import socket
import sys

from muster.probes.kernel import process
from muster.supervisors.job.gang import RankGang
from muster.supervisors.model import journal
from muster.supervisors.model.replay import replay
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.supervision_errors import AlreadySupervised, SupervisionError, Untrusted
from muster.supervisors.system import lock, trust
from muster.supervisors.system.urgency import prefer_session
from muster.supervisors.wire import messages
from muster.supervisors.wire.messages import MAX_TOLD

#: How a supervisor leaves: the job has ended, or was never recorded; another one has the job; the job's files cannot be
#: worked with.
DONE, BUSY, UNUSABLE = 0, 3, 4


def explain(error: BaseException) -> str:
    """The end of the traceback, as the interpreter would print it: at most MAX_TOLD characters."""
    try:
        import traceback  # only here: it is memory in each supervisor

        text = "".join(traceback.format_exception(error))
    except Exception:  # a disk that does not give the module, say
        text = f"{type(error).__name__}: {error}"
    return text[-MAX_TOLD:]


def supervise(root: Root, job_id: str, sock: socket.socket, owned: bool, folder: str = "") -> int:
    """Runs a job to its end; `sock` leads to the nursery, `owned` as there. `folder`: see `_is_recorded`. Returns the
    exit status for this process.

    Raises OSError where the job's files cannot be read or written: the nursery then tries again.
    """
    os.setsid()
    prefer_session(os.getpriority(os.PRIO_PROCESS, 0) // 2)
    for number in process.END_SIGNALS:
        # Nothing but the job's end or a SIGKILL ends a supervisor; jobs are stopped over the control socket.
        signal.signal(number, signal.SIG_IGN)
    paths = root.job(job_id)
    if folder and not _is_recorded(root, paths, folder):
        return DONE
    try:
        held = lock.take(paths.lock, paths.folder)
    except AlreadySupervised:
        return BUSY
    except (Untrusted, FileNotFoundError, NotADirectoryError) as error:
        return _unusable(job_id, error, sock)
    try:
        # Only here can a job be given up: whatever goes wrong later, its ranks live, and a successor tries again.
        spec = JobSpec.read(paths.spec, job_id)
        contents = journal.read(paths.journal)
        job = replay(contents.records)
        if job.state.final:
            return DONE
    except (SupervisionError, ValueError, TypeError) as error:
        return _unusable(job_id, error, sock)
    RankGang(root, spec, contents, job, sock, owned).loop.run()
    held.close()
    return DONE


def _is_recorded(root: Root, paths: JobPaths, folder: str) -> bool:
    """Whether the daemon has recorded the job that it had begun in this `folder`, once it lets go of the job's lock. It
    gives the folder the job's name when all is on disk, and removes it otherwise; a daemon that dies leaves it. Raises
    OSError."""
    for path in (root.jobs / folder, paths.folder):  # in this order: it may get its name meanwhile
        with contextlib.suppress(FileNotFoundError):
            fd = trust.open_folder(path, flags=os.O_RDONLY)
            try:
                lock.wait(paths.lock.name, fd)
                return os.path.samestat(os.stat(paths.folder), os.fstat(fd))
            finally:
                os.close(fd)
    return False


def _unusable(job_id: str, error: Exception, sock: socket.socket) -> int:
    """Tells the nursery why, which tells the daemon."""
    with contextlib.suppress(OSError):
        sock.send(messages.encode({"op": "died", "error": str(error)[-MAX_TOLD:]}))
    with contextlib.suppress(OSError):
        print(f"supervisor {job_id}: {error}", file=sys.stderr)
    return UNUSABLE
