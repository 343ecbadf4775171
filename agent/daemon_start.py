"""The start of the daemon, from its command line to its event loop, and its end."""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import anyio
import click
import structlog

from muster.agent.config.live_config import LiveConfig
from muster.agent.config.schema import Config
from muster.agent.errors import StartupError
from muster.agent.host import heap, lockfile, log_setup, ownership, state_folder
from muster.agent.link import nursery_start
from muster.agent.link.nursery_start import Begun
from muster.agent.node import degraded
from muster.probes.kernel import late_import
from muster.supervisors.paths import Root
from muster.supervisors.system.urgency import prefer_session

if TYPE_CHECKING:
    from muster.agent.node.driver_crashes import DriverCrash

#: For GRPC_SSL_CIPHER_SUITES: gRPC has no setting for the oldest version of TLS. TLS 1.3 has ciphers of its own, which
#: this does not touch; of those of TLS 1.2 it leaves one that needs a pre-shared key, which nobody has.
_NO_TLS_1_2 = "ECDHE-PSK-AES128-CBC-SHA"
#: Protobuf without its C part: imported by each generated module, and not used. What describes messages: for who asks
#: the server what it offers; half a MB.
_UNUSED = ("google.protobuf.internal.python_message", "google.protobuf.descriptor_pb2")

#: Seconds that threads have to end their work before the process ends without them.
THREADS_S = 10.0


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
        settings = LiveConfig(root, config_file, record, _refuse_unusable)
        if check:
            from muster.agent.api import server
            from muster.agent.jobs.hardening import decided

            state_folder.check(root)
            server.check(root, settings.now)
            for text in decided.odd(settings.now.hardening):
                click.echo(f"musterd: {text}", err=True)
            click.echo(settings.origin)
            return
        degraded.take_descriptors()
        if owner_fd is None:  # who brings a daemon has looked
            from muster.agent.host import task_room

            if trouble := task_room.trouble(task_room.DAEMON):
                raise StartupError(trouble)
        log_setup.configure(settings.now.daemon.log_level, settings.now.daemon.log_format)
        state_folder.prepare(root)
        with lockfile.held(root.daemon_lock), lockfile.state_held(root.state_lock):
            _serve(root, settings, owner_fd, begun)
    except* StartupError as group:
        failure = _first(group)
    finally:
        log_setup.own_log(log_setup.STDERR).settle(log_setup.END_S)
    if failure is not None:
        with contextlib.suppress(OSError):
            click.echo(f"musterd: {failure}", err=True)
    _leave(0 if failure is None else 1)


def _refuse_unusable(config: Config) -> None:
    """Raises StartupError for settings over which each job would trip."""
    if config.hardening.seccomp_profile:
        from muster.agent.jobs.hardening import decided  # only here: most nodes have none

        if text := decided.unusable(config.hardening):
            raise StartupError(text)


def _crash(root: Root) -> "DriverCrash | None":
    """Looks how the daemon before this one crashed, if it did, and has a crash of this one leave its stack. Blocks."""
    found = None
    try:
        if any(path.is_file() and path.stat().st_size for path in (root.crash_stack, root.driver_crashes)):
            from muster.agent.node import driver_crashes  # only here: hardly any daemon crashes

            found = driver_crashes.earlier(root)
        file = open(root.crash_stack, "wb", buffering=0, opener=_private)  # noqa: SIM115  # open as long as the process
        faulthandler.enable(file, all_threads=False)
    except OSError as error:
        structlog.get_logger(__name__).warning("driver_crashes.unwatched", error=str(error))
    return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _serve(root: Root, settings: LiveConfig, owner_fd: int | None, begun: Begun | None) -> None:
    """Raises StartupError, alone or in groups. The daemon that left the sockets has ended: it would hold the lock."""
    for path in (root.socket, root.reader_socket):
        path.unlink(missing_ok=True)
    crash = _crash(root)
    # Before gRPC is imported: the daemon never forks, and gRPC's handlers for it cost and can hang.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    os.environ["GRPC_SSL_CIPHER_SUITES"] = _NO_TLS_1_2
    # Supervisors have half of that (job/supervisor.py): an answer must not wait for a start.
    prefer_session(os.getpriority(os.PRIO_PROCESS, 0))
    heap.keep_one()
    begun = begun or nursery_start.begin_early(root, owner_fd)  # beside our imports, which take longer than its own
    with late_import.noted(*_UNUSED), late_import.without_openssl():
        import uvloop  # noqa: F401
        from anyio import connect_unix  # noqa: F401

        from muster.agent import wiring

    heap.collect()
    loop = {"use_uvloop": True}
    anyio.run(wiring.serve, root, settings, owner_fd, begun, crash, backend="asyncio", backend_options=loop)
    for path in (root.socket, root.reader_socket):
        path.unlink(missing_ok=True)


def _leave(code: int) -> NoReturn:
    """Ends the process. As soon as no thread works any more: all is on disk, and Python would take 0.1 s to tear down
    what the kernel frees anyway. A thread that hangs in the kernel (a network file system) is not waited for."""
    until = time.monotonic() + THREADS_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _first(group: ExceptionGroup[StartupError]) -> StartupError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
