"""The cards as a test, or a hand, holds them: makes the folder with the libraries, and sets what they say.

    with FakeCards.make(folder, "nvidia", 8) as cards:
        subprocess.Popen([...], env=os.environ | cards.env)
        cards[3].util = 97
        cards[3].lose()

What is set counts from the next call on, in every process that has the library loaded.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.fakes import build, models
from tests.fakes import state as fake
from tests.fakes.card import FakeCard
from tests.fakes.faults import Faults
from tests.fakes.models import MODELS
from tests.fakes.state import CONSTANTS, State

#: Name of the state in the folder, by which a library finds it beside itself.
STATE = "cards.state"
#: Types of NVML's events.
SINGLE_BIT, DOUBLE_BIT, XID = 0x1, 0x2, 0x8


class FakeCards:
    """The cards of a folder: `cards[0]`, `len(cards)`, `for card in cards`. A context manager; `close` lets the folder
    be, so that what has the library loaded goes on."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder = folder
        self.state = state
        self._faults = Faults(state, state.all)

    @classmethod
    def make(
        cls,
        folder: Path,
        kind: str = "nvidia",
        count: int = 8,
        model: str = "",
        *,
        library: bool = True,
        program: bool = True,
        without: Iterable[str] = (),
        numa_nodes: int = 2,
    ) -> "FakeCards":
        """Makes the folder, with `count` idle and healthy cards of a model (models.py; "": the first of its kind).

        `library`: with the driver's library in it, `without` these functions; `program`: with npu-smi and hccn_tool,
        of the kind "ascend". The cards are spread over NUMA nodes, and these over the CPUs of this machine.
        Raises build.NoCompiler, ValueError for a model of another kind.
        """
        chosen = MODELS[model] if model else models.default(kind)
        if chosen.kind != kind:
            raise ValueError(f"{model} is of kind {chosen.kind!r}, not {kind!r}")
        if not 0 <= count <= CONSTANTS["FAKE_CARDS"]:
            raise ValueError(f"{count} cards: at most {CONSTANTS['FAKE_CARDS']}")
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if library:
            build.install(build.library(kind), folder, without)
        cards = cls(folder, State.create(folder / STATE))
        everything = cards.state.all
        everything.generation, everything.card_count = chosen.generation, count
        versions = (b"570.86.15", b"12.570.86.15") if kind == "nvidia" else (b"24.1.rc3", b"24.1.rc3")
        everything.driver_version, everything.library_version = versions
        mine = sorted(os.sched_getaffinity(0))
        for card in cards:
            card.become(chosen)
            node = card.place * numa_nodes // count
            share = mine[len(mine) * node // numa_nodes : len(mine) * (node + 1) // numa_nodes]
            card.numa_node, card.cpus = node, share or mine
        if kind == "ascend" and program:
            cards.install_programs()
        return cards

    @classmethod
    def for_test(cls, folder: Path, kind: str = "nvidia", count: int = 8, model: str = "", **more: Any) -> "FakeCards":
        """As `make`; where nothing can be built the test is skipped."""
        try:
            return cls.make(folder, kind, count, model, **more)
        except build.NoCompiler as error:
            import pytest

            pytest.skip(str(error))

    @classmethod
    def open(cls, folder: Path) -> "FakeCards":
        """Those that another process made. Raises FileNotFoundError, and ValueError for those of another version."""
        folder = folder.absolute()
        return cls(folder, State(folder / STATE))

    def close(self) -> None:
        """Must not be used any more."""
        self.state.close()

    def __enter__(self) -> "FakeCards":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self.state.all.card_count)

    def __getitem__(self, place: int) -> FakeCard:
        if not 0 <= place < len(self):
            raise IndexError(f"no card {place}: there are {len(self)}")
        return FakeCard(self, place)

    def __iter__(self) -> Iterator[FakeCard]:
        return (self[place] for place in range(len(self)))

    @property
    def kind(self) -> str:
        """ "nvidia" or "ascend"; by the first card."""
        return MODELS[self[0].model].kind

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to find the cards: variables to put over its own."""
        env = {"LD_LIBRARY_PATH": str(self.folder), "MUSTER_FAKE_CARDS": str(self.folder / STATE)}
        if before := os.environ.get("LD_LIBRARY_PATH"):
            env["LD_LIBRARY_PATH"] += f":{before}"
        if (self.folder / "bin").is_dir():
            env["PATH"] = f"{self.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        return env

    # --- the whole driver ---

    def unload(self, code: int = 9) -> None:
        """The kernel module goes: initializing gives `code` (9: not loaded, 18: mismatch, or DCMI's), and libraries
        that are open fail until they are closed and opened anew."""
        self.state.all.init_code = code
        self.state.all.epoch += 1
        self.state.wake()

    def load(self) -> None:
        """The kernel module is back. What was open from before still has to be opened anew."""
        self.unload(0)

    def fail(self, function: str, code: int) -> None:
        """The function ("*": all) returns the code, for whatever card, until `clear`."""
        self.check_name(function)
        self._faults.set(function, code=code)

    def hang(self, function: str = "*") -> None:
        """Calls of the function ("*": all) wait until `clear`."""
        self.check_name(function)
        self._faults.set(function, hang=True)

    def clear(self, function: str | None = None) -> None:
        """Ends what `fail` and `hang` set for all cards, of one function or of all; of single cards: FakeCard.clear."""
        self._faults.clear(function)

    def waits_in(self) -> list[str]:
        """Functions that all cards hang in, in which calls wait now; of single cards: FakeCard.waits_in."""
        return self._faults.waiting()

    @property
    def calls(self) -> int:
        """How many calls there were, of all processes."""
        return int(self.state.all.calls)

    def event(self, place: int, kind: int, data: int, *, severity: int = 0, assertion: int = 2) -> None:
        """Reports an event of a card to a caller that waits for it now or soon: NVML's type and data."""
        with self.state.writing():
            everything = self.state.all
            event = everything.events[everything.event_count % CONSTANTS["FAKE_EVENTS"]]
            event.at, event.type, event.data, event.card = fake.now_s(), kind, data, place
            event.severity, event.assertion = severity, assertion
            everything.event_count += 1

    def xid(self, place: int, number: int) -> None:
        """Reports an Xid of a card. The kernel's log has no line of it."""
        self.event(place, XID, number)

    def restore(self) -> None:
        """All cards as they were made, the driver loaded, no faults."""
        self.clear()
        self.state.all.init_code = 0
        for card in self:
            card.restore()

    # --- inside ---

    def check_name(self, function: str) -> None:
        """A fault of a function that the library does not have would never be met."""
        library = self.folder / build.SOURCES[self.kind][1]
        known = function in ("*", "npu-smi", "hccn_tool", "nvidia-smi") or function.startswith("field:")
        if known or not library.exists():
            return
        if b"\0" + function.encode() + b"\0" not in library.read_bytes():
            raise ValueError(f"{library} has no function {function!r}")

    def install_programs(self) -> None:
        """npu-smi and hccn_tool."""
        for name in ("npu-smi", "hccn_tool"):
            self._install(name, f"tests.fakes.npu_smi {name}")

    def install_nvidia_smi(self) -> None:
        """nvidia-smi, as far as it resets cards."""
        self._install("nvidia-smi", "tests.fakes.nvidia_smi")

    @property
    def program_calls(self) -> list[str]:
        """The command lines of nvidia-smi so far."""
        log = self.folder / "programs.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def resets(self) -> int:
        """How often a program reset cards."""
        return int(self.state.all.resets)

    def _install(self, name: str, module: str) -> None:
        (self.folder / "bin").mkdir(exist_ok=True)
        root = Path(__file__).parents[2]
        program = self.folder / "bin" / name
        program.write_text(
            "#!/bin/sh\n"
            f"export PYTHONPATH='{root}' MUSTER_FAKE_CARDS='{self.folder / STATE}'\n"
            f"exec '{sys.executable}' -m {module} \"$@\"\n"
        )
        program.chmod(0o755)
