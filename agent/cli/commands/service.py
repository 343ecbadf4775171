"""`muster service`: the daemon as a systemd service on this node, out of the environment that this command runs in."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.agent.cli.commands.service_files import OWN, PACKAGED, wanted_files
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import emit, note
from muster.agent.host.ownership import OWN_ENVIRONMENT, environment_of_others, programs
from muster.supervisors.paths import Root
from muster.supervisors.system import scope

if TYPE_CHECKING:
    from muster.agent.cli.installed import Installed

_RECORD = OWN.share / "muster/installed.json"
_CONFIG_FILE = Root.system().config
#: What a unit file takes without quotes or escapes.
_PLAIN = re.compile(r"[A-Za-z0-9/_.+@-]+")
#: Seconds for a program; the service has 300 to start, and 90 to end before.
_PROGRAM_S = 600.0


@click.group()
def service() -> None:
    """Install or remove the systemd service of this node.

    The service runs from the virtual environment of this command. To upgrade, run `pip install` there, or create
    another environment, then run `muster service install` again. To go back, do the same. Jobs continue meanwhile.
    """


@service.command()
@click.option("--no-start", is_flag=True, help="Do not enable, start or restart the service.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace files that were changed by hand, and keep copies; accept an environment that users other than root "
    "can change.",
)
def install(no_start: bool, force: bool) -> None:
    """Set up units, groups, folders, configuration, man pages and completions, and start the daemon.

    You can repeat it: it does not touch files that are right, the configuration, or files that were changed by hand. It
    restarts the daemon if anything changed. If the daemon does not start, it restores everything.
    """
    from muster.agent.config.commented import commented

    _need_systemd()
    _refuse_packaged()
    place = checked_programs(force)
    options = ("--trust-environment",) if environment_of_others() else ()
    # Before anything is changed: whether it runs at all, and whether the configuration is one.
    _run(str(place / "musterd"), "--check-config", *options)
    with _installed() as files:
        was_active, was_enabled = _is("active"), _is("enabled")
        try:
            changed = files.put(
                wanted_files(click.get_current_context().find_root().command, place, options), force=force
            )
            new_config = files.add(_CONFIG_FILE, commented().encode(), 0o640)
            changed += [_CONFIG_FILE] if new_config else []
            for path in changed:
                note(f"wrote {path}")
            _run("systemd-sysusers", "/etc/sysusers.d/muster.conf")
            _run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/muster.conf")
            if new_config:  # a webhook's token may come to be in it; who may stop every job may read it
                shutil.chown(_CONFIG_FILE, group="muster")
            if changed:
                _run("systemctl", "daemon-reload")
            if not no_start:
                _run("systemctl", "enable", "musterd")
                _run("systemctl", "restart" if changed or _is_older_than_its_files() else "start", "musterd")
        except BaseException:
            _take_back(files, was_active and not no_start, was_enabled)
            raise
    done = "" if changed else ": no changes were necessary"
    emit(f"musterd is installed{'' if no_start else ' and runs'}{done}\n")
    if no_start and was_active and changed:
        note("the previous version still runs: restart it with `systemctl restart musterd`")


@service.command()
@click.option("--purge", is_flag=True, help="Also remove state, logs and configuration. Asks first, or needs --yes.")
@click.option("--force", is_flag=True, help="Uninstall while jobs run: they continue without a daemon.")
@click.option("--yes", is_flag=True, help="Purge without asking.")
def uninstall(purge: bool, force: bool, yes: bool) -> None:
    """Stop the daemon and remove the files of `install`.

    Fails while jobs run. A file that was changed by hand stays as a copy beside its place. State, logs and
    configuration stay, unless you give --purge, which fails while jobs run even with --force.
    """
    _need_systemd()
    if not _RECORD.exists():
        _refuse_packaged()
    root = Root.system()
    folders = (root.state, root.log, _CONFIG_FILE.parent)
    with _installed() as files:
        _refuse_jobs(root, force and not purge)
        if purge and not yes:
            _ask(folders)
        was = bool(files)
        if OWN.units / "musterd.service" in files:
            _run("systemctl", "disable", "--now", "musterd")
            try:
                _refuse_jobs(root, force and not purge)  # one may have been begun meanwhile
            except CommandFailed:
                _run("systemctl", "enable", "--now", "musterd")
                raise
        files.remove()
        if was:
            _run("systemctl", "daemon-reload")
    if jobs := _living(root):
        note(f"jobs continue without a daemon: {_few(jobs)}")
    else:
        # With a dash: of a release before.
        _run("systemctl", "stop", "muster-nursery:*.scope", "muster-nursery-*.scope")
        _remove(root.run)
    for folder in folders if purge else ():
        _remove(folder)
    if (OWN.units / "musterd.service.d").exists():
        note(f"{OWN.units / 'musterd.service.d'} does not belong to muster: it stays")
    emit("musterd is no longer installed\n" if was else "musterd was not installed by `muster service install`\n")


@contextmanager
def _installed() -> "Iterator[Installed]":
    from muster.agent.cli.installed import alone

    try:
        with alone(_RECORD) as files:
            yield files
    except OSError as error:
        raise CommandFailed(f"cannot change {error.filename}: {error.strerror}") from error


def _take_back(files: "Installed", restart: bool, was_enabled: bool) -> None:
    """If this fails too, the user still sees the first error."""
    note("the installation failed: restoring the previous files")
    if not was_enabled:
        subprocess.run(["systemctl", "disable", "-q", "--now", "musterd"], check=False, timeout=_PROGRAM_S)
    try:
        files.take_back()
    except OSError as error:
        note(f"cannot restore {error.filename}: {error.strerror}")
    subprocess.run(["systemctl", "daemon-reload"], check=False, timeout=_PROGRAM_S)
    if restart:
        subprocess.run(["systemctl", "restart", "musterd"], check=False, timeout=_PROGRAM_S)


def _is_older_than_its_files() -> bool:
    """Whether the daemon was started before the last change; the record's time is when that was."""
    shown = _run("systemctl", "show", "-P", "ExecMainStartTimestampMonotonic", "musterd")
    started = int(shown or 0) / 1e6 - time.monotonic() + time.time()
    return started < _RECORD.stat().st_mtime


