"""Makes reports of invented jobs, to look at: python -m scripts.sample_reports FOLDER [NAME...]

Journals, events, history, stacks and logs are written as musterd writes them; `muster report` then reads them. The
tests of the report use the same jobs. A healthy, a failed, a hung, a restarted and a hostile one, one that fails after
eleven hours, and one of 24 hours with 8 cards and 64 ranks.
"""

import argparse
import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import structlog

from muster.agent.events.event_store import Event, EventStore
from muster.agent.hang import kept_stacks
from muster.agent.jobs import entry as job_entry
from muster.agent.report import gathering, on_disk, writing
from muster.agent.report.node import node_gathering, node_writing
from muster.agent.telemetry.history.history_db import Database
from muster.agent.telemetry.history.history_rows import (
    CARD_MEM,
    CPU,
    FABRIC,
    FRESH_S,
    LOG,
    MEM,
    METRICS,
    POWER,
    READ,
    UTIL,
    WRITE,
    Bounds,
    Busy,
    Row,
    SeriesFacts,
    SeriesKey,
)
from muster.probes.stacks import ProcessStacks
from muster.probes.stacks.record import PythonThread, Task
from muster.supervisors.model import journal
from muster.supervisors.model.journal import Contents, Record, Writer
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.paths import Root

#: When the jobs were accepted, in seconds since the epoch.
T0 = 1_780_300_800.0
BOUNDS = Bounds(1.0, 3.0, 256 << 20)
#: Everything that a job may write to harm who looks at it.
HOSTILE = (
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\"> & <b>bold</b> '\"",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \x00 NUL \x08\x7f",
    "\u202egnp.exe\u202c \u2066isolated\u2069 \u200fmark",
    "``` | table | [link](javascript:alert(1)) <!-- comment",
    "A" * 20_000,
)


