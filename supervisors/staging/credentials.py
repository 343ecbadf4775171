"""The file with keys: options of fsspec's file systems, by scheme or by the beginning of a URL.

[s3]
key = "..."
secret = "..."
endpoint_url = "https://..."

["s3://another-bucket/"]
key = "..."
"""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from muster.supervisors.staging.troubles import NotCopyable

_MAX_FILE = 1 << 20


def read(path: str) -> dict[str, dict[str, Any]]:
    """By section; empty without a path. Raises NotCopyable, which shows nothing of its content."""
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotCopyable(f"{path}: is not a file: give a TOML file with keys as staging_credentials")
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise NotCopyable(f"{path}: other users have access to it: chmod 600 {path}")
            table = tomllib.loads(file.read(_MAX_FILE).decode())
    except OSError as error:
        raise NotCopyable(f"{path}: {str(error.strerror).lower()}: the job's user must be able to read it") from None
    except ValueError as error:
        at = str(error).rpartition("(")[2].rstrip(")") if isinstance(error, tomllib.TOMLDecodeError) else "no text"
        raise NotCopyable(f"{path}: is not TOML: {at}") from None
    if wrong := [name for name, section in table.items() if not isinstance(section, dict)]:
        raise NotCopyable(f"{path}: {wrong[0]!r} is outside a section: write it below [s3] or another scheme")
    return table


def secrets(table: Mapping[str, Any]) -> Iterator[str]:
    """All texts in it."""
    for value in table.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from secrets(value)


def options(table: Mapping[str, Mapping[str, Any]], url: str) -> dict[str, Any]:
    """Those for a URL: of its scheme, over these those of the sections that it begins with, the longest last."""
    scheme = url.partition("://")[0]
    found = dict(table.get(scheme, {}))
    for prefix in sorted((name for name in table if "://" in name and url.startswith(name)), key=len):
        found |= table[prefix]
    return found
