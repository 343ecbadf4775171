"""The files of a copy, and what is known of each."""

from collections.abc import Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.staging.troubles import NotCopyable

_TIMES = ("mtime", "LastModified", "Last-Modified", "last_modified", "modified", "updated", "modification_time")
_MD5 = 32


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One file. `name`: its path below what is copied, with /; empty: it is that itself. `size`: None where the server
    does not tell; `mtime` in seconds since the epoch, 0 where it is not known; `tag`: changes with the content; `md5`:
    of the content, in hexadecimal, or empty; `mode`: its permissions, 0 where it has none."""

    name: str
    place: str
    size: int | None
    mtime: float = 0.0
    tag: str = ""
    md5: str = ""
    mode: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it could be told that it has changed."""
        return self.size is not None and bool(self.mtime or self.tag)

    @property
    def version(self) -> tuple[object, ...]:
        """Differs where the file has changed."""
        return self.size, self.mtime, self.tag


def of_info(name: str, place: str, info: dict[str, Any]) -> StagedFile:
    """From what fsspec tells of a file."""
    tag = str(info.get("ETag") or info.get("etag") or "").removeprefix("W/").strip('"')
    md5 = tag.lower() if len(tag) == _MD5 and all(c in "0123456789abcdefABCDEF" for c in tag) else ""
    size = info.get("size")
    found = next((info[key] for key in _TIMES if info.get(key)), None)
    return StagedFile(name, place, size if isinstance(size, int) else None, _seconds(found), tag, md5)


def _seconds(value: object) -> float:
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value) if value[:4].isdigit() else parsedate_to_datetime(value)
        if isinstance(value, datetime):
            return value.timestamp()
        return float(value) if isinstance(value, (int, float)) else 0.0
    except ValueError:
        return 0.0


def refuse_unsafe(items: Iterable[StagedFile], shown: str) -> None:
    """Raises NotCopyable for names that no folder on this node can hold side by side, or that lead out of it."""
    names = {item.name for item in items}
    for name in names:
        parts = name.split("/")
        if "\0" in name or (name and any(part in ("", ".", "..") for part in parts)):
            raise NotCopyable(f"{shown}: has a file {name!r}, which is no path below a folder: rename it there")
        for end in range(1, len(parts)):
            if (outer := "/".join(parts[:end])) in names:
                raise NotCopyable(
                    f"{shown}: has {outer!r} and {name!r}: one cannot be a file and a folder: rename it there"
                )
