"""What HCCL's own detector wrote into the run log of CANN: which rank is stuck, lost, or has a broken network.

Each process of HCCL has a thread that exchanges heartbeats with its neighbours, and hands on what it hears, so that the
log of any rank names every rank in trouble (the cluster heartbeat of HCCL's troubleshooting guide). Its lines are

    [INFO] HCCL(686,python):2025-10-23-07:52:59.191.363 [heartbeat.cc:951] [8970][TaskExecStage][HeartbeatAbnormal]
    local rank [10.0.0.1/1]: crimer rank [10.0.0.2/2] status[LOST] by informer rank [10.0.0.3/3]

on one line each, IP/ID being the server's address and the physical number of the device; some releases leave the status
out. LOST: no heartbeat for 30 s. ERROR CQE: the network gave up. STUCK: the rank neither began nor ended a collective
for a third of HCCL_EXEC_TIMEOUT, 60 s at least. A rank inside a collective is not stuck in this sense: it has begun.
"""

import contextlib
import datetime
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import anyio

from muster.probes.calls import watched
from muster.probes.kernel import number_lists
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import ASCEND_LOGS
from muster.probes.library.collective_finding import LibraryFinding, LibraryVerdict, StuckCollective
from muster.probes.library.job_files import PROC, found_file, open_within, root_of

#: Bytes of the end of a log that are read, entries of its folder, and files of one process: CANN begins a new one when
#: one is full.
MAX_BYTES, MAX_ENTRIES, MAX_FILES = 1 << 20, 4096, 2
#: HCCL_EXEC_TIMEOUT without that variable (older releases: 1800), the share of it after which a rank is stuck, and the
#: shortest such time, all in seconds.
EXEC_TIMEOUT_S, STUCK_SHARE, STUCK_LEAST_S = 1836.0, 1 / 3, 60.0
#: Seconds by which the ranks' detectors may differ beside that: they look each 50 ms, and a busy node is late.
LATE_S = 30.0
STUCK, LOST, NETWORK = "STUCK", "LOST", "ERROR CQE"
_WHAT = {
    STUCK: "has begun no collective for {stuck:g} s",
    LOST: "sends no heartbeat: its process has ended, or the network is disconnected",
    NETWORK: "has an error of its network (CQE)",
    "": "is abnormal",
}

_UID = r"\[([0-9A-Za-z.:_%-]{1,100}/[0-9]{1,7})\]"
_TIME = r":([0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{2}:[0-9]{2}:[0-9]{2})\.[0-9]{3}\.[0-9]{3}"
_PROCESS = r"\([0-9]+,[^)\n]{0,64}\)"
_STAMP = re.compile(r"^\[[A-Z]{4,8}\] ?[A-Z_]{1,20}" + _PROCESS + _TIME, re.MULTILINE)
_EVENT = re.compile(
    r"^\[[A-Z]{4,8}\] ?HCCL" + _PROCESS + _TIME + r"[^\n]{0,200}\[HeartbeatAbnormal\] ?local rank ?" + _UID +
    r" ?: ?crimer rank ?" + _UID + r"(?: ?status ?\[([A-Z ]{1,32})\])? ?by informer rank ?" + _UID,
    re.MULTILINE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlogSource:
    """A rank's process, and where CANN writes its logs. `start`: of the process, in clock ticks since boot; `uid`: the
    owner that its files must have; `inner_pid`: what the process calls itself. `folder`: in the process' root."""

    rank: int
    pid: int
    start: int
    uid: int
    inner_pid: int
    folder: str
    stuck_s: float


@dataclass(frozen=True, slots=True)
class HeartbeatEvent:
    """`at`: seconds since the epoch. `who` is in trouble, `by` noticed it: IP/ID. `status`: "" if the line has none."""

    at: float
    who: str
    status: str
    by: str


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """What one rank's log has of its detector. `uid`: its own IP/ID. `stuck_s`: after which time a rank is stuck."""

    uid: str
    events: tuple[HeartbeatEvent, ...]
    stuck_s: float


def plog_source(rank: int, pid: int, start: int, uid: int, inner_pid: int, environ: Iterable[bytes]) -> PlogSource:
    """`environ`: NAME=VALUE each, as /proc/PID/environ has them. Logs are in ASCEND_PROCESS_LOG_PATH, else in
    ~/ascend/log."""
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in environ)
    variables = {name: value for name, _, value in pairs}
    folder = variables.get(ASCEND_LOGS) or f"{variables.get('HOME') or '/root'}/ascend/log"
    try:
        timeout_s = float(variables.get("HCCL_EXEC_TIMEOUT") or EXEC_TIMEOUT_S)
    except ValueError:
        timeout_s = EXEC_TIMEOUT_S
    return PlogSource(rank, pid, start, uid, inner_pid, folder, max(STUCK_LEAST_S, timeout_s * STUCK_SHARE))


async def read_heartbeats(sources: Sequence[PlogSource], deadline_s: float, proc: Path = PROC) -> dict[int, Heartbeats]:
    """By rank, of those whose log has lines of the detector and was read in time. Raises nothing but cancellation."""
    found: dict[int, Heartbeats] = {}

    async def one(source: PlogSource) -> None:
        with contextlib.suppress(OSError, watched.StillHanging):
            said = await watched.call(f"the log of CANN of process {source.pid}", lambda: _read(source, proc))
            if said is not None:
                found[source.rank] = said

    with anyio.move_on_after(deadline_s):
        async with anyio.create_task_group() as group:
            for source in sources:
                group.start_soon(one, source)
    return dict(sorted(found.items()))


