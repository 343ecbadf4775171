"""What a chaos point is: drawn from a seed and a number, and so the same each time."""

import os
import random
from dataclasses import dataclass

from tests.chaos.faults import FAULTS, RANKS

PROCESSES = ("daemon", "nursery", "supervisor")
#: Who is killed: any one, any two, one of them twice.
KILLS = (
    *((name,) for name in PROCESSES),
    *((one, two) for one in PROCESSES for two in PROCESSES if one != two),
    ("supervisor", "supervisor"),
)


def chosen() -> list[str]:
    """Names of the faults that are drawn: those of MUSTER_CHAOS_FAULTS ("log full,no cgroup"), or all."""
    named = os.environ.get("MUSTER_CHAOS_FAULTS", "")
    return [name.strip() for name in named.split(",")] if named else list(FAULTS)


@dataclass(frozen=True)
class Plan:
    """One point. Times in seconds. `frozen`: who is stopped by SIGSTOP; `lasting`: and not continued before the job is
    stopped. `stop`: when somebody stops the job: "", "meanwhile" (the fault lasts) or "after". `by_command`: by
    `muster stop`, rather than by the API."""

    fault: str
    kills: tuple[str, ...]
    frozen: str
    lasting: bool
    fault_first: bool
    stop: str
    early: bool
    delay: float
    pause: float
    hold: float
    freeze: float
    stop_after: float
    code: int
    failing: int
    stubborn: bool
    stray: bool
    rotate: bool
    pause_ms: int
    by_command: bool

    @classmethod
    def draw(cls, seed: int, number: int) -> "Plan":
        """The faults take turns, each in a random order, so that a few points have most of them."""
        names = chosen()
        turn, place = divmod(number, len(names))
        random.Random(f"turn-{seed}-{turn}").shuffle(names)
        rng = random.Random(f"pair-{seed}-{number}")
        frozen = rng.choice(PROCESSES) if rng.random() < 0.3 else ""
        lasting = bool(frozen) and rng.random() < 0.5
        chance = rng.random()
        return cls(
            fault=names[place],
            kills=() if frozen else rng.choice(KILLS),
            frozen=frozen,
            lasting=lasting,
            fault_first=rng.random() < 0.7,
            stop="meanwhile" if lasting or chance < 0.35 else "after" if chance < 0.45 else "",
            early=rng.random() < 0.15,
            delay=rng.random() * rng.choice((0.05, 0.5)),
            pause=rng.random() * rng.choice((0.02, 0.6)),
            hold=1.0 + rng.random() * 2,
            freeze=0.2 + rng.random() * 1.5,
            stop_after=rng.random() * rng.choice((0.1, 2.0)),
            code=rng.choice((0, 7, 41)),
            failing=rng.randrange(RANKS),
            stubborn=rng.random() < 0.3,
            stray=rng.random() < 0.4,
            rotate=rng.random() < 0.3,
            pause_ms=rng.choice((2, 5)),
            by_command=rng.random() < 0.15,
        )

    @property
    def blind(self) -> bool:
        """Whether nobody may be left who could tell how a rank ended."""
        struck = {*self.kills, *(self.fault.removeprefix("memory of the ") for _ in range(1))}
        return {"supervisor", "nursery"} <= struck