class SampleJob:
    """A job that is being written: `at` is how long it has run, in seconds since its acceptance."""

    def __init__(
        self, folder: Path, name: str, spec: JobSpec, cards: int, ranks: int, *, first: int = 0, at: float = 0.0
    ) -> None:
        """`first`: its first card; `at`: of its acceptance."""
        self.root, self.name, self.spec = Root.under(folder), name, spec
        self.cards, self.ranks, self.first, self.accepted = cards, ranks, first, at
        self.records: list[Record] = []
        self.more: list[Event] = []
        for path in (self.root.state, self.root.events, self.root.log, self.root.job(name).folder):
            path.mkdir(parents=True, exist_ok=True)
        devices = list(range(ranks)) if not cards else [first + rank % cards for rank in range(ranks)]
        held = list(range(first, first + cards))
        self.note(
            at, "accepted", format=journal.FORMAT, digest="", boot="b", up=1.0, by="alice",
            card_kind="nvidia" if cards else "slot", master_addr="127.0.0.1", master_port=29500, first_rank=0,
            devices=devices, cards=held, node_rank=0, node_count=1, node_name="",
            local_ranks=ranks, world_size=ranks, card_uuids={str(card): f"GPU-{card:04d}" for card in held},
        )  # fmt: skip

    def note(self, at: float, kind: str, **fields: Any) -> None:
        self.records.append({"t": T0 + at, "kind": kind, **fields})

    def event(self, at: float, kind: str, message: str, rank: int | None = None, **more: str) -> None:
        job = "" if kind.startswith("node.") else self.name
        self.more.append(Event(T0 + at, kind, job, rank, message, attributes=more))

    def checked(self, at: float, *found: tuple[str, str, str, str]) -> None:
        self.note(at, "checking")
        fine = [("disk", "OK", "", ""), ("clock", "OK", "", ""), ("cards", "OK", "", "")]
        results = [dict(zip(("item", "status", "code", "reason"), one, strict=True)) for one in (*fine, *found)]
        self.note(at + 2, "checked", ok=True, results=results, skipped="")

    def begin(self, at: float, attempt: int = 0) -> None:
        self.note(at, "preparing", attempt=attempt, cgroup="", oom_kills=0)
        pids = [[rank, 4000 + 100 * attempt + rank, 1] for rank in range(self.ranks)]
        self.note(at + 0.2, "spawned", ranks=pids, boot="b")
        self.note(at + 0.3, "running", up=at)

    def ends(self, at: float, rank: int, outcome: str, status: int, detail: str = "") -> None:
        usage = {"cpu_user_s": 812.5, "cpu_system_s": 31.2, "max_rss": 9 << 30}
        self.note(at, "exited", rank=rank, outcome=outcome, status=status, usage=usage, detail=detail)

    def over(self, at: float, state: str, **verdict: Any) -> None:
        self.note(at, "ended", state=state, verdict={"exit_code": 0, "summary": "", **verdict}, log_ends={})

    def log(self, rank: int, *lines: str) -> None:
        device = self.first + (rank if not self.cards else rank % self.cards)
        path = self.root.rank_log(self.name, rank, device)
        path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))

    def readings(
        self,
        begin: float,
        end: float,
        card: Callable[[int, float], Mapping[int, float]],
        rank: Callable[[int, float], Mapping[int, float]],
        *,
        fine_s: float = 1.0,
        gaps: Sequence[tuple[float, float]] = (),
        busy: float = 0.0,
        live: bool = False,
    ) -> None:
        """Writes the history from `begin` to `end`: of the last hour each `fine_s` seconds, before that each minute.
        `busy`: mean utilization, in percent."""
        key = SeriesKey("job", self.name, T0 + self.accepted)
        cards = {index: SeriesKey("card", f"GPU-{index:04d}") for index in range(self.first, self.first + self.cards)}
        ranks = {number: key.of_rank(number) for number in range(self.ranks)}
        facts = {one: SeriesFacts("nvidia", index) for index, one in cards.items()}
        facts |= {one: SeriesFacts(live=False) for one in ranks.values()}
        used = Busy(T0 + begin, busy * (end - begin), end - begin) if busy else Busy(T0)
        facts[key] = SeriesFacts("nvidia", live=live, busy=used, cards=tuple((k, i) for i, k in cards.items()))
        database = Database.open(self.root.telemetry, BOUNDS)
        try:
            at = begin
            rows: dict[SeriesKey, list[Row]] = {one: [] for one in facts}
            while at < end:
                if not any(low <= at < high for low, high in gaps):
                    for index, one in cards.items():
                        rows[one].append((T0 + at, _row(card(index, at))))
                    for number, one in ranks.items():
                        rows[one].append((T0 + at, _row(rank(number, at))))
                    rows[key].append((T0 + at, _row({CPU: 40.0, MEM: 30.0})))
                at += fine_s if at > end - FRESH_S else 60.0
            database.write(rows, facts, T0 + end + 60)
        finally:
            database.close()

    def stacks(self, at: float, odd: int) -> None:
        """Of a hang: all ranks wait in a collective, but the odd one."""
        processes = [
            ProcessStacks(
                rank, 4000 + rank, 1, "python train.py", "S", 12, (Task(4000 + rank, "python", "S", "futex_wait"),),
                (_main_thread(rank, _ODD if rank == odd else _WAITS),),
            )
            for rank in range(self.ranks)
        ]  # fmt: skip
        taken = kept_stacks.JobStacks(T0 + at, "hung", 0, tuple(processes), ())
        kept_stacks.write(self.root.job(self.name).folder, taken)

    async def finish(self) -> None:
        """Puts spec, journal and events onto the disk, and logs where there are none."""
        paths = self.root.job(self.name)
        for rank in range(self.ranks):
            if not self.root.rank_log(self.name, rank, self.first + rank % (self.cards or self.ranks)).exists():
                self.log(rank, *(f"step {n} loss 1.{n}" for n in range(7980, 8000)))
        paths.spec.write_text(self.spec.to_json())
        writer = Writer(paths.journal, Contents([], 0, torn=False))
        writer.append(self.records)
        writer.close()
        _, told = job_entry.load(self.name, paths)
        store = await EventStore.open(self.root.events, 64 << 20)
        events = sorted([*(event for _, event in told), *self.more], key=lambda event: event.time)
        store.append((None, event) for event in events)
        await store.close()


_WAITS = ("wait (torch/distributed/distributed_c10d.py:4104)", "all_reduce (torch/distributed/c10d_logger.py:83)",
          "backward (train.py:88)", "main (train.py:131)", "<module> (train.py:140)")  # fmt: skip
_ODD = ("read (data/shards.py:51)", "__next__ (data/loader.py:33)", "main (train.py:120)", "<module> (train.py:140)")


def _main_thread(rank: int, frames: tuple[str, ...]) -> PythonThread:
    return PythonThread(4000 + rank, "MainThread", True, frames, frames)


def _row(values: Mapping[int, float]) -> list[float | None]:
    return [values.get(metric) for metric in range(len(METRICS))]


