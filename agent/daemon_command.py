"""The command line of musterd. Few imports: a nursery that only this daemon needs is started before all others."""

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from muster.agent import usage_error
from muster.agent.host import build
from muster.agent.link import nursery_start
from muster.agent.link.nursery_start import Begun
from muster.probes.kernel import late_import
from muster.supervisors.paths import ROOT_VARIABLE, Root
from muster.supervisors.system import descriptors

#: Options with which it only prints something.
_PRINTS = frozenset({"--help", "-h", "--version", "--default-config"})
#: What structlog would show errors with, where that is installed: it takes as long as gRPC, and we show them plainly.
_UNWANTED = ("rich", "better_exceptions")


@click.command("musterd", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    envvar=ROOT_VARIABLE,
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
@click.option("--log-dir", type=click.Path(path_type=Path, file_okay=False), hidden=True)
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
    log_dir: Path | None,
) -> None:
    """The node agent: takes jobs over gRPC on a unix socket and keeps them.

    SIGTERM ends the daemon and leaves the jobs running; as PID 1 of a container it stops them first, with their grace
    (daemon.stop_jobs). SIGHUP reads the configuration again.
    """
    _open_closed_streams()
    if version:
        click.echo(f"musterd {build.FULL}")
        return
    if default_config:
        from muster.agent.config.commented import commented

        click.echo(commented(), nl=False)
        return
    # Absolute: the nursery, which outlives us, works in another folder.
    places = Root.under(root.absolute()) if root is not None else Root.system()
    if log_dir is not None:  # of a run that has ended, see cli/client/kept_runs.py
        places = replace(places, log=log_dir.absolute())
    for fd in (owner_fd, claim_fd):  # held until our end (agent/ending.py, cli/client/log_claim.py)
        if fd is not None:
            os.set_inheritable(fd, False)
    with late_import.without(*_UNWANTED), late_import.without_openssl():
        begun = _begin(places, owner_fd) if owner_fd is not None else None
        import structlog  # noqa: F401  (before anybody else does)

        from muster.agent import daemon_start

    # Who brings a daemon of their own has run all this already.
    trusted = trust_environment or owner_fd is not None
    record = record and os.path.abspath(record)
    daemon_start.start(places, config_file, record, check=check_config, trusted=trusted, owner_fd=owner_fd, begun=begun)


def _open_closed_streams() -> None:
    """Opens /dev/null in the place of stdin, stdout and stderr, as far as they are closed: else the next file would get
    their number, and what libraries print would go into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            os.set_inheritable(number, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (for as long as we live)


def _begin(places: Root, owner_fd: int) -> Begun | None:
    """Begins the nursery of a daemon with an owner, who has just made the folders for it: it starts beside our imports.
    Another daemon must have read its configuration before."""
    descriptors.raise_limit()
    return nursery_start.begin_early(places, owner_fd)


def main() -> None:
    """Runs the command line, and ends the process. Usage errors look like those of `muster`."""
    try:
        code = command.main(prog_name="musterd", standalone_mode=False)
    except click.ClickException as error:
        usage_error.show(error, "musterd")
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(1)
    except OSError as error:
        if not _PRINTS & set(sys.argv[1:]):
            raise
        _end_unwritten(error)
    sys.exit(code if isinstance(code, int) else 0)


def _end_unwritten(error: OSError) -> NoReturn:
    """stdout takes no help, version or settings. (Where nobody reads it, click ends with 1 and says nothing.)"""
    with contextlib.suppress(OSError):
        click.echo(f"musterd: standard output: {error.strerror}", err=True)
    os._exit(1)  # not by way of another flush of stdout
