"""Do the names of all nodes of a job resolve here?"""

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio

from muster.probes.calls import watched
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.kernel.dataclass import dataclass

ITEM = "dns"
#: Names that are asked for at the same time; glibc's resolver keeps a socket for each.
PARALLEL = 32
#: More names than any job has nodes, and more bytes than any list of them: beyond that it is not a list of names.
MAX_NAMES = 4096
MAX_FILE = 1 << 20
#: How often a name is asked for when the server could not answer ("try again"), and the pause between, in seconds.
ATTEMPTS = 2
PAUSE_S = 0.5

Resolve = Callable[[str], None]


def resolve(name: str) -> None:
    """Asks the host's resolver (files, DNS, whatever nsswitch.conf says). Raises socket.gaierror or UnicodeError."""
    socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)


@dataclass(frozen=True, slots=True)
class _Trouble:
    name: str
    status: Status
    code: Code
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


async def check(*, hosts: tuple[str, ...], folder: str, deadline_s: float, resolve: Resolve = resolve) -> CheckResult:
    """Resolves `hosts` and every name of the `.host` files in `folder`, side by side.

    A name without an answer after `deadline_s` (counted for all together) is UNKNOWN, and so is a file that cannot be
    read; neither hides a name that is known not to resolve.
    """
    names: dict[str, None] = {}
    answers: dict[str, _Trouble | None] = {}
    troubles: list[_Trouble] = []
    limiter = anyio.CapacityLimiter(PARALLEL)
    reading = bool(folder)
    with anyio.move_on_after(deadline_s):
        async with anyio.create_task_group() as group:

            def ask(more: Iterable[str]) -> None:
                for name in more:
                    if name not in names:
                        names[name] = None
                        if len(names) <= MAX_NAMES:
                            group.start_soon(_ask, name, resolve, limiter, answers)

            ask(hosts)
            if folder:
                try:
                    more, unreadable = await watched.call(f"read {folder}", lambda: read_folder(folder))
                except (OSError, watched.StillHanging) as error:
                    more, unreadable = [], [_unreadable(folder, str(error))]
                reading = False
                troubles += unreadable
                ask(more)
    if reading:
        troubles.append(_late(folder, f"could not be read within {deadline_s:g} s"))
    if len(names) > MAX_NAMES:
        troubles.append(_unreadable(folder or ITEM, f"{len(names)} names, only the first {MAX_NAMES} are asked for"))
    late = f"no answer within {deadline_s:g} s"
    for name in list(names)[:MAX_NAMES]:
        trouble = answers.get(name, _late(name, late))
        if trouble is not None:
            troubles.append(trouble)
    return _judge(len(names), troubles, folder)


async def _ask(
    name: str, resolve: Resolve, limiter: anyio.CapacityLimiter, answers: dict[str, _Trouble | None]
) -> None:
    """Writes what is wrong with a name, or None, to `answers`; the first answer counts should the next be late."""
    async with limiter:
        for attempt in range(ATTEMPTS):
            if attempt:
                await anyio.sleep(PAUSE_S)
            answers[name] = trouble = await _once(name, resolve)
            if trouble is None or trouble.code is not Code.DNS_SERVER_FAILED:
                return


async def _once(name: str, resolve: Resolve) -> _Trouble | None:
    try:
        await watched.call(f"resolve {name}", lambda: resolve(name))
    except UnicodeError:
        return _Trouble(name, Status.CRITICAL, Code.DNS_NAME_INVALID, "not a host name")
    except watched.StillHanging as error:
        return _late(name, str(error))
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            return _Trouble(name, Status.CRITICAL, Code.DNS_SERVER_FAILED, "the name server does not answer")
        if error.errno in (socket.EAI_MEMORY, socket.EAI_SYSTEM):
            return _Trouble(name, Status.UNKNOWN, Code.DNS_RESOLVER_ERROR, error.strerror or str(error))
        return _Trouble(name, Status.CRITICAL, Code.DNS_NAME_UNRESOLVED, "does not resolve")
    except OSError as error:  # no descriptor left, a damaged nsswitch module
        return _Trouble(name, Status.UNKNOWN, Code.DNS_RESOLVER_ERROR, error.strerror or str(error))
    return None


def _late(name: str, text: str) -> _Trouble:
    return _Trouble(name, Status.UNKNOWN, Code.PROBE_TIMED_OUT, text)


def _judge(count: int, troubles: list[_Trouble], folder: str) -> CheckResult:
    threshold = "every name resolves"
    if not troubles:
        if count == 0:
            where = f"no names: one node, and no .host file in {folder}" if folder else "no names: one node"
            return CheckResult(ITEM, Status.NOT_APPLICABLE, Code.DNS_NO_NAMES, where)
        good = f"{count} of {count} names resolve"
        return CheckResult(ITEM, Status.OK, Code.DNS_OK, good, good, threshold)
    # The certain before the uncertain, then by name: the same state of a node gives the same words.
    troubles.sort(key=lambda t: (t.status is not Status.CRITICAL, t.name))
    first = troubles[0]
    shown = "; ".join(map(str, troubles[:5]))
    more = f"; and {len(troubles) - 5} more" if len(troubles) > 5 else ""
    bad = sum(t.status is Status.CRITICAL for t in troubles)
    open_ = len(troubles) - bad
    return CheckResult(
        ITEM,
        first.status,
        first.code,
        shown + more,
        f"{count} names, {bad} do not resolve, {open_} are unknown",
        threshold,
        Action.DRAIN if first.status is Status.CRITICAL else Action.INVESTIGATE,
    )


def read_folder(folder: str) -> tuple[list[str], list[_Trouble]]:
    """The names in the `.host` files of `folder`, and what could not be read. A folder that does not exist has none.

    A file has one name a line, as the volcano scheduler writes them; what follows the first word, and lines
    that begin with `#`, are left out.
    """
    try:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".host"))
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError as error:
        return [], [_unreadable(folder, error.strerror or str(error))]
    names: list[str] = []
    troubles: list[_Trouble] = []
    for file in files:
        path = Path(folder) / file
        try:
            names += _read_names(path)
        except OSError as error:
            troubles.append(_unreadable(str(path), error.strerror or str(error)))
        except ValueError as error:
            troubles.append(_unreadable(str(path), str(error)))
    return names, troubles


def _read_names(path: Path) -> list[str]:
    # Not blocking: a FIFO of that name must not hold the check up.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as stream:
        data = stream.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ValueError(f"more than {MAX_FILE} bytes, not a list of names")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"not text (byte {error.start})") from None
    return [words[0] for line in lines if (words := line.split()) and not words[0].startswith("#")]


def _unreadable(path: str, text: str) -> _Trouble:
    return _Trouble(path, Status.UNKNOWN, Code.DNS_HOST_FILE_UNREADABLE, f"cannot be read: {text}")