def _noise(seed: int, at: float, of: float) -> float:
    """The same for the same, and cheap: a day has half a million of them."""
    return of * (math.sin(seed * 12.9898 + at * 78.233) * 43758.5453 % 1 - 0.5)


def working(card: int, at: float) -> dict[int, float]:
    """A card of a job that trains: it computes, and saves each ten minutes."""
    saves = at % 600 < 25
    util = 6.0 if saves else 93 + _noise(card, at, 8)
    power = (180.0 if saves else 610.0) + _noise(card + 50, at, 50)
    return {
        UTIL: util,
        CARD_MEM: 71 + card / 4 + _noise(card, at, 1),
        POWER: power,
        FABRIC: 0.0 if saves else 2.1e11 + _noise(card, at, 3e10),
    }


def feeding(rank: int, at: float) -> dict[int, float]:
    """A rank of such a job."""
    saves = at % 600 < 25
    write = 9e8 if saves and rank == 0 else 2e3
    cpu = 240 + 30 * math.sin(at / 90 + rank) + _noise(rank, at, 20)
    return {CPU: cpu, READ: 1.8e8 + _noise(rank, at, 5e7), WRITE: write, LOG: 900 if rank == 0 else 120.0}


def idle(rank: int, at: float) -> dict[int, float]:
    """A rank that waits, and polls."""
    return {CPU: 100 + _noise(rank, at, 1), READ: 0.0, WRITE: 0.0, LOG: 0.0}


def spec_of(name: str, command: tuple[str, ...], **fields: Any) -> JobSpec:
    env = {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "hunter2-secret", "OMP_NUM_THREADS": "8"}
    return JobSpec(name, command, **({"workdir": "/data/run", "env": env} | fields))


TRAIN = ("python", "train.py", "--config", "configs/7b.yaml", "--steps", "200000")


async def healthy(folder: Path) -> str:
    job = SampleJob(folder, "healthy", spec_of("healthy", TRAIN, card_count=8), 8, 8)
    job.checked(1)
    job.begin(4)
    for rank in range(8):
        job.ends(2650 + rank / 10, rank, "EXITED", 0)
    job.over(2652, "SUCCEEDED", summary="all ranks exited with code 0")
    job.readings(5, 2650, working, feeding, fine_s=5)
    await job.finish()
    return job.name


async def failed(folder: Path) -> str:
    return await fell_off(folder, "llama-7b-pretrain", 3010.0)


async def overnight(folder: Path) -> str:
    """The same after eleven hours, in the last minute of a long time."""
    return await fell_off(folder, "overnight", 11 * HOUR)


async def fell_off(folder: Path, name: str, at: float, ranks: int = 8) -> str:
    """A job of eight cards whose card 3 falls off the bus: rank 3 fails, and the others are stopped."""
    job = SampleJob(folder, name, spec_of(name, TRAIN, card_count=8), 8, ranks)
    job.checked(1, ("pcie", "WARN", "PCIE_GEN_DEGRADED", "card 3: the link runs at 16 GT/s, it could at 32 GT/s"))
    job.begin(4)
    about = {"card": "3", "uuid": "GPU-0003", "device": "card 3", "item": "xid", "status": "CRITICAL"}
    message = "card 3: Xid 79: the GPU has fallen off the bus"
    job.event(at, "node.event", message, None, code="GPU_OFF_BUS", number="79", **about)
    job.event(at + 0.2, "node.condition", f"{message} (CRITICAL)", None, code="GPU_OFF_BUS", **about)
    job.log(3, *(f"step {n} loss {2.1 - n / 9000:.4f}" for n in range(8000, 8040)),
            "[rank3]: torch.AcceleratorError: CUDA error: unspecified launch failure",
            "CUDA kernel errors might be asynchronously reported at some other API call")  # fmt: skip
    last = tuple(job.root.rank_log(job.name, 3, 3).read_text().splitlines()[-12:])
    job.ends(at + 2, 3, "EXITED", 1 << 8)
    job.note(
        at + 2.1, "stopping", cause="rank_failed", by="rank 3", reason="it exited with code 1", steps=[15.0], up=at + 3
    )
    victims = [rank for rank in range(ranks) if rank != 3]
    for rank in victims:
        job.ends(at + 4 + rank / 9, rank, "GANG_VICTIM", 15)
    summary = f"rank 3 (device 3) exited with code 1; {len(victims)} other ranks were stopped"
    job.over(at + 6 + ranks / 9, "FAILED", exit_code=1, summary=summary, first_failed=3, last_lines=last,
             victims=victims, recommendation="FAIL")  # fmt: skip

    def card(index: int, now: float) -> dict[int, float]:
        found = working(index, now)
        if now > at - 50:
            found[UTIL], found[POWER], found[FABRIC] = (0.0, 92.0, 0.0) if index == 3 else (100.0, 300.0, 0.0)
        return found

    def of_rank(number: int, now: float) -> dict[int, float]:
        return idle(number, now) if now > at - 50 and number != 3 else feeding(number, now)

    job.readings(5, at + 3, card, of_rank, fine_s=5)
    await job.finish()
    return job.name