def judge_heartbeats(said: Mapping[int, Heartbeats], since: float, now: float) -> LibraryFinding | None:
    """What the ranks' detectors say of a silence that began at `since`; None where they say nothing of it.

    Ranks that are lost, or whose network fails, are named, without a proof. Ranks that are stuck did not come to what
    the others are inside of (ABSENT), once these would have been called stuck, too: before that, and where all are
    stuck, nobody is known to wait.
    """
    ranks = {one.uid: rank for rank, one in said.items()}
    events = {(event.who, event.status): event for one in said.values() for event in one.events if event.at >= since}
    if not events:
        return None
    stuck_s = max(one.stuck_s for one in said.values())
    kinds = sorted({status for _, status in events}, key=lambda status: list(_WHAT).index(status))
    by_kind = {kind: [who for who, status in events if status == kind] for kind in kinds}
    text = "; ".join(_sentence(kind, who, ranks, stuck_s) for kind, who in by_kind.items())
    stuck = by_kind.get(STUCK, [])
    absent = tuple(sorted(ranks[who] for who in stuck if who in ranks))
    inside = tuple(sorted(rank for who, rank in ranks.items() if who not in {who for who, _ in events}))
    first = min((event.at for event in events.values() if event.status == STUCK), default=now)
    if not stuck or not inside or now < first + stuck_s + LATE_S:
        return LibraryFinding(LibraryVerdict.UNDECIDED, f"HCCL: {text}")
    elsewhere = tuple(f"the rank on {who}" for who in stuck if who not in ranks)
    waits = f"{number_lists.ranks(inside)} {'waits' if len(inside) == 1 else 'wait'} in a collective"
    collective = StuckCollective("HCCL", "hccl:a collective", 0, inside, absent, elsewhere=elsewhere)
    return LibraryFinding(LibraryVerdict.ABSENT, f"HCCL: {text}; {waits}", absent, (collective,))


def _sentence(kind: str, uids: Sequence[str], ranks: Mapping[str, int], stuck_s: float) -> str:
    here = sorted(ranks[uid] for uid in uids if uid in ranks)
    others = [f"the rank on {uid}" for uid in sorted(uids) if uid not in ranks]
    names = ([number_lists.ranks(here)] if here else []) + others[:4]
    return f"{', '.join(names)} {_WHAT[kind].format(stuck=stuck_s)}"


# --- in a thread ------------------------------------------------------------------------------------------------------


def _read(source: PlogSource, proc: Path) -> Heartbeats | None:
    """Raises OSError."""
    begin, files = f"plog-{source.inner_pid}_", []
    with contextlib.ExitStack() as held:
        root = held.enter_context(root_of(source.pid, source.start, proc))
        folder = open_within(root, f"{source.folder}/run/plog")
        held.callback(os.close, folder)
        listing = os.open(f"/proc/self/fd/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, listing)
        with os.scandir(listing) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False)]
        for name in names:
            if name.startswith(begin) and name.endswith(".log"):
                with contextlib.suppress(OSError):
                    files.append(held.enter_context(found_file(folder, name)))
        seen = [(os.fstat(fd), fd) for fd in files]
        plain = [one for one in seen if stat.S_ISREG(one[0].st_mode) and one[0].st_uid == source.uid]
        plain.sort(key=lambda one: one[0].st_mtime)
        texts = [_end(fd, found.st_size) for found, fd in plain[-MAX_FILES:]]
        if not texts:
            return None
        return parse_heartbeats("\n".join(texts), plain[-1][0].st_mtime, source.stuck_s)


def parse_heartbeats(text: str, written_at: float, stuck_s: float = STUCK_LEAST_S) -> Heartbeats | None:
    """None if there is no line of the detector. `written_at`: when the file was last written, in seconds since the
    epoch; it tells the time zone of the lines, which is the job's."""
    found = list(_EVENT.finditer(text))
    if not found:
        return None
    *_, last = _STAMP.finditer(text)
    # The last line is as old as the file, but for the zone: quarters of an hour.
    zone_s = 900 * round((written_at - _seconds(last[1])) / 900)
    events = [HeartbeatEvent(_seconds(m[1]) + zone_s, m[3], (m[4] or "").strip(), m[5]) for m in found]
    known = tuple(event for event in events if event.status in _WHAT)
    return Heartbeats(found[-1][2], known, stuck_s)


def _seconds(stamp: str) -> float:
    """As if it were UTC; 0 for no time at all."""
    try:
        at = datetime.datetime.strptime(stamp, "%Y-%m-%d-%H:%M:%S")
    except ValueError:
        return 0.0
    return at.replace(tzinfo=datetime.UTC).timestamp()


def _end(found: int, size: int) -> str:
    """Of a file that was found to be a regular one."""
    fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(fd, MAX_BYTES, max(0, size - MAX_BYTES)).decode("utf-8", "replace")
    finally:
        os.close(fd)
