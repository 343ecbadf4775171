"""Where this user's apps went: a note per app, so that a later command finds its daemons without being told them.

A convenience: all else that is known of an app is known to its daemons, and .torchxconfig or MUSTER_HOSTS name these
for everybody else. A note that cannot be written or read is no error.
"""

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from muster.torchx.daemon_hosts import DaemonHost, HostTls, KnownHosts

#: Notes that are kept; the oldest go first.
MOST_NOTES = 500
_APP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_log = logging.getLogger(__name__)


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # as the specification of these folders has it
        state = os.path.expanduser("~/.local/state")
    return Path(state) / "muster" / "torchx"


def note(app_id: str, known: KnownHosts) -> None:
    """Keeps where an app goes: addresses and names of files, no keys."""
    tls = known.tls
    text = json.dumps(
        {"hosts": [[host.address, host.name] for host in known.hosts], "tls": [tls.ca, tls.cert, tls.key]}
    )
    try:
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, new = tempfile.mkstemp(dir=folder, prefix=".new-")
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.replace(new, folder / f"{app_id}.json")
        for old in list(_newest_first(folder))[MOST_NOTES:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _log.info("cannot note where %s went: %s: name its hosts in .torchxconfig or MUSTER_HOSTS", app_id, error)


def recall(app_id: str) -> KnownHosts | None:
    """Where an app of this user went; None if there is no note."""
    if not _APP_ID.fullmatch(app_id):
        return None
    return _read(_folder() / f"{app_id}.json")


def forget(app_id: str) -> None:
    """Of an app that did not start."""
    with suppress(OSError):
        (_folder() / f"{app_id}.json").unlink()


def recall_all() -> list[KnownHosts]:
    """Where this user's apps went, the last one first."""
    with suppress(OSError):
        return [known for path in _newest_first(_folder()) if (known := _read(path))]
    return []


def _newest_first(folder: Path) -> Iterator[Path]:
    found = []
    for path in folder.glob("*.json"):
        with suppress(OSError):  # another command has just removed it
            found.append((path.stat().st_mtime_ns, path))
    yield from (path for _, path in sorted(found, reverse=True))


def _read(path: Path) -> KnownHosts | None:
    try:
        data = json.loads(path.read_text())
        hosts = tuple(DaemonHost(str(address), str(name)) for address, name in data["hosts"])
        ca, cert, key = data["tls"]
        return KnownHosts(hosts, HostTls(str(ca), str(cert), str(key)))
    except (OSError, ValueError, KeyError, TypeError):
        return None
