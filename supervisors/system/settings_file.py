"""`<state>/settings.json`: the settings of the daemon that supervisors use.

    {"logs": {"max_file_bytes": 1073741824, "max_job_bytes": 0, "rotate_for_bytes": 0}, "flight_recorder": false,
     "spawn_program": true}

The daemon writes it at its start and whenever it reads its configuration again (`write`); a supervisor reads it, so
that a new setting applies to running jobs, also while no daemon runs.
"""

import json
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.system import trust
from muster.supervisors.system.atomic_file import replace_file

#: Seconds between two looks at the file.
LOOK_S = 1.0
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Bytes after which a file is rotated, and that all files of a running job may have; 0: no limit.

    `max_job_bytes` is kept by the supervisor. Where that is the daemon's, which knows what may go, it is 0, and
    `rotate_for_bytes` is the limit for which there have to be segments early enough.
    """

    max_file_bytes: int = 1 << 30
    max_job_bytes: int = 0
    rotate_for_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """All that the file says. `flight_recorder`: whether ranks are given the variables of PyTorch's flight recorder
    (launch/modes/presets.py). `spawn_program`: whether muster-spawn creates processes (launch/creation/)."""

    logs: LogSettings = LogSettings()
    flight_recorder: bool = False
    spawn_program: bool = True


class SettingsFile:
    """What the file says now, as far as it is looked at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._look_at = 0.0
        self._found = SupervisorSettings()

    @property
    def now(self) -> SupervisorSettings:
        """The default for what is missing, or is not what it should be."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._found = _read(self._path)
        return self._found


def write(path: Path, settings: SupervisorSettings) -> None:
    """Replaces the file as a whole. Raises OSError, which names the file."""
    replace_file(path, json.dumps(asdict(settings)).encode())


def _read(path: Path) -> SupervisorSettings:
    try:
        found: Any = json.loads(trust.read(path, _MAX_BYTES))
    except (OSError, ValueError):
        found = {}
    if not isinstance(found, dict):
        found = {}
    logs = found.get("logs")
    values = {}
    for one in fields(LogSettings):
        value = logs.get(one.name) if isinstance(logs, dict) else None
        if type(value) is int and value >= 0:
            values[one.name] = value
    by_program = found.get("spawn_program") is not False
    return SupervisorSettings(LogSettings(**values), found.get("flight_recorder") is True, by_program)
