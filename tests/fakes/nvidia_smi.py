"""`nvidia-smi` of the fake cards, as far as muster uses it: `--gpu-reset` and `-pm`, with the real one's words.

A card that somebody uses is not reset (NVSentinel's issue 1690): while a process has NVML open, while a process is on
the card, or while persistence mode keeps it open. A fault of the function "nvidia-smi" makes the program wait, or end
with that exit code. Its arguments are written to `programs.log` beside the state.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from tests.fakes import state as fake
from tests.fakes.npu_smi import obey
from tests.fakes.state import State

_LOST, _RESET_REQUIRED = 15, 16
_IN_USE = (
    "1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics"
    " application such as an X server, or a monitoring application such as another instance of nvidia-smi)."
)


def note(path: Path, arguments: list[str]) -> None:
    """Adds a line to the log of programs."""
    with open(path.with_name("programs.log"), "a") as log:
        log.write(" ".join(arguments) + "\n")


def _bus(card: Any) -> str:
    return f"0000{card.bus_id.decode().upper()}"


def _chosen(state: State, names: str) -> list[Any]:
    cards = [card for card in state.all.cards[: state.all.card_count] if card.present]
    found = []
    for name in names.split(","):
        for index, card in enumerate(cards):
            if name in (str(index), card.uuid.decode(), card.bus_id.decode()):
                found.append(card)
    return found


def reset(state: State, cards: list[Any]) -> int:
    """Resets these cards, or none of them; prints what the real one does, and gives its exit code."""
    if any(card.lost == _LOST for card in cards):
        print("Unable to determine the device handle for GPU: GPU is lost.  Reboot the system to recover this GPU")
        return _LOST
    used = [card for card in cards if state.all.sessions or card.persistence or fake.processes(card)]
    for card in used:
        print(f"GPU {_bus(card)}: In use by another client")
    if used:
        print(_IN_USE)
        return 255
    for card in cards:
        card.lost = card.recovery_action = card.remapped_pending = card.sram_uncorrected = card.dram_uncorrected = 0
        print(f"GPU {_bus(card)} was successfully reset.")
    state.all.resets += 1
    print("All done.")
    return 0


def main(arguments: list[str]) -> int:
    """Gives the exit code."""
    path = Path(os.environ["MUSTER_FAKE_CARDS"])
    note(path, ["nvidia-smi", *arguments])
    parser = argparse.ArgumentParser("nvidia-smi", add_help=False)
    parser.add_argument("--gpu-reset", "-r", action="store_true")
    parser.add_argument("-pm", type=int, choices=[0, 1])
    parser.add_argument("-i", required=True)
    options = parser.parse_args(arguments)
    state = State(path)
    if code := obey(state.all, "nvidia-smi"):
        print("Failed to initialize NVML: Driver Not Loaded" if code == 9 else f"ended by a fault: {code}")
        return code
    cards = _chosen(state, options.i)
    if not cards:
        print("No devices were found")
        return 6
    if options.gpu_reset:
        return reset(state, cards)
    for card in cards:
        card.persistence = options.pm
        print(f"{'Enabled' if options.pm else 'Disabled'} persistence mode for GPU {_bus(card)}.")
    print("All done.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
