"""A seccomp profile as docker, podman and the OCI runtime specification have it: JSON, read into rules.

It means what it means there: docs/guides/lock-down.md#seccomp-profiles.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from typing import Any

from muster.agent.jobs.hardening.syscalls import Architecture
from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import near_names

#: The largest file that is taken for a profile: docker's has 20 KB.
MAX_BYTES = 1 << 20
#: SECCOMP_RET_* of linux/seccomp.h by the names of profiles. ERRNO and TRACE carry a number.
_ACTIONS = {
    "SCMP_ACT_KILL": 0, "SCMP_ACT_KILL_THREAD": 0, "SCMP_ACT_KILL_PROCESS": 0x80000000, "SCMP_ACT_TRAP": 0x00030000,
    "SCMP_ACT_ERRNO": 0x00050000, "SCMP_ACT_TRACE": 0x7FF00000, "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_ALLOW": 0x7FFF0000,
}  # fmt: skip
_WITH_NUMBER = ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE")
ERRNO, ALLOW = _ACTIONS["SCMP_ACT_ERRNO"], _ACTIONS["SCMP_ACT_ALLOW"]
#: Actions with which a call takes place.
PASSING = (ALLOW, _ACTIONS["SCMP_ACT_LOG"])
COMPARISONS = ("NE", "LT", "LE", "EQ", "MASKED_EQ", "GE", "GT")
#: Of a profile, in docker's, podman's and the OCI runtime specification's format.
_KEYS = frozenset({
    "defaultAction", "defaultErrnoRet", "defaultErrno", "architectures", "archMap", "syscalls", "flags",
    "listenerPath", "listenerMetadata",
})  # fmt: skip
#: The largest error number of the kernel: a larger one would not be an error for the program (MAX_ERRNO).
_MAX_ERRNO = 4095
_VERSION = re.compile(r"(\d+)\.(\d+)")


class BadProfile(Exception):
    """Raised when a file is no profile, or not one that can be carried out here. The text is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class ArgumentTest:
    """Of one argument, by its place from 0; `mask` of MASKED_EQ alone."""

    argument: int
    comparison: str
    value: int
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens (SECCOMP_RET_*) to these calls, if all of the conditions hold."""

    names: tuple[str, ...]
    action: int
    conditions: tuple[ArgumentTest, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """The rules that hold on this machine for a job with its capabilities. `usual`: what happens to other calls."""

    usual: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """What a path led to: `path` without links. `fd`: O_PATH."""

    fd: int
    path: str
    status: os.stat_result


@contextlib.contextmanager
def found(path: str) -> Iterator[FoundFile]:
    """Looks at a file without opening it: opening a device may do something. Raises OSError."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield FoundFile(fd, os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd))
    finally:
        os.close(fd)


