"""`muster service`: the daemon as a systemd service on this node, out of the environment that this command runs in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

import agent
from agent.cli.address import Address, pass_address
from agent.cli.errors import Exit, Failure
from agent.cli.output import emit, note
from supervisors.paths import Root

_UNITS = Path("/etc/systemd/system")
_SHARE = Path("/usr/local/share")
_FILE = Path("/etc/muster/musterd.toml")
_CONFIG = """\
# Configuration of musterd. Every key has a default; `musterd --check-config` says whether this file is good, and
# `systemctl reload musterd` has it read again.
"""


@click.group()
def service() -> None:
    """Install or remove the systemd service of this node.

    The service runs from the virtual environment that this command belongs to: upgrade that with pip, then
    `systemctl restart musterd`. Jobs run on meanwhile.
    """


@service.command()
@click.option("--no-start", is_flag=True, help="Neither enable nor start it.")
def install(no_start: bool) -> None:
    """Set up units, groups, folders, configuration, man pages and completions, and start the daemon.

    May be repeated: what is there and right is left alone, a configuration that is there is never touched.
    """
    _need_systemd()
    changed = [path for path, text in _files().items() if _put(path, text)]
    if not _FILE.exists():
        changed += [_FILE] if _put(_FILE, _CONFIG) else []
    changed += [path for path, target in _links().items() if _link(path, target)]
    _run("systemd-sysusers", "/etc/sysusers.d/muster.conf")
    _run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/muster.conf")
    _run("systemctl", "daemon-reload")
    for path in changed:
        note(f"wrote {path}")
    if not no_start:
        if any(path.parent == _UNITS for path in changed) and _is_active():
            _run("systemctl", "restart", "musterd")
        _run("systemctl", "enable", "--now", "musterd")
    emit("musterd is installed" + ("" if no_start else " and runs") + "\n")


@service.command()
@click.option("--purge", is_flag=True, help="Remove state, logs and configuration, too.")
@click.option("--force", is_flag=True, help="Although jobs run: they run on, and nobody watches them any more.")
@pass_address
def uninstall(address: Address, purge: bool, force: bool) -> None:
    """Stop the daemon and remove what `install` made.

    Refused while jobs run. State, logs and configuration stay, unless --purge.
    """
    _need_systemd()
    if _is_active() and not force:
        _refuse_jobs(address)
    if (_UNITS / "musterd.service").exists():
        _run("systemctl", "disable", "--now", "musterd")
    for path in (*_files(), *_links()):
        if os.path.lexists(path):
            path.unlink()
            note(f"removed {path}")
    _run("systemctl", "daemon-reload")
    if purge:
        root = Root.system()
        for folder in (root.run, root.state, root.log, _FILE.parent):
            shutil.rmtree(folder, ignore_errors=True)
            note(f"removed {folder}")
    emit("musterd is no longer installed\n")


def _refuse_jobs(address: Address) -> None:
    from agent.cli.connection import connect
    from agent.cli.jobs import list_jobs

    with connect(address) as connection:
        jobs = [job.job_id for job in list_jobs(connection, False, {})]
    if jobs:
        names = ", ".join(jobs[:5])
        raise Failure(f"jobs run: {names}: stop them first (`muster stop`), or --force leaves them alone", Exit.REFUSED)


def _files() -> dict[Path, str]:
    """What is installed, by path."""
    from agent.cli import manual
    from agent.cli.main import cli
    from agent.musterd import main as musterd

    source = _source()
    unit = (source / "musterd.service").read_text().replace("/opt/muster/bin/", f"{sys.prefix}/bin/")
    files = {
        _UNITS / "musterd.service": unit,
        _UNITS / "muster.slice": (source / "muster.slice").read_text(),
        Path("/etc/sysusers.d/muster.conf"): (source / "sysusers.d/muster.conf").read_text(),
        Path("/etc/tmpfiles.d/muster.conf"): (source / "tmpfiles.d/muster.conf").read_text(),
    }
    for name, text in (*manual.pages(cli, "muster"), *manual.pages(musterd, "musterd", 8)):
        files[_SHARE / f"man/man{name[-1]}" / name] = text
    for shell, place in (
        ("bash", "bash-completion/completions/muster"),
        ("zsh", "zsh/site-functions/_muster"),
        ("fish", "fish/vendor_completions.d/muster.fish"),
    ):
        kind = get_completion_class(shell)
        assert kind is not None  # click has these
        files[_SHARE / place] = kind(cli, {}, "muster", "_MUSTER_COMPLETE").source() + "\n"
    return files


def _links() -> dict[Path, Path]:
    return {Path("/usr/local/bin", name): Path(sys.prefix, "bin", name) for name in ("muster", "musterd")}


def _source() -> Path:
    """Where the units are: in the package, or beside it in a checkout."""
    package = Path(agent.__file__).parent
    return package / "units" if (package / "units").is_dir() else package.parent / "systemd"


def _put(path: Path, text: str) -> bool:
    """True where it was not so before."""
    try:
        if path.read_text() == text:
            return False
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.chmod(0o644)
    new.rename(path)
    return True


def _link(path: Path, target: Path) -> bool:
    if os.path.lexists(path):
        if path.is_symlink() and path.readlink() == target:
            return False
        if not path.is_symlink():
            note(f"{path} is there and is no link: left as it is")
            return False
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return True


def _need_systemd() -> None:
    if os.geteuid() != 0:
        raise Failure("the service of a node is installed by root", Exit.REFUSED)
    if not os.path.isdir("/run/systemd/system"):
        raise Failure("systemd does not run here: start musterd in another way (`musterd --root DIR`)", Exit.REFUSED)


def _is_active() -> bool:
    return subprocess.run(["systemctl", "is-active", "-q", "musterd"], check=False).returncode == 0


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
