"""`muster debug bundle`: the data for a bug report in one file, without secrets."""

import io
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed
from muster.agent.cli.printing import as_dict, emit, note

if TYPE_CHECKING:
    import tarfile

    from muster.agent.cli.client.calls import DaemonConnection

#: Bytes of the end of a log; jobs (the newest) whose journals are included; events; seconds for a program.
_TAIL = 1 << 20
_JOBS = 50
_EVENTS = 5000
_PROGRAM_S = 20.0
#: A URL in a text or in a JSON string, where a quote in it is escaped. Nobody has a scheme that is much longer.
_URL = re.compile(rb"([a-z][a-z0-9+.-]{0,30}://)((?:[^\s\"\\]|\\.)+)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(rb"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.IGNORECASE)
_PROGRAMS = (
    ("nvidia-smi", "-q"),
    ("npu-smi", "info"),
    ("systemctl", "show", "musterd"),
    ("systemd-cgls", "--no-pager", "/muster.slice"),
    ("journalctl", "-u", "musterd", "-n", "5000", "-o", "short-iso", "--no-pager"),
    ("df", "-h"),
)
_SYSTEM = (
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/self/mounts",
    "/proc/self/limits",
    "/proc/version",
)


@click.group()
def debug() -> None:
    """Collect data for a bug report."""


@debug.command()
@pass_address
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
def bundle(address: Address, file: Path | None) -> None:
    """Collect the data for a bug report in FILE (default: muster-debug-<host>-<time>.tar.gz).

    It holds versions, configuration, conditions, events, journals and status of the newest jobs, the logs of daemon and
    nursery, and system facts. It never holds environments or output of jobs, or the contents of secret files. Of URLs
    it keeps scheme and host only. It works without a daemon, too: errors.txt lists what could not be collected.
    """
    import tarfile

    from muster.agent.cli.live.at_terminal import working

    host = platform.node().partition(".")[0]
    file = file or Path(f"muster-debug-{host}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz")
    errors: list[str] = []
    try:
        # Private from the first byte on; and never over an existing file.
        out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with (
            working("collecting and compressing") as say,
            open(out, "wb") as raw,
            tarfile.open(fileobj=raw, mode="w:gz") as tar,
        ):
            for name, data in _parts(address, errors, say):
                say(name)
                _add(tar, name, data)
            _add(tar, "errors.txt", "".join(f"{line}\n" for line in errors).encode())
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror}: name another FILE") from None
    for line in errors:
        note(line)
    emit(f"{file}\n")


def _add(tar: "tarfile.TarFile", name: str, data: bytes) -> None:
    import tarfile

    data = hosts_only(data)
    entry = tarfile.TarInfo(f"muster-debug/{name}")
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    tar.addfile(entry, io.BytesIO(data))


def hosts_only(data: bytes) -> bytes:
    """With scheme and host alone of each URL."""
    return _URL.sub(_host_only, data)


def _host_only(url: re.Match[bytes]) -> bytes:
    """Scheme and host: the rest may be a token."""
    authority, *more = re.split(rb"[/?#\\]", url[2], maxsplit=1)
    host = authority.rpartition(b"@")[2]
    # A password may have what ends an authority: who tells then where it ends?
    known = _HOST.match(host) if not any(b"@" in part for part in more) else None
    return url[1] + (known[0] + b"/" if known else b"") + b"..."


def told_journal(data: bytes) -> bytes:
    """Without the output of ranks, and without the digest, which would help to guess an environment. Of a damaged
    record it keeps the length only, since its contents are unknown."""
    from muster.supervisors.model import journal

    told = []
    for line in data.splitlines(keepends=True):
        record = journal.decode(line)
        if record is None:
            told.append(b"# damaged or cut record left out: %d bytes\n" % len(line))
            continue
        record.pop("digest", None)
        if isinstance(verdict := record.get("verdict"), dict):
            verdict.pop("last_lines", None)
        told.append(journal.encode(record))
    return b"".join(told)


def _parts(address: Address, errors: list[str], say: Callable[[str], None]) -> Iterator[tuple[str, bytes]]:
    """`say` takes what is asked next, where an answer may take long."""
    from muster.agent.host import build

    yield "version.txt", f"muster {build.FULL}\n{platform.python_version()} {platform.platform()}\n".encode()
    say(f"asking the daemon at {address}")
    yield from _of_daemon(address, errors)
    root = address.root
    files = [root.config, root.nursery_log, root.audit_log, root.faults, root.settings, root.version]
    try:
        folders = sorted(root.jobs.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[:_JOBS]
    except OSError as error:
        errors.append(f"{root.jobs}: {error.strerror}")
        folders = []
    jobs = [root.job(folder.name) for folder in folders]
    files += [root.node, *(path for job in jobs for path in (job.journal, job.hang))]
    for path in (*files, *map(Path, _SYSTEM)):
        try:
            data = _tail(path)
            yield f"files{path}", told_journal(data) if path.name == "journal" else data
        except FileNotFoundError:
            continue  # most exist only after an incident
        except OSError as error:
            errors.append(f"{path}: {error.strerror}")
    for argv in _PROGRAMS:
        say(" ".join(argv))
        try:
            done = subprocess.run(argv, check=False, capture_output=True, timeout=_PROGRAM_S, stdin=subprocess.DEVNULL)
            yield f"programs/{argv[0]}-{argv[1].strip('-')}.txt", done.stdout + done.stderr
        except FileNotFoundError:
            continue
        except (OSError, subprocess.TimeoutExpired) as error:
            errors.append(f"{' '.join(argv)}: {error}")


def _of_daemon(address: Address, errors: list[str]) -> Iterator[tuple[str, bytes]]:
    from muster.agent.cli.client.calls import connect
    from muster.agent.cli.commands.ps import list_jobs
    from muster.v1 import event_pb2, job_pb2, node_pb2

    def events(connection: "DaemonConnection") -> object:
        request = event_pb2.WatchRequest(from_oldest=True, no_follow=True)
        found = [as_dict(answer) for answer in connection.stream(connection.events.Watch, request)]
        return found[-_EVENTS:]

    def jobs(connection: "DaemonConnection") -> object:
        return [as_dict(_without_secrets(job)) for job in list_jobs(connection, True, {})]

    def _without_secrets(job: job_pb2.Job) -> job_pb2.Job:
        job.spec.env.clear()
        job.ClearField("spec_digest")
        if job.HasField("verdict"):
            job.verdict.ClearField("last_lines")
        return job

    questions: tuple[tuple[str, Callable[[DaemonConnection], object]], ...] = (
        ("node.json", lambda c: as_dict(c.call(c.nodes.GetNode, node_pb2.GetNodeRequest()))),
        ("jobs.json", jobs),
        ("events.json", events),
    )
    try:
        with connect(address) as connection:
            for name, ask in questions:
                try:
                    yield name, json.dumps(ask(connection), indent=1).encode()
                except CommandFailed as error:
                    errors.append(f"{name}: {error}")
    except CommandFailed as error:
        errors.append(str(error))


def _tail(path: Path) -> bytes:
    """Whole lines: a cut line could hide a URL from the masking."""
    with open(path, "rb") as file:
        try:
            file.seek(-_TAIL, os.SEEK_END)
            file.readline()
        except OSError:  # shorter, or of /proc
            file.seek(0)
        return file.read(_TAIL)
