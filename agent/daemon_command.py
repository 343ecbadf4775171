"""The command line of musterd, and all that comes before its event loop."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

import anyio
import click

from muster.agent import lazy_import, usage_error
from muster.agent.config.live_config import LiveConfig
from muster.agent.errors import StartupError
from muster.agent.host import build, heap, lockfile, log_setup, ownership, state_folder
from muster.agent.host.pid_one import is_init, leave_when_asked
from muster.agent.link import nursery_start
from muster.agent.node import degraded
from muster.supervisors.paths import Root

#: For GRPC_SSL_CIPHER_SUITES: gRPC has no setting for the oldest version of TLS. TLS 1.3 has ciphers of its own, which
#: this does not touch; of those of TLS 1.2 it leaves one that needs a pre-shared key, which nobody has.
_NO_TLS_1_2 = "ECDHE-PSK-AES128-CBC-SHA"

#: Protobuf without its C part: imported by each generated module, and not used.
_UNUSED = "google.protobuf.internal.python_message"


@click.command("musterd", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="MUSTER_ROOT",
    help="Keep run, state and log folders under DIR instead of /run/muster, /var/lib/muster and /var/log/muster. "
    "Needs no root user. [env: MUSTER_ROOT]",
    metavar="DIR",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration. [default: /etc/muster/musterd.toml, with --root DIR/musterd.toml; may be missing]",
)
@click.option("--check-config", is_flag=True, help="Say whether the daemon starts with the configuration, and leave.")
@click.option("--default-config", is_flag=True, help="Print a configuration file with every setting as a comment.")
@click.option("--version", is_flag=True, help="Show the version and leave.")
@click.option(
    "--record",
    metavar="FILE",
    default="",
    help="Append the telemetry records of all jobs to FILE, a JSON object a line, for `muster hang replay`.",
)
@click.option(
    "--trust-environment",
    is_flag=True,
    help="Start as root although other users can change the Python environment that musterd runs from, and so what "
    "root runs.",
)
@click.option("--owner-fd", type=click.IntRange(min=0), hidden=True)
@click.option("--claim-fd", type=click.IntRange(min=0), hidden=True)
def command(
    root: Path | None,
    config_file: Path | None,
    check_config: bool,
    default_config: bool,
    version: bool,
    record: str,
    trust_environment: bool,
    owner_fd: int | None,
    claim_fd: int | None,
) -> None:
    """The node agent: takes jobs over gRPC on a unix socket and keeps them.

    SIGTERM ends the daemon and leaves the jobs running; as PID 1 of a container it stops them first, with their grace
    (daemon.stop_jobs). SIGHUP reads the configuration again.
    """
    log_setup.open_standard_streams()
    if version:
        click.echo(f"musterd {build.FULL}")
        return
    if default_config:
        from muster.agent.config.commented import commented

        click.echo(commented(), nl=False)
        return
    if is_init():
        leave_when_asked()
    # Absolute: the nursery, which outlives us, works in another folder.
    places = Root.under(root.absolute()) if root is not None else Root.system()
    failure: StartupError | None = None
    try:
        if not trust_environment and owner_fd is None:  # who brings a daemon of their own has run all this already
            ownership.refuse_environment_of_others()
        settings = LiveConfig(places, config_file, record and os.path.abspath(record))
        if check_config:
            from muster.agent.api import server

            state_folder.check(places)
            server.check(places, settings.now)
            click.echo(settings.origin)
            return
        degraded.take_descriptors()
        log_setup.configure(settings.now.daemon.log_level, settings.now.daemon.log_format)
        if owner_fd is not None:
            os.set_inheritable(owner_fd, False)
        if claim_fd is not None:  # held until our end (cli/client/log_claim.py)
            os.set_inheritable(claim_fd, False)
        state_folder.prepare(places)
        with lockfile.held(places.daemon_lock):
            # The daemon that left it has ended: otherwise it would hold the lock.
            for path in (places.socket, places.reader_socket):
                path.unlink(missing_ok=True)
            # Before gRPC is imported: the daemon never forks, and gRPC's handlers for it cost and can hang.
            os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
            os.environ["GRPC_SSL_CIPHER_SUITES"] = _NO_TLS_1_2
            _prefer_our_session()
            heap.keep_one()
            begun = nursery_start.begin_early(places, owner_fd)  # beside our imports, which take longer than its own
            with lazy_import.of(_UNUSED):
                from muster.agent import wiring

            heap.collect()
            loop = {"use_uvloop": True}
            anyio.run(wiring.serve, places, settings, owner_fd, begun, backend="asyncio", backend_options=loop)
            for path in (places.socket, places.reader_socket):
                path.unlink(missing_ok=True)
    except* StartupError as group:
        failure = _first(group)
    if failure is not None:
        click.echo(f"musterd: {failure}", err=True)
        sys.exit(1)
    _leave()


def main() -> None:
    """Runs the command line, and ends the process. Usage errors look like those of `muster`."""
    try:
        code = command.main(prog_name="musterd", standalone_mode=False)
    except click.ClickException as error:
        usage_error.show(error, "musterd")
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _leave() -> NoReturn:
    """Ends the process. At once, as soon as no thread works any more: all is on disk, and Python would take 0.1 s to
    tear down what the kernel frees anyway."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
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
