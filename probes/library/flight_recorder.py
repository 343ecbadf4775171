"""Dumps of PyTorch's flight recorder: what one rank has enqueued and completed in each of its process groups.

The format is that of torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp: version 2.4 (about
PyTorch 2.6) up to 2.10 (PyTorch 2.13). What differs, between versions and backends, and what that leads to here:

- `pg_id`, the key of `pg_status`, counts the groups of one process: two ranks may have different groups under one
  number. `process_group` (name, description) of the entries is the same in all ranks, so it names the group.
- gloo has one `pg_config`, with the key '' and no ranks; NCCL has one for each group, with the group's name as key and
  the ranks of the job as text, "[0, 1]".
- gloo never sets `state` to completed: a finished entry is `scheduled` and `retired`. With NCCL one that is retired and
  not completed has timed out, and is still what its rank waits for.
- `pg_status` stays as it was when a group is destroyed, and NCCL's follows with the period of the watchdog: an entry
  that is completed counts as well.
- dumps before 2.4 have no `pg_status`: the entries tell what was enqueued and completed, unless the ring lost them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field

from muster.probes.kernel.dataclass import dataclass
from muster.probes.library.collective_finding import shown
from muster.probes.library.plain_pickle import BadPickle, PickleIncomplete, load_plain

#: Bytes of a dump that are read: 2000 entries with frames take a few MB.
MAX_BYTES = 64 << 20
#: Entries and groups of a dump, characters of all texts with ranks, unfinished entries of a group that are kept, and
#: frames of an entry that are looked at.
MAX_ENTRIES, MAX_GROUPS, MAX_RANK_TEXT, MAX_UNFINISHED, MAX_FRAMES = 100_000, 4096, 4 << 20, 64, 64
DEFAULT_GROUP = "default_pg"

_NUMBER = re.compile(r"\d{1,9}")
#: Parts of files of frames that are PyTorch's own, or Python's.
_NOT_USERS = ("/torch/", "/torch_npu/", "<frozen ", "/contextlib.py", "/functools.py")


class DumpUnreadable(Exception):
    """The dump cannot be had, or cannot be used: the message says why."""


class DumpBeingWritten(DumpUnreadable):
    """The dump ends before its end. Read it again later."""


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """A collective that has not completed. `number`: its place in the order of its group; `call`: "nccl:all_reduce";
    `line`: the innermost frame that is not PyTorch's, "step (train.py:30)"."""

    number: int
    call: str
    state: str
    retired: bool
    line: str = ""


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as one rank has it: `pg_id` is this rank's own number of it, `name` is that of all ranks.

    `ranks` of the job, empty where the dump does not tell (gloo). `enqueued`, `started`, `completed`: number of the
    last collective, 0 before the first; `started` 0 also where no start is recorded. `p2p`: it has had sends or
    receives, which do not go through all ranks alike. `unfinished`: oldest first, the first 64 of them.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]
    pg_id: str
    enqueued: int
    started: int
    completed: int
    p2p: bool = False
    unfinished: tuple[FlightEntry, ...] = ()

    @property
    def waits_in(self) -> FlightEntry | None:
        """The oldest collective that was enqueued and has not completed, where it is in the ring."""
        return next((entry for entry in self.unfinished if entry.number > self.completed), None)


@dataclass(frozen=True, slots=True)
class FlightDump:
    """`groups` by name; `known`: ranks of the groups that the rank belongs to, whether it used them or not, by name;
    empty with gloo. `complete`: each group that the rank has used is in `groups`; it is not where the dump has no name
    for one of them. `waits_unnamed`: the rank waits in such a group. `last_record`: number of the newest entry, -1
    without any."""

    version: str
    groups: Mapping[str, FlightGroup]
    known: Mapping[str, tuple[int, ...]]
    complete: bool = True
    waits_unnamed: bool = False
    last_record: int = -1


@dataclass(slots=True)
class _GroupEntries:
    """Of one `pg_id`, from the entries."""

    name: str
    desc: str
    enqueued: int = 0
    #: By `state`, and, of gloo, by `retired`: gloo may complete a later one first.
    completed: int = 0
    retired: int = 0
    p2p: bool = False
    entries: list[FlightEntry] = field(default_factory=list)


def parse_dump(data: bytes) -> FlightDump:
    """Raises DumpUnreadable, DumpBeingWritten. May take seconds for a large dump."""
    if len(data) > MAX_BYTES:
        raise DumpUnreadable(f"the dump is larger than {MAX_BYTES >> 20} MiB")
    try:
        top = load_plain(data)
    except PickleIncomplete as error:
        raise DumpBeingWritten(f"the dump is incomplete: {error}") from None
    except BadPickle as error:
        raise DumpUnreadable(f"the dump is not one of PyTorch's flight recorder: {error}") from None
    if not isinstance(top, dict) or not isinstance(top.get("entries", []), list) or "version" not in top:
        raise DumpUnreadable("the dump is not one of PyTorch's flight recorder: no version and entries")
    entries = top.get("entries", [])
    if len(entries) > MAX_ENTRIES:
        raise DumpUnreadable(f"the dump has more than {MAX_ENTRIES} entries")
    known, descriptions = _config(_mapping(top.get("pg_config")))
    status = _mapping(top.get("pg_status"))
    seen, last_record = _seen(entries, {pg_id: _int(_mapping(one), "completed") for pg_id, one in status.items()})
    if len(status) > MAX_GROUPS or len(seen) > MAX_GROUPS:
        raise DumpUnreadable(f"the dump has more than {MAX_GROUPS} groups")
    names = _names(status, seen, known, descriptions)
    groups: dict[str, FlightGroup] = {}
    for pg_id, (name, desc) in names.items():
        groups[name] = _group(pg_id, name, desc, known.get(name, ()), status, seen.get(pg_id))
    complete = isinstance(top.get("pg_status"), dict) and status.keys() <= names.keys()
    unnamed = [_mapping(one) for pg_id, one in status.items() if pg_id not in names]
    waits = any(_int(one, "enqueued") > _int(one, "completed") for one in unnamed)
    return FlightDump(shown(top["version"], 20), groups, known, complete, waits, last_record)