async def hung(folder: Path) -> str:
    job = SampleJob(folder, "hung", spec_of("hung", TRAIN, card_count=8, on_hang="stop"), 8, 8)
    job.checked(1)
    job.begin(4)
    why = "rank 5 reads from its data set, and the others wait for it in all_reduce"
    job.event(1380, "job.suspected_hang", f"SUSPECT: {why}", 5, confidence="0.6", verdict="SUSPECT")
    job.event(1740, "job.hung", f"HUNG (spin): rank 5: {why} for 10 minutes", 5, confidence="0.95", verdict="HUNG")
    job.log(5, *(f"step {n}" for n in range(20)))
    job.stacks(1741, 5)
    job.note(1742, "stopping", cause="hung", by="musterd", reason=why, steps=[15.0], up=1742, ranks=[5])
    for rank in range(8):
        job.ends(1743 + rank / 9, rank, "HUNG" if rank == 5 else "GANG_VICTIM", 15)
    summary = "rank 5 (device 5) hung; 7 other ranks were stopped"
    job.over(1745, "FAILED", exit_code=143, summary=summary, first_failed=5,
             last_lines=["step 18", "step 19"], victims=[0, 1, 2, 3, 4, 6, 7], recommendation="RETRY_HERE",
             recommendation_reason="the job hung, and no fault of the node is known")  # fmt: skip

    def card(index: int, at: float) -> dict[int, float]:
        found = working(index, at)
        if at > 1140:
            found[UTIL], found[POWER], found[FABRIC] = (0.0, 95.0, 0.0) if index == 5 else (100.0, 280.0, 0.0)
        return found

    job.readings(5, 1742, card, lambda rank, at: idle(rank, at) if at > 1140 else feeding(rank, at), fine_s=5)
    await job.finish()
    return job.name


async def restarted(folder: Path) -> str:
    job = SampleJob(folder, "restarted", spec_of("restarted", TRAIN, card_count=4, max_restarts=3), 4, 4)
    job.checked(1)
    at = 4.0
    for attempt, long in enumerate((620.0, 1100.0)):
        job.begin(at, attempt)
        job.ends(at + long, 2, "SIGNALLED", 9)
        stop = {"cause": "rank_failed", "by": "rank 2", "reason": "it was killed by SIGKILL", "steps": [15.0]}
        job.note(at + long + 0.1, "stopping", up=at + long, **stop)
        for rank in (0, 1, 3):
            job.ends(at + long + 2, rank, "GANG_VICTIM", 15)
        summary = "rank 2 (device 2) was killed by SIGKILL; 3 other ranks were stopped"
        told = {"exit_code": 137, "summary": summary, "first_failed": 2}
        again = {"attempt": attempt + 1, "verdict": told, "log_ends": {}, "delay_s": 20.0}
        job.note(at + long + 3, "restarting", up=at + long, **again)
        at += long + 25
    job.begin(at, 2)
    for rank in range(4):
        job.ends(at + 1500, rank, "EXITED", 0)
    job.over(at + 1502, "SUCCEEDED", summary="all ranks exited with code 0")
    job.readings(5, at + 1500, working, feeding, fine_s=5, gaps=((624, 650), (1750, 1776), (2200, 2500)))
    await job.finish()
    return job.name


async def day(folder: Path) -> str:
    """24 hours with 8 cards and 64 ranks; the clock stands still in no minute, but one hour has no readings."""
    job = SampleJob(folder, "day", spec_of("day", TRAIN, ranks=64), 8, 64)
    job.checked(1)
    job.begin(4)
    for n in range(380):
        job.event(200.0 * n + 50, "job.warning", f"rank {n % 64}: the disk of its data was slow")
    end = 86_400.0
    for rank in range(64):
        job.ends(end - 10 + rank / 64, rank, "EXITED", 0)
    job.over(end, "SUCCEEDED", summary="all ranks exited with code 0")

    def card(index: int, at: float) -> dict[int, float]:
        found = working(index, at)
        if index == 6 and at > 50_000:
            found[UTIL], found[POWER] = 58 + _noise(6, at, 6), 380 + _noise(7, at, 20)
        return found

    job.readings(5, end - 10, card, feeding, fine_s=15, gaps=((30_000, 33_600),))
    await job.finish()
    return job.name