def load(file: FoundFile) -> dict[str, Any]:
    """The profile as JSON. Raises BadProfile; OSError."""
    if not stat.S_ISREG(file.status.st_mode):
        raise BadProfile("is not a file")
    if file.status.st_size > MAX_BYTES:
        raise BadProfile(f"has {file.status.st_size} bytes: a profile has at most {MAX_BYTES}")
    fd = os.open(f"/proc/self/fd/{file.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as opened:
        text = opened.read(MAX_BYTES + 1)
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise BadProfile(f"is not JSON{where}: give a profile as docker has it") from None
    if not isinstance(raw, dict) or "defaultAction" not in raw:
        raise BadProfile("is not a seccomp profile: it has no defaultAction")
    return raw


def parse(raw: dict[str, Any], architecture: Architecture, kept: Collection[str] | None) -> Profile:
    """`kept`: the capabilities that the job can have, as in `capabilities.NAMES`; None: all. Raises BadProfile."""
    for key in raw.keys() - _KEYS:
        near = "".join(near_names(key, _KEYS))
        raise BadProfile(f"{key[:40]!r}: is not a key of a profile" + (f": did you mean {near}?" if near else ""))
    try:
        usual = _action(raw["defaultAction"], raw.get("defaultErrnoRet"))
        rules: list[Rule] = []
        for number, entry in enumerate(raw.get("syscalls") or []):
            try:
                if _holds(entry, architecture, kept):
                    rules += _rules(entry)
            except BadProfile as error:
                raise BadProfile(f"syscalls[{number}]: {error}") from None
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise BadProfile(f"is not a seccomp profile: {type(error).__name__}: {str(error)[:80]}") from None
    return Profile(usual, tuple(rules))


def _action(name: object, number: object) -> int:
    if name == "SCMP_ACT_NOTIFY":
        raise BadProfile("SCMP_ACT_NOTIFY: nobody would answer: use SCMP_ACT_ERRNO")
    if not isinstance(name, str) or name not in _ACTIONS:
        raise BadProfile(f"{str(name)[:40]!r}: is not an action: must be one of {', '.join(_ACTIONS)}")
    if name not in _WITH_NUMBER:
        return _ACTIONS[name]
    number = errno.EPERM if number is None else number
    most = _MAX_ERRNO if name == "SCMP_ACT_ERRNO" else 0xFFFF
    if type(number) is not int or not 0 <= number <= most:
        raise BadProfile(f"errnoRet {str(number)[:20]}: must be a number from 0 to {most}")
    return _ACTIONS[name] | number


def _holds(entry: dict[str, Any], architecture: Architecture, kept: Collection[str] | None) -> bool:
    includes, excludes = entry.get("includes") or {}, entry.get("excludes") or {}
    if (arches := includes.get("arches")) and architecture.go not in arches:
        return False
    if architecture.go in (excludes.get("arches") or ()):
        return False
    if not all(_has(name, kept) for name in includes.get("caps") or ()):
        return False
    if any(_has(name, kept) for name in excludes.get("caps") or ()):
        return False
    if (least := includes.get("minKernel")) and _kernel() < _version(least):
        return False
    return not ((most := excludes.get("minKernel")) and _kernel() >= _version(most))


def _has(name: str, kept: Collection[str] | None) -> bool:
    return kept is None or name.lower().removeprefix("cap_") in kept


def _kernel() -> tuple[int, int]:
    return _version(os.uname().release)


def _version(text: str) -> tuple[int, int]:
    if (match := _VERSION.match(text)) is None:
        raise BadProfile(f"minKernel {text[:20]!r}: must be a version, as in 4.8")
    return int(match[1]), int(match[2])


def _rules(entry: dict[str, Any]) -> list[Rule]:
    """Several conditions on one argument are alternatives: runc makes a rule of each condition then."""
    names = tuple(entry.get("names") or ([entry["name"]] if entry.get("name") else ()))
    if not names or not all(isinstance(name, str) for name in names):
        raise BadProfile("names no system call")
    action = _action(entry["action"], entry.get("errnoRet"))
    conditions = [_condition(one) for one in entry.get("args") or ()]
    arguments = [one.argument for one in conditions]
    if len(set(arguments)) < len(arguments):
        return [Rule(names, action, (one,)) for one in conditions]
    return [Rule(names, action, tuple(conditions))]


def _condition(raw: dict[str, Any]) -> ArgumentTest:
    name = str(raw["op"]).removeprefix("SCMP_CMP_")
    index, value, second = raw["index"], raw.get("value", 0), raw.get("valueTwo", 0) or 0
    if name not in COMPARISONS:
        raise BadProfile(f"{name[:40]!r}: is not a comparison: must be SCMP_CMP_ with one of {', '.join(COMPARISONS)}")
    if type(index) is not int or not 0 <= index <= 5:
        raise BadProfile(f"index {str(index)[:20]}: must be 0 to 5")
    if not all(type(one) is int and 0 <= one < 1 << 64 for one in (value, second)):
        raise BadProfile(f"value {str(value)[:24]}: must be a number from 0 to 2^64 - 1")
    if name == "MASKED_EQ":
        return ArgumentTest(index, name, second & value, value)
    return ArgumentTest(index, name, value)
