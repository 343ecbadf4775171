"""Reads the configuration file, and says what is wrong with it: file, key, value and what is allowed."""

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.agent.config.schema import TABLES, Config
from muster.agent.errors import StartupError
from muster.agent.host.ownership import refuse_others
from muster.probes.settings import near_names, settings_of, unknown
from muster.supervisors.supervision_errors import remedy

_OTHER_FILE = "give --config a file that musterd may read"


def load(path: Path, *, own: bool = False) -> Config:
    """Reads a file. `own`: to do what it says, programs that it names included, so it must be nobody else's. Raises
    StartupError that names file, key, value and what is allowed."""
    try:
        if own:
            refuse_others(path)
        raw = tomllib.loads(_text(path))
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}; {remedy(error, _OTHER_FILE)}") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"{path}: is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise StartupError(f"{path}: is not TOML: {error}") from error
    except RecursionError as error:
        raise StartupError(f"{path}: is nested too deeply") from error
    try:
        return parse(raw)
    except ValueError as error:
        raise StartupError(f"{path}: {error}") from error


def _text(path: Path) -> str:
    """Of a regular file only: a FIFO or a terminal may have no writer, or no end. Raises StartupError, OSError,
    UnicodeDecodeError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StartupError(f"{path}: is not a regular file: move it away, or give --config a file")
        with open(fd, encoding="utf-8", newline="", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def parse(raw: Mapping[str, object]) -> Config:
    """From what a file holds. Raises ValueError with one sentence that begins with table and key."""
    found: dict[str, Any] = {}
    for name, table in raw.items():
        if name not in TABLES:
            homes = [f"{home}.{name}" for home, kind in TABLES.items() if name in settings_of(kind)]
            raise ValueError(f"unknown key {name!r}: did you mean {homes[0]!r}?" if homes else unknown(name, TABLES))
        if not isinstance(table, dict):
            raise ValueError(f"{name}: must be a table, written as [{name}]")
        _refuse_unknown(name, table)
        try:
            found[name] = TABLES[name].read(table)
        except ValueError as error:
            raise ValueError(f"{name}.{error}") from error
    return Config(**found)


def _refuse_unknown(name: str, table: Mapping[str, object]) -> None:
    for key in table:
        if key in settings_of(TABLES[name]):
            continue
        # In this table first: a slip of the key is likelier than one of the table.
        for home in (name, *TABLES):
            if near := near_names(key, settings_of(TABLES[home])):
                raise ValueError(f"unknown key {f'{name}.{key}'!r}: did you mean '{home}.{near[0]}'?")
        raise ValueError(unknown(f"{name}.{key}", settings_of(TABLES[name])))