async def hostile(folder: Path) -> str:
    env = {"</style><script>": "secret-value", "A\u202eB": "secret-value", "NORMAL": "secret-value"}
    command = ("sh", "-c", HOSTILE[0], HOSTILE[1], "\x1b[31m", HOSTILE[3])
    labels = {"label": HOSTILE[1]}
    spec = spec_of(
        "hostile", command, card_count=4, env=env, labels=labels, notify_webhook="https://hook.example/T0KEN"
    )
    job = SampleJob(folder, "hostile", spec, 4, 4)
    job.checked(1, ("disk<b>", "WARN", "X</td>", HOSTILE[0]))
    job.begin(4)
    job.log(1, *HOSTILE)
    for line in HOSTILE:
        job.note(20, "warning", text=line)
    job.event(30, "node.event", HOSTILE[1], code="<i>", status="CRITICAL")
    job.ends(40, 1, "EXITED", 9 << 8, HOSTILE[0])
    for rank in (0, 2, 3):
        job.ends(41, rank, "GANG_VICTIM", 15)
    job.over(42, "FAILED", exit_code=9, summary=f"rank 1 exited with code 9 {HOSTILE[0]}", first_failed=1,
             last_lines=list(HOSTILE), victims=[0, 2, 3], recommendation="FAIL",
             recommendation_reason=HOSTILE[1])  # fmt: skip
    job.readings(5, 40, working, feeding)
    await job.finish()
    return job.name


HOUR = 3600.0


async def _ran(
    folder: Path, name: str, begin: float, end: float | None, *, first: int = 0, cards: int = 8, use: float = 94.0,
    state: str = "SUCCEEDED", summary: str = "all ranks exited with code 0",
) -> SampleJob:  # fmt: skip
    """A job of three days, in hours."""
    last = (72.0 if end is None else end) * HOUR
    job = SampleJob(folder, name, spec_of(name, TRAIN, card_count=cards), cards, cards, first=first, at=begin * HOUR)
    job.begin(begin * HOUR + 4)
    if end is not None:
        code = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 143}[state]
        outcome = {"SUCCEEDED": "EXITED", "FAILED": "EXITED", "STOPPED": "STOPPED"}[state]
        for rank in range(cards):
            job.ends(last - 2, rank, outcome, code << 8 if outcome == "EXITED" else 15)
        job.over(last, state, exit_code=code, summary=summary)

    def card(index: int, at: float) -> dict[int, float]:
        return working(index, at) | {UTIL: max(0.0, min(100.0, use + _noise(index, at, 12))), POWER: 90 + 5.5 * use}

    job.readings(
        begin * HOUR + 5, last, card, feeding, fine_s=60, busy=use, live=end is None,
        gaps=((55 * HOUR, 56 * HOUR),),
    )  # fmt: skip
    return job