def _refuse_jobs(root: Root, force: bool) -> None:
    jobs = _living(root)
    if jobs and not force:
        raise CommandFailed(
            f"jobs run: {_few(jobs)}: stop them first with `muster stop --all`; or let them continue with --force",
            Exit.REFUSED,
        )


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _living(root: Root) -> list[str]:
    """Jobs with a living process, with or without a daemon: a process holds their lock, or they have a scope."""
    from muster.supervisors.system.lock import holder as lock_holder

    units = _run("systemctl", "list-units", "--plain", "--no-legend", "--state=active", "muster-*.scope")
    scopes = {line.split()[0] for line in units.splitlines()}
    try:
        names = sorted(os.listdir(root.jobs))
    except FileNotFoundError:
        return []
    return [name for name in names if scope.unit_of(root, name) in scopes or lock_holder(root.job(name).lock)]


def _ask(folders: tuple[Path, ...]) -> None:
    """Raises CommandFailed where there is nobody to ask."""
    names = ", ".join(map(str, folders))
    if not sys.stdin.isatty():
        raise CommandFailed(f"--purge removes {names}, with the history of every job: add --yes", Exit.REFUSED)
    click.confirm(f"Remove {names}, with the history of every job?", abort=True, err=True)


def _remove(folder: Path) -> None:
    from muster.agent.jobs.job_folder import remove_tree

    if folder.exists():
        # What is in one that is a disk of its own; else a mount in it is a job's, which is not removed.
        troubles = [remove_tree(path) for path in (folder.iterdir() if folder.is_mount() else (folder,))]
        note("; ".join(filter(None, troubles)) or f"removed {folder}")


def checked_programs(force: bool) -> Path:
    """The folder of `musterd`, of the environment that this runs in. Raises CommandFailed where it cannot serve: root
    would run what somebody else can change."""
    folder = programs()
    if not (folder / "musterd").exists():
        raise CommandFailed(
            f"{folder}/musterd does not exist: install muster-agent into a virtual environment with pip"
        )
    if not _PLAIN.fullmatch(str(folder)):
        raise CommandFailed(f"{folder}: a unit file takes letters, digits and /_.+@- only: rename the environment")
    if (trouble := environment_of_others()) and not force:
        raise CommandFailed(f"{trouble}. {OWN_ENVIRONMENT}, or accept it with --force", Exit.REFUSED)
    return folder


def _need_systemd() -> None:
    if os.geteuid() != 0:
        raise CommandFailed("`muster service` needs root: run it with sudo", Exit.REFUSED)
    if not scope.is_available():
        raise CommandFailed(
            "systemd does not run on this node: start the daemon with `musterd --root DIR`", Exit.REFUSED
        )


def _refuse_packaged() -> None:
    """Raises CommandFailed where the service is a package's: its daemon and folders are not for this command."""
    if (PACKAGED.units / "musterd.service").exists():
        raise CommandFailed(
            f"the package muster-agent runs musterd ({PACKAGED.units / 'musterd.service'}): use systemctl and the "
            "package manager, or remove the package",
            Exit.REFUSED,
        )


def _is(state: str) -> bool:
    """`systemctl is-active`, `is-enabled`."""
    # For an unknown unit the text says more than the code.
    argv = ["systemctl", f"is-{state}", "-q", "musterd"]
    return subprocess.run(argv, check=False, timeout=_PROGRAM_S, stderr=subprocess.DEVNULL).returncode == 0


def _run(*argv: str) -> str:
    """Returns what it wrote. Raises CommandFailed."""
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=_PROGRAM_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{' '.join(argv)}: {error}") from None
    if done.returncode != 0:
        raise CommandFailed(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()
