"""The vendor's program that resets cards: `nvidia-smi` or `npu-smi`, in a process of its own, bounded in time."""

import os
import re
import signal
from collections.abc import Callable, Sequence

import anyio

from muster.probes.calls import watched
from muster.probes.calls.script import Script
from muster.probes.cards.accelerator import ASCEND, NVIDIA, Card
from muster.probes.cards.ascend import ascend_program
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass

_PROGRAMS = {NVIDIA: "nvidia-smi", ASCEND: "npu-smi"}
#: nvidia-smi's option that resets cards.
_RESET = "--gpu-reset"
#: Exit codes of nvidia-smi whose meaning its output may lack (its manual).
_EXITS = {
    3: "the card does not support it",
    4: "musterd lacks the rights: it must run as root, on the host or in a privileged container",
    6: "nvidia-smi does not find the card",
    9: "the driver is not loaded",
    15: "the card fell off the bus: reboot",
}
#: What of the output is kept, in bytes, and shown, in characters.
_KEPT, _SHOWN = 16 << 10, 400
#: How long a killed program may take to be gone, in seconds: one that waits for a sick card takes for ever.
LINGER_S = 5.0
#: Time limit for a change of the persistence mode, in seconds.
PERSISTENCE_S = 60.0
#: The question of npu-smi ("Are you sure you want to continue resetting?(Y/N)").
_YES = b"Y\n"
#: What a program prints where it worked, by the kind of cards: npu-smi on the line of its question, perhaps; nvidia-smi
#: for each card that it has reset. An exit code of 0 alone is no proof: it also has warnings and moves on.
_DONE = {ASCEND: re.compile(r"\bStatus\s*: *OK\b"), NVIDIA: re.compile(r"\bsuccessfully reset\b")}


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a run ended. `trouble`: a sentence without a full stop; empty: it did what it was to do. `lives`: it could
    not be ended, and is still in the driver."""

    trouble: str = ""
    lives: bool = False


def name(kind: str) -> str:
    """Of the program for cards of this kind."""
    return _PROGRAMS.get(kind, "")


def find(kind: str) -> str:
    """Where it lies; "" if there is none."""
    return ascend_program.find(name(kind)) or "" if name(kind) else ""


def named(card: Card) -> str:
    """A card as nvidia-smi takes it. A sick card may not tell its UUID any more, but stays where it is on the bus."""
    return card.bus_id or card.uuid


async def reset(cards: Sequence[Card], limit_s: float, begun: Callable[[int], None]) -> ProgramEnd:
    """Resets these cards of one kind together; of Ascend only the first is named, and its ring goes with it. `begun` is
    called in a thread with the program's pid. If cancelled, the program runs on."""
    if cards[0].kind == ASCEND:
        numbers = cards[0].numbers
        # In band (-m 1): out of band needs the board's management controller.
        args = ["set", "-t", "reset", "-i", _shown(numbers.board, cards[0].index)]
        args += ["-c", _shown(numbers.chip, 0)] if numbers.chip is not None else []
        return await _run(ASCEND, [*args, "-m", "1"], limit_s, begun, _YES)
    return await _run(NVIDIA, [_RESET, "-i", ",".join(map(named, cards))], limit_s, begun)


async def set_persistence(cards: Sequence[str], on: bool, begun: Callable[[int], None] | None = None) -> ProgramEnd:
    """Turns NVIDIA's persistence mode on or off for cards by their names (`named`). `begun` as for `reset`."""
    return await _run(NVIDIA, ["-pm", "1" if on else "0", "-i", ",".join(cards)], PERSISTENCE_S, begun)


def kill(pid: int, start: int) -> None:
    """Kills a program that an earlier daemon started, with its process group; does nothing if it has ended. To be
    repeated until it has. Blocks: it reads /proc."""
    stats = process.all_stats()
    leader = stats.get(pid)
    if leader is None or leader.start != start:
        return  # the number may be another group's by now
    for stat in stats.values():
        if stat.pgrp == pid:
            process.send(stat.pid, stat.start, signal.SIGKILL)


def _shown(number: int | None, otherwise: int) -> str:
    return str(otherwise if number is None else number)


async def _run(
    kind: str,
    args: Sequence[str],
    limit_s: float,
    begun: Callable[[int], None] | None = None,
    stdin: bytes = b"",
) -> ProgramEnd:
    path = find(kind)
    if not path:
        return ProgramEnd(f"{name(kind)} is not found in PATH")
    script = Script(path, ascend_program.environment(), tuple(args), _KEPT, stdin, begun=begun, outlives=True)

    def end() -> None:
        if limit.cancel_called:  # else the daemon ends: a reset that is cut short is worse than one that nobody follows
            script.kill()

    try:
        with anyio.move_on_after(limit_s) as limit:
            ended = await watched.call(f"{name(kind)} {args[0]}", script.run, on_cancel=end, linger_s=LINGER_S)
    except (OSError, watched.StillHanging) as error:
        return ProgramEnd(f"{path}: {error}")
    if limit.cancelled_caught:
        if script.pid:
            return ProgramEnd(f"{name(kind)} (pid {script.pid}) did not end within {limit_s:g} s, nor by SIGKILL", True)
        return ProgramEnd(f"{name(kind)} did not end within {limit_s:g} s, and was killed")
    said = ended.stdout.decode(errors="replace") + "\n" + ended.stderr.decode(errors="replace")
    proof = _DONE[kind] if kind == ASCEND or args[0] == _RESET else None
    return ProgramEnd(_trouble(kind, os.path.basename(path), said, ended.returncode, proof))


def _trouble(kind: str, program: str, said: str, code: int, proof: re.Pattern[str] | None) -> str:
    lines = "; ".join(line.strip() for line in said.splitlines() if line.strip())[:_SHOWN].rstrip(" .;")
    if code:
        meaning = f" ({_EXITS[code]})" if kind == NVIDIA and code in _EXITS else ""
        return f"{program} ended with {code}{meaning}: {lines or 'it printed nothing'}"
    if proof is not None and not proof.search(said):
        return f"{program} does not say that it worked: {lines or 'it printed nothing'}"
    return ""