def _config(config: Mapping[str, object]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Ranks and descriptions of the groups, by name, where the dump has their ranks."""
    if len(config) > MAX_GROUPS:
        raise DumpUnreadable(f"the dump has more than {MAX_GROUPS} groups")
    ranks: dict[str, tuple[int, ...]] = {}
    descriptions: dict[str, str] = {}
    left = MAX_RANK_TEXT
    for key, value in config.items():
        one = _mapping(value)
        text = one.get("ranks")
        left -= len(text) if isinstance(text, str) else 0
        if left < 0:
            raise DumpUnreadable("the dump has too many ranks in its groups")
        numbers = [int(number) for number in _NUMBER.findall(text)] if isinstance(text, str) else []
        if numbers:
            name = shown(one.get("name")) or shown(key)
            ranks[name] = tuple(sorted(set(numbers)))
            descriptions[name] = shown(one.get("desc"))
    return ranks, descriptions


def _seen(entries: Iterable[object], completed: Mapping[str, int]) -> tuple[dict[str, _GroupEntries], int]:
    """What the entries tell of each `pg_id`, and the number of the newest. `completed`: by `pg_status`."""
    found: dict[str, _GroupEntries] = {}
    last = -1
    for value in entries:
        entry = _mapping(value)
        last = max(last, _int(entry, "record_id", -1))
        group = entry.get("process_group")
        if not isinstance(group, tuple | list) or len(group) != 2:
            continue
        name = shown(group[0])
        # Before there was a `pg_id`, the key was the group's name.
        pg_id = str(entry["pg_id"]) if isinstance(entry.get("pg_id"), int) else name
        seen = found.setdefault(pg_id, _GroupEntries(name, shown(group[1])))
        if entry.get("is_p2p") is True:
            seen.p2p = True
            continue
        number = _int(entry, "collective_seq_id")
        seen.enqueued = max(seen.enqueued, number)
        call = entry.get("profiling_name")
        if entry.get("state") == "completed":
            seen.completed = max(seen.completed, number)
        elif entry.get("retired") is True and isinstance(call, str) and call.startswith("gloo:"):
            seen.retired = max(seen.retired, number)
        elif number > completed.get(pg_id, 0) and len(seen.entries) < MAX_UNFINISHED:
            seen.entries.append(_entry(entry, number))
    return found, last


def _entry(entry: Mapping[str, object], number: int) -> FlightEntry:
    return FlightEntry(
        number,
        shown(entry.get("profiling_name")),
        shown(entry.get("state"), 20),
        entry.get("retired") is True,
        _user_line(entry.get("frames")),
    )


def _user_line(frames: object) -> str:
    """Of frames, innermost first: the first that is not PyTorch's, else the first."""
    if not isinstance(frames, list):
        return ""
    first = ""
    for value in frames[:MAX_FRAMES]:
        frame = _mapping(value)
        file = shown(frame.get("filename"), 400)
        line = f"{shown(frame.get('name'))} ({file[-200:]}:{_int(frame, 'line')})"
        if not any(part in file for part in _NOT_USERS):
            return line
        first = first or line
    return first


def _names(
    status: Mapping[str, object],
    seen: Mapping[str, _GroupEntries],
    known: Mapping[str, tuple[int, ...]],
    descriptions: Mapping[str, str],
) -> dict[str, tuple[str, str]]:
    """Name and description of each `pg_id`: by its entries; where the ring has none of them, of the default group
    (each process makes it first), or where one number and one group are left."""
    names = {pg_id: (seen[pg_id].name, seen[pg_id].desc) for pg_id in (status or seen) if pg_id in seen}
    if "0" in status and "0" not in names and descriptions.get("0") == DEFAULT_GROUP:
        names["0"] = ("0", DEFAULT_GROUP)
    used = {name for name, _ in names.values()}
    left = [pg_id for pg_id in status if pg_id not in names]
    others = [name for name in known if name not in used]
    if len(left) == 1 and len(others) == 1:
        names[left[0]] = (others[0], descriptions[others[0]])
    return names


def _group(
    pg_id: str, name: str, desc: str, ranks: tuple[int, ...], status: Mapping[str, object], seen: _GroupEntries | None
) -> FlightGroup:
    seen = seen or _GroupEntries(name, desc)
    numbers = _mapping(status.get(pg_id))
    unfinished = sorted((entry for entry in seen.entries if entry.number > seen.completed), key=lambda one: one.number)
    enqueued, completed = _int(numbers, "enqueued"), max(_int(numbers, "completed"), seen.completed)
    if not numbers:
        enqueued = seen.enqueued
        completed = unfinished[0].number - 1 if unfinished else max(seen.completed, seen.retired)
    started = _int(numbers, "started")
    return FlightGroup(name, desc, ranks, pg_id, enqueued, started, completed, seen.p2p, tuple(unfinished))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _int(of: Mapping[str, object], key: str, default: int = 0) -> int:
    """A number that is not negative; keys of `pg_status` by their middle word."""
    value = of.get(key, of.get(f"last_{key}_collective"))
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else default
