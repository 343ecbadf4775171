"""The checks before a start: which there are, with what settings, and how they are run side by side."""

import functools
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

import anyio

from muster.probes.calls import watched
from muster.probes.cards.driver import Driver
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.checks import card_checks, custom, disk, dns, ulimits
from muster.probes.checks.card_checks import CardsWanted
from muster.probes.checks.check_settings import CheckSettings
from muster.probes.checks.result import Action, CheckResult, Code, Status, final_line, log_lines, worst
from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import near_names

__all__ = [
    "CardsWanted",
    "CheckEntry",
    "CheckRequest",
    "CheckResult",
    "CheckSettings",
    "Status",
    "UnknownItem",
    "catalogue",
    "final_line",
    "log_lines",
    "run",
    "worst",
]

Check = Callable[[], Awaitable[CheckResult]]


class UnknownItem(ValueError):
    """Raised when somebody asks for a check that does not exist. The message names the nearest one and all."""

    def __init__(self, wanted: str, known: Iterable[str]) -> None:
        known = list(known)
        near = near_names(wanted, known)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        there = ", ".join(known) or "none in the custom folder"
        super().__init__(f"no check named {wanted[:60]!r}{hint}; there are: {there}")


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is to be started, and by whom.

    `cards` are the job's, `driver` tells of those of the host (None: one is opened for this). `hosts` are the names of
    the job's nodes, `user` whom its ranks run as ("" for the daemon's own), `limits` its own limits by name (-1:
    unlimited). `daemon` and `nursery` are the pids of those from whom ranks inherit theirs; 0: this process, none.
    """

    cards: CardsWanted = field(default_factory=CardsWanted)
    driver: Driver | None = None
    hosts: tuple[str, ...] = ()
    user: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    daemon: int = 0
    nursery: int = 0
    nofile: int | None = None


class CheckEntry(NamedTuple):
    """One check of the catalogue: its item, what it looks at, the codes that it can give."""

    item: str
    checks: str
    codes: tuple[str, ...]


_ALWAYS = (Code.PROBE_TIMED_OUT, Code.PROBE_FAILED)


def catalogue() -> list[CheckEntry]:
    """All checks in the order in which results are given. Every one may also be PROBE_TIMED_OUT or PROBE_FAILED."""

    def entry(item: str, checks: str, prefix: str) -> CheckEntry:
        return CheckEntry(item, checks, tuple(c for c in Code if c.startswith(prefix)) + _ALWAYS)

    return [
        entry(dns.ITEM, "every name of the job's nodes and of the .host files resolves", "DNS_"),
        entry("disk-size root", "size of the root file system, > 32 GB", "DISK_"),
        entry("disk-size shm", "size of /dev/shm, > 1 GB", "DISK_"),
        entry("disk-size cache", "size of /cache, > 32 GB", "DISK_"),
        entry(ulimits.ITEM, "locked memory, open files, stack and processes of the ranks, with InfiniBand", "ULIMIT_"),
        entry(card_checks.ITEM, "the cards that the job wants exist and answer", "CARDS_"),
        entry(f"{custom.ALL} <name>", "a custom executable with Nagios exit codes", "CUSTOM_"),
    ]


async def run(settings: CheckSettings, request: CheckRequest, items: tuple[str, ...] = ()) -> list[CheckResult]:
    """Runs all checks side by side and returns their results in the order of the catalogue.

    `items` picks some, by item or by its first word ("disk-size" is all three). Takes at most a second more than
    `settings.deadline_s`, whatever hangs. Raises UnknownItem. Findings are results, never exceptions.
    """
    checks = _builtin(settings, request)
    chosen = _choose(checks, [i for i in items if not _is_custom(i)]) if items else list(checks)
    wanted = [i for i in items if _is_custom(i)]
    found = len(request.driver.view.cards) if request.driver else 0
    env = custom.environment(
        cards_wanted=found if request.cards.every else len(request.cards),
        cards_found=found,
        user=request.user,
        deadline_s=settings.deadline_s,
    )
    end = anyio.current_time() + settings.deadline_s
    results: dict[str, CheckResult] = {}
    unknown: UnknownItem | None = None

    async def one(item: str) -> None:
        results[item] = await _guarded(item, checks[item], end, settings.deadline_s)

    async with anyio.create_task_group() as group:
        for item in chosen:
            group.start_soon(one, item)
        # Looked for beside the others, which a folder that hangs must not hold up, and only where somebody asked.
        if wanted or not items:
            own = await _custom(settings, env, end)
            try:
                names = _choose(own, wanted) if items else list(own)
            except UnknownItem as error:
                unknown, names = error, []
                group.cancel_scope.cancel()
            checks |= own
            chosen += names
            for item in names:
                group.start_soon(one, item)
    if unknown is not None:
        raise unknown
    return [results[item] for item in chosen]


def _builtin(s: CheckSettings, r: CheckRequest) -> dict[str, Check]:
    # A little less than its guard's, so that the check itself can say which names or cards had no answer.
    deadline = s.deadline_s * 0.95
    needs = (
        disk.Need("disk-size root", s.root_path, s.root_min_gb, s.root_required, s.disk_free_percent, False),
        disk.Need("disk-size shm", s.shm_path, s.shm_min_gb, s.shm_required, s.disk_free_percent, True),
        disk.Need("disk-size cache", s.cache_path, s.cache_min_gb, s.cache_required, s.disk_free_percent, True),
    )
    limits = (
        ulimits.Limit("memlock", resource.RLIMIT_MEMLOCK, "max locked memory", "l", 1024, s.memlock_min_kb),
        ulimits.Limit("nofile", resource.RLIMIT_NOFILE, "open files", "n", 1, s.nofile_min),
        ulimits.Limit("stack", resource.RLIMIT_STACK, "stack size", "s", 1024, s.stack_min_kb),
        ulimits.Limit("nproc", resource.RLIMIT_NPROC, "max user processes", "u", 1, s.nproc_min),
        ulimits.Limit("core", resource.RLIMIT_CORE, "core file size", "c", 1024, None),
    )
    checks: dict[str, Check] = {
        dns.ITEM: functools.partial(dns.check, hosts=r.hosts, folder=s.host_files, deadline_s=deadline)
    }
    checks |= {need.item: functools.partial(disk.check, need) for need in needs}
    checks[ulimits.ITEM] = functools.partial(
        ulimits.check,
        limits,
        when=s.ulimits,
        infiniband_path=s.infiniband_path,
        user=r.user,
        asked=r.limits,
        read=functools.partial(ulimits.inherited, r.daemon, r.nursery, r.nofile),
    )
    checks[card_checks.ITEM] = functools.partial(_cards, r, deadline)
    return checks


async def _cards(request: CheckRequest, deadline_s: float) -> CheckResult:
    if request.driver is not None:
        return await card_checks.check(request.cards, request.driver, deadline_s=deadline_s)
    driver = Driver(lambda: DriverSettings(deadline_s))
    try:
        return await card_checks.check(request.cards, driver, deadline_s=deadline_s)
    finally:
        with anyio.CancelScope(shield=True):
            await driver.close()


async def _custom(settings: CheckSettings, env: dict[str, str], end: float) -> dict[str, Check]:
    """The checks in the custom folder; if it cannot be read, one check that reports the reason."""
    folder = settings.custom_dir
    if not folder:
        return {}

    async def unreadable(code: Code, reason: str) -> CheckResult:
        return CheckResult(custom.ALL, Status.UNKNOWN, code, reason, action=Action.INVESTIGATE)

    found: list[custom.CustomCheck] | None = None
    code, why = Code.PROBE_TIMED_OUT, f"{folder}: could not be listed within {settings.deadline_s:g} s"
    try:
        with anyio.CancelScope(deadline=end):
            found = await watched.call(f"list {folder}", lambda: custom.find(folder))
    except watched.StillHanging as error:
        why = str(error)
    except OSError as error:
        code, why = Code.CUSTOM_FOLDER_UNREADABLE, f"{folder}: cannot be listed: {error.strerror or error}"
    if found is None:
        return {custom.ALL: functools.partial(unreadable, code, why)}
    return {f.item: functools.partial(custom.check, f, env) for f in found}


def _is_custom(item: str) -> bool:
    return item.partition(" ")[0] == custom.ALL


def _choose(checks: dict[str, Check], items: Sequence[str]) -> list[str]:
    """Those of `checks` that `items` name, in the order of `checks`. Raises UnknownItem."""
    chosen: set[str] = set()
    for wanted in items:
        matching = [item for item in checks if wanted in (item, item.partition(" ")[0])]
        if not matching and _is_custom(wanted):
            # Where the folder itself cannot be read, that is the answer for every check in it; "all of none" is none.
            matching = [item for item in checks if item == custom.ALL]
        if not matching and wanted != custom.ALL:
            raise UnknownItem(wanted, checks)
        chosen.update(matching)
    return [item for item in checks if item in chosen]


async def _guarded(item: str, check: Check, end: float, deadline_s: float) -> CheckResult:
    """The result with its time; UNKNOWN where the check hangs (until `end` on the loop's clock) or is itself broken."""
    began = time.monotonic()
    result: CheckResult | None = None
    why, code = f"no answer within {deadline_s:g} s", Code.PROBE_TIMED_OUT
    try:
        with anyio.CancelScope(deadline=end):
            result = await check()
    except watched.StillHanging as error:
        why = str(error)
    except Exception as error:  # a defect of one check must neither stop the others nor pass for a fault of the node
        code, why = Code.PROBE_FAILED, f"the check itself failed (a defect): {type(error).__name__}: {error}"
    if result is None:
        result = CheckResult(
            item, Status.UNKNOWN, code, why, threshold=f"answers within {deadline_s:g} s", action=Action.INVESTIGATE
        )
    return replace(result, seconds=round(time.monotonic() - began, 6))
