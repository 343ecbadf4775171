"""How far a copy of inputs or outputs is: a small file, which the job's user writes and daemon and supervisor read."""

import json
import os
from dataclasses import field
from pathlib import Path
from typing import Any, Self

from muster.probes.kernel.dataclass import dataclass

#: The steps that copy.
CODE, INPUTS, OUTPUTS = "code", "inputs", "outputs"
STEPS = (CODE, INPUTS, OUTPUTS)
#: Size of the file; the text of an error, in characters.
SIZE, MAX_ERROR = 16384, 1000
_BESIDE = ("requirements", "pre_start")
_NUMBERS = ("files", "files_done", "size", "size_done", "retries")


@dataclass(slots=True)
class StagingProgress:
    """`size`: bytes of all files together, as far as known. `now`: what is copied at the moment. `error`: why it has
    failed, or why it tries again. `beside`: see lifecycle.Job."""

    step: str = ""
    files: int = 0
    files_done: int = 0
    size: int = 0
    size_done: int = 0
    retries: int = 0
    now: str = ""
    error: str = ""
    beside: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The whole file, which one write replaces."""
        told = {name: getattr(self, name) for name in (*_NUMBERS, "step")}
        told |= {"now": self.now[-200:], "error": self.error[:MAX_ERROR]}
        if self.beside:
            told["beside"] = self.beside
        text = json.dumps(told, ensure_ascii=False).encode("utf-8", "backslashreplace")
        return text.ljust(SIZE - 1) + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """None where nothing is written yet, or nothing that can be understood: the job's user may write anything."""
        try:
            # Not to wait where the user holds a lease on the file.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            raw = json.loads(os.pread(fd, SIZE, 0))
            numbers: dict[str, Any] = {name: _number(raw.get(name)) for name in _NUMBERS}
            texts: dict[str, Any] = {name: str(raw.get(name, ""))[:MAX_ERROR] for name in ("step", "now", "error")}
            beside = {name: found for name in _BESIDE if _is_path(found := raw.get("beside", {}).get(name))}
        except (OSError, ValueError, AttributeError, RecursionError):
            return None
        finally:
            os.close(fd)
        return cls(**numbers, **texts, beside=beside)


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/") and value.isprintable() and len(value) < 4096


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else 0