async def node(folder: Path) -> float:
    """Three days of a node: jobs, one of which an Xid ended, drained for it, two that use little, a restart without a
    word, lost output, and a reason that tries to do harm. Returns their end."""
    first = await _ran(
        folder, "llama-7b-pretrain", 1, 30, state="FAILED", summary="rank 3 (device 3) exited with code 1"
    )
    others = [
        await _ran(folder, "eval", 36, 41, first=6, cards=2, use=21),
        await _ran(folder, "finetune-a", 37, 66, cards=4),
        await _ran(folder, "notebook", 42, 60, first=6, cards=2, use=7, state="STOPPED", summary="alice stopped it"),
        await _ran(folder, "finetune-b", 50, None, first=4, cards=2, use=88),
    ]
    xid = {"card": "3", "uuid": "GPU-0003", "device": "card 3", "item": "xid", "code": "GPU_OFF_BUS"}
    message = "card 3: Xid 79: the GPU has fallen off the bus"
    first.event(29.9 * HOUR, "node.event", message, None, status="CRITICAL", number="79", **xid)
    first.event(29.9 * HOUR + 1, "node.condition", f"{message} (CRITICAL)", None, status="CRITICAL", **xid)
    first.event(30.5 * HOUR, "node.drained", f"bob drained the node: {HOSTILE[1]}", None, by="bob", reason=HOSTILE[1])
    first.event(34 * HOUR, "node.stopping", "the daemon ends")
    first.event(35 * HOUR, "node.started", "the daemon has started")
    first.event(35.1 * HOUR, "node.condition_cleared", f"{message}: cleared: by a reboot", None, was="CRITICAL", **xid)
    first.event(35.5 * HOUR, "node.undrained", "bob returned the node to service")
    warm = {"card": "6", "device": "card 6", "item": "clock", "code": "GPU_CLOCK_THROTTLED", "status": "WARN"}
    for at in (44, 52, 64):
        first.event(at * HOUR, "node.condition", "card 6: GPU_CLOCK_THROTTLED: heat (WARN)", None, **warm)
        first.event(
            (at + 1.5) * HOUR, "node.condition_cleared", "card 6: cleared: the clock is as it was", None, **warm
        )
    for at in (61, 62, 63):
        other = {"card": "1", "device": "card 1", "item": "xid", "code": "GPU_XID_OTHER", "status": "WARN"}
        first.event(
            at * HOUR, "node.event", "card 1: Xid 31: a fault of the program's memory", None, number="31", **other
        )
    first.event(55 * HOUR, "node.started", "the daemon has started")
    full = "output cannot be written: No space left on device: 1048576 bytes lost"
    others[1].event(48 * HOUR, "job.output_lost", full, 2, bytes="1048576", total="1048576")
    disk = {"device": "/data", "item": "disk", "code": "DISK_FULL", "status": "CRITICAL"}
    first.event(70 * HOUR, "node.condition", f"/data: DISK_FULL: 99 % are used {HOSTILE[0]} (CRITICAL)", None, **disk)
    for job in (first, *others):
        await job.finish()
    of_node = {SeriesKey("node"): [(T0 + at, _row({CPU: 30 + _noise(9, at, 20), MEM: 44 + at / HOUR / 8}))
                                   for at in range(0, int(72 * HOUR), 60)]}  # fmt: skip
    idle_cards = {
        SeriesKey("card", f"GPU-{index:04d}"): [(T0 + at, _row({UTIL: 0.0, CARD_MEM: 1.0, POWER: 85.0}))
                                                for at in range(int(30.1 * HOUR), int(36 * HOUR), 60)]
        for index in range(8)
    }  # fmt: skip
    database = Database.open(first.root.telemetry, BOUNDS)
    try:
        facts = {key: SeriesFacts("nvidia", int(key.name[-4:])) for key in idle_cards} | {
            SeriesKey("node"): SeriesFacts()
        }
        database.write(of_node | idle_cards, facts, T0 + 72 * HOUR)
    finally:
        database.close()
    return T0 + 72 * HOUR


async def made_of_node(folder: Path, form: str = writing.HTML) -> str:
    """The report of such a node, `folder`."""
    end = await node(folder)
    return node_writing.text(await node_gathering.collect(Root.under(folder), node="node-17", now=end), form)


SAMPLES = {one.__name__: one for one in (healthy, failed, overnight, hung, restarted, day, hostile)}


async def made(folder: Path, name: str, form: str = writing.HTML) -> str:
    """The report of one of SAMPLES, whose node is `folder`."""
    job_id = await SAMPLES[name](folder)
    return await reported(folder, job_id, form)


async def reported(folder: Path, job_id: str, form: str = writing.HTML) -> str:
    """The report of a job below `folder`."""
    root = Root.under(folder)
    entry = on_disk.job(root, job_id)
    assert entry is not None
    report = await gathering.collect(on_disk.sources(root, job_id), entry, node="node-17")
    return writing.text(report, form)


async def _main(folder: Path, names: Sequence[str]) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for name in names:
        below, path = folder / f"{name}.node", folder / f"{name}.html"
        shutil.rmtree(below, ignore_errors=True)  # of the run before: its events would come twice
        path.write_text(await (made_of_node(below) if name == "node" else made(below, name)), "utf-8")
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m scripts.sample_reports", description="Make reports of invented jobs, to look at."
    )
    parser.add_argument("folder", type=Path)
    known = [*SAMPLES, "node"]
    parser.add_argument("name", nargs="*", help=f"of {', '.join(known)}; without: all")
    asked = parser.parse_args()
    if unknown := [name for name in asked.name if name not in known]:
        parser.error(f"{unknown[0]}: must be one of {', '.join(known)}")
    anyio.run(_main, asked.folder, asked.name or known)
