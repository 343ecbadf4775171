"""The start of the daemon, from its command line to its event loop, and its end."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import anyio
import click

from muster.agent.config.live_config import LiveConfig
from muster.agent.errors import StartupError
from muster.agent.host import heap, lockfile, log_setup, ownership, state_folder
from muster.agent.link import nursery_start
from muster.agent.link.nursery_start import Begun
from muster.agent.node import degraded
from muster.probes.kernel import late_import
from muster.supervisors.paths import Root

#: For GRPC_SSL_CIPHER_SUITES: gRPC has no setting for the oldest version of TLS. TLS 1.3 has ciphers of its own, which
#: this does not touch; of those of TLS 1.2 it leaves one that needs a pre-shared key, which nobody has.
_NO_TLS_1_2 = "ECDHE-PSK-AES128-CBC-SHA"
#: Protobuf without its C part: imported by each generated module, and not used. What describes messages: for who asks
#: the server what it offers; half a MB.
_UNUSED = ("google.protobuf.internal.python_message", "google.protobuf.descriptor_pb2")

#: Seconds that threads have for what they are doing when the daemon ends.
_THREADS_S = 10.0


def start(
    root: Root,
    config_file: Path | None,
    record: str,
    *,
    check: bool,
    trusted: bool,
    owner_fd: int | None,
    begun: Begun | None,
) -> None:
    """Serves until the daemon is to end, and ends the process; where `check` only looks whether it would start.

    `trusted`: no look is taken at who can change the Python environment. `owner_fd`: the pipe of the command that this
    daemon serves; None: there is none. `begun`: the nursery that is being started.
    """
    failure: StartupError | None = None
    try:
        if not trusted:
            ownership.refuse_environment_of_others()
        settings = LiveConfig(root, config_file, record)
        if check:
            from muster.agent.api import server
            from muster.agent.jobs.hardening import decided

            state_folder.check(root)
            server.check(root, settings.now)
            unusable, odd = decided.trouble(settings.now.hardening)
            if unusable:
                raise StartupError(f"{unusable}; musterd would start, and refuse the jobs of other users")
            for text in odd:
                click.echo(f"musterd: {text}", err=True)
            click.echo(settings.origin)
            return
        degraded.take_descriptors()
        log_setup.configure(settings.now.daemon.log_level, settings.now.daemon.log_format)
        state_folder.prepare(root)
        with lockfile.held(root.daemon_lock):
            _serve(root, settings, owner_fd, begun)
    except* StartupError as group:
        failure = _first(group)
    finally:
        log_setup.own_log(log_setup.STDERR).settle(log_setup.END_S)
    if failure is not None:
        with contextlib.suppress(OSError):
            click.echo(f"musterd: {failure}", err=True)
        sys.exit(1)
    _leave()


def _serve(root: Root, settings: LiveConfig, owner_fd: int | None, begun: Begun | None) -> None:
    """Raises StartupError, alone or in groups. The daemon that left the sockets has ended: it would hold the lock."""
    for path in (root.socket, root.reader_socket):
        path.unlink(missing_ok=True)
    # Before gRPC is imported: the daemon never forks, and gRPC's handlers for it cost and can hang.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ["GRPC_SSL_CIPHER_SUITES"] = _NO_TLS_1_2
    _prefer_our_session()
    heap.keep_one()
    begun = begun or nursery_start.begin_early(root, owner_fd)  # beside our imports, which take longer than its own
    with late_import.noted(*_UNUSED):
        from muster.agent import wiring

    heap.collect()
    loop = {"use_uvloop": True}
    anyio.run(wiring.serve, root, settings, owner_fd, begun, backend="asyncio", backend_options=loop)
    for path in (root.socket, root.reader_socket):
        path.unlink(missing_ok=True)


def _leave() -> NoReturn:
    """Ends the process. At once, as soon as no thread works any more: all is on disk, and Python would take 0.1 s to
    tear down what the kernel frees anyway. A thread that hangs in the kernel is not waited for."""
    end = time.monotonic() + _THREADS_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, end - time.monotonic()))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(0)


def _prefer_our_session() -> None:
    """Gives the session that we lead our own nice value, if that is below 0.

    Where the kernel groups processes by session (sched_autogroup_enabled, on by default) and no cgroup with the
    controller cpu is between, a nice value counts only among the processes of one session: the unit's `Nice=` would do
    nothing against 256 ranks that are let go at once, each of which leads its own. Nursery and supervisors lead theirs,
    too, and keep the usual weight: an answer must not wait for a start. Best effort: it needs CAP_SYS_NICE.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice < 0 and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def _first(group: ExceptionGroup[StartupError]) -> StartupError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
