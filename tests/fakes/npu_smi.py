"""`npu-smi` and `hccn_tool` of the fake cards: print what the real ones do, in the layouts of 910B, 910_93 and 950.

Found in PATH as programs of these names, which FakeCards.make puts there. A fault of the function "npu-smi" or
"hccn_tool" makes the program wait, or end with that exit code.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fakes import state as fake
from tests.fakes.models import MODELS, Model
from tests.fakes.state import State

_HEALTH = {0: "OK", 1: "Warning", 2: "Alarm", 3: "Critical"}
_MIB = 1 << 20
_LINE = "+---------------------------+---------------+----------------------------------------------------+"
_HEAD = "+===========================+===============+====================================================+"
_PLAIN = "+------------------------------------------------------------------------------------------------+"
#: How often a program that is to hang looks whether it still is, in seconds.
_LOOK_S = 0.01


class Node:
    """The chips of a state, as the programs see them."""

    def __init__(self, state: State) -> None:
        self.all = state.all
        self.chips = [card for card in self.all.cards[: self.all.card_count] if card.present]
        self.model: Model | None = MODELS[self.chips[0].model.decode()] if self.chips else None
        self.version = self.all.driver_version.decode()

    def boards(self) -> dict[int, list[Any]]:
        """Chips by the number of their board."""
        boards: dict[int, list[Any]] = {}
        for card in self.chips:
            boards.setdefault(card.board, []).append(card)
        return boards


def info(node: Node) -> str:
    """`npu-smi info`: a table of the chips and one of their processes. Memory in MB of 1024 x 1024 bytes."""
    model = node.model
    if model is None:
        return "There is no NPU card on this server.\n"
    return (
        "\n".join([*(_anew(node) if model.generation == 2 else _chips(node, model)), *_processes(node, model)]) + "\n"
    )


def _chips(node: Node, model: Model) -> Iterator[str]:
    yield _PLAIN
    yield f"| npu-smi {node.version:<24} Version: {node.version:<52} |"
    yield _LINE
    yield "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"
    place = "Chip  Phy-ID" if model.chips > 1 else "Chip"
    yield f"| {place:<26}| Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |"
    yield _HEAD
    name = model.name if model.chips > 1 else model.name.removeprefix("Ascend")
    for chips in node.boards().values():
        for i, card in enumerate(chips):
            if i:
                yield _PLAIN
            power, degrees, util, used, total = _figures(card)
            none = "-" if card.lost else "0"
            yield (f"| {card.board:<6}{name:<20}| {_health(card):<14}| {power:<12}{degrees:<18}{'0':<5}/ {'0':<14}|")
            seat = f"{card.chip:<6}{card.minor}" if model.chips > 1 else f"{card.chip}"
            yield f"| {seat:<26}| {_bus(card):<14}| {util:<12}{none:<5}/ {none:<11}{used:<5}/ {total:<14}|"
        yield _HEAD


def _anew(node: Node) -> Iterator[str]:
    line = "+--------+------------------+---------------+-----------------------------------------------------+"
    yield "+-------------------------------------------------------------------------------------------------+"
    yield f"| npu-smi {node.version:<40} Version: {node.version:<37} |"
    yield line
    yield "| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |"
    yield "|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |"
    yield line.replace("-", "=")
    for card in node.chips:
        power, degrees, util, used, total = _figures(card)
        none = "-" if card.lost else "0"
        name = card.model.decode()
        yield (f"| {card.board:<7}| {name:<17}| {_health(card):<14}| {power:<12}{degrees:<18}{'0':<6}/ {'0':<14}|")
        yield f"|        |                  | {_bus(card):<14}| {util:<12}{none:<5}/ {none:<11}{used:<6}/ {total:<14}|"
        yield line.replace("-", "=")


def _processes(node: Node, model: Model) -> Iterator[str]:
    yield _LINE
    yield "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
    yield _HEAD
    for board, chips in node.boards().items():
        found = [(card.chip, process) for card in chips for process in fake.processes(card)]
        for chip, process in found:
            seat = f"{board:<8}{chip}" if model.generation == 1 else f"{board}"
            yield f"| {seat:<26}| {process.pid:<14}| {_name(process.pid):<25}| {process.bytes // _MIB:<24}|"
        if not found:
            yield f"| {f'No running processes found in NPU {board}':<95}|"
        yield _HEAD


def _figures(card: Any) -> tuple[str, str, str, str, str]:
    """Power (of the board: its first chip tells it), temperature, utilization, memory used and in all."""
    if card.lost:
        return ("-",) * 5
    held, now = fake.moving(card), fake.now_s()
    return (
        f"{fake.value_at(held.power_w, now):.1f}" if card.chip == 0 else "-",
        f"{fake.value_at(held.temp_c, now):.0f}",
        "0" if card.npu_profiled else f"{fake.value_at(held.util, now):.0f}",
        f"{_used(card)}",
        f"{card.mem_total // _MIB}",
    )


def _used(card: Any) -> int:
    return int(-(-(fake.memory_used(card) + card.mem_reserved) // _MIB))


def _health(card: Any) -> str:
    return "UNKNOWN" if card.lost else _HEALTH.get(card.npu_health, "UNKNOWN")


def _bus(card: Any) -> str:
    return str(card.bus_id.decode().upper())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()[:24]
    except OSError:
        return ""


def mapping(node: Node) -> str:
    """`npu-smi info -m`: the numbers of each chip. Boards of generation 1 have a management chip at their end."""
    if node.model is None:
        return "There is no NPU card on this server.\n"
    pairs, anew = node.model.chips > 1, node.model.generation == 2
    second = "Slot ID" if anew else "Chip ID"
    third = "Chip ID" if anew else "Chip Logic ID"
    names = ["NPU ID", second, third, *(["Chip Phy-ID"] if pairs or anew else []), "Chip Name"]
    rows = [names]
    for board, chips in node.boards().items():
        for card in chips:
            name = card.model.decode().replace("Ascend910B", "Ascend 910B")
            numbers = [board, board + 1, 0] if anew else [board, card.chip, node.chips.index(card)]
            rows.append([*map(str, numbers), *([str(card.minor)] if pairs or anew else []), name])
        if not anew:
            rows.append([str(board), str(len(chips)), "-", *(["-"] if pairs else []), "Mcu"])
    return "".join("\t" + "".join(f"{cell:<31}" for cell in row).rstrip() + "\n" for row in rows)


def usages(node: Node, board: int) -> str:
    """`npu-smi info -t usages -i BOARD`."""
    return _blocks(node, board, _usages_of)


def _usages_of(card: Any) -> dict[str, Any]:
    held, now = fake.moving(card), fake.now_s()
    util = round(fake.value_at(held.util, now))
    return {
        "DDR Capacity(MB)": 0,
        "DDR Usage Rate(%)": 0,
        "HBM Capacity(MB)": card.mem_total // _MIB,
        "HBM Usage Rate(%)": round(100 * _used(card) * _MIB / card.mem_total),
        "Aicore Usage Rate(%)": 0 if card.npu_profiled else util,
        "Aivector Usage Rate(%)": 0 if card.npu_profiled else card.vector,
        "Aicpu Usage Rate(%)": card.aicpu,
        "Ctrlcpu Usage Rate(%)": card.ctrlcpu,
        "HBM Bandwidth Usage Rate(%)": round(fake.value_at(held.mem_util, now)),
        "NPU Utilization(%)": util if card.overall < 0 else card.overall,
        "Chip ID": card.chip,
    }


def common(node: Node, board: int) -> str:
    """`npu-smi info -t common -i BOARD`."""
    return _blocks(node, board, _common_of)


def _common_of(card: Any) -> dict[str, Any]:
    held, now = fake.moving(card), fake.now_s()
    return {
        "Chip ID": card.chip,
        "Memory Usage Rate(%)": 0,
        "HBM Usage Rate(%)": round(100 * _used(card) * _MIB / card.mem_total),
        "Aicore Usage Rate(%)": round(fake.value_at(held.util, now)),
        "Aicore Freq(MHZ)": card.sm_clock_max_mhz,
        "Aicore curFreq(MHZ)": card.sm_clock_mhz,
        "Temperature(C)": round(fake.value_at(held.temp_c, now)),
    }


def _blocks(node: Node, board: int, of: Any) -> str:
    chips = node.boards().get(board)
    if not chips:
        raise ValueError(f"parameter error: there is no NPU {board}")
    blocks = [{"NPU ID": board, "Chip Count": len(chips)}, *(of(card) for card in chips if not card.lost)]
    return "\n".join("".join(f"\t{name:<30} : {value}\n" for name, value in block.items()) for block in blocks)


def hccn_tool(node: Node, number: int, what: str) -> str:
    """`hccn_tool -i NUMBER -link -g` and `-net_health -g`."""
    card = next((card for card in node.chips if card.minor == number), None)
    if card is None or card.lost:
        raise ValueError(f"Cmd execute failed! device {number} is not there")
    if what == "link":
        return f"link status: {'UP' if card.npu_link_up else 'DOWN'}\n"
    return f"net health status: {'Success' if card.npu_network in (0, 6) else 'Detect failed'}\n"


def reset(node: Node, board: int, chip: int) -> str:
    """`npu-smi set -t reset`: asks, and resets the chip with all others of its node, as the boards of the 910B do."""
    answer = input("Are you sure you want to continue resetting?(Y/N)")
    if answer.strip().upper() != "Y":
        raise ValueError("The reset was cancelled.")
    if not any((card.board, card.chip) == (board, chip) for card in node.chips):
        raise ValueError(
            "        Status                         : Fail\n        Message                        : no chip"
        )
    for card in node.chips:
        card.npu_health = card.error_count = card.lost = 0
        card.npu_boot = 16
    node.all.resets += 1
    return (
        "        Status                         : OK\n        Message                        : Reset card"
        " successfully.\n"
    )


def obey(everything: Any, program: str) -> int:
    """The exit code that a fault of the program sets, having waited where one says so."""
    fault = next((it for it in everything.faults if it.used and it.function.decode() in ("*", program)), None)
    if fault is None:
        return 0
    if fault.hang:
        fault.waiting += 1
        while fault.used and fault.hang:
            time.sleep(_LOOK_S)
        fault.waiting -= 1
    return int(fault.code) if fault.used else 0


def main(arguments: list[str]) -> int:
    """`arguments` begin with the program's name. Gives its exit code."""
    program, *rest = arguments
    parser = argparse.ArgumentParser(program, add_help=False)
    if program == "hccn_tool":
        parser.add_argument("-i", type=int, required=True)
        for option in ("-link", "-net_health", "-g"):
            parser.add_argument(option, action="store_true")
    else:
        parser.add_argument("verb", choices=["info", "set"])
        parser.add_argument("-m", nargs="?", const=0, type=int)
        parser.add_argument("-t", choices=["usages", "common", "reset"])
        parser.add_argument("-i", type=int, default=0)
        parser.add_argument("-c", type=int, default=0)
    options = parser.parse_args(rest)
    state = State(Path(os.environ["MUSTER_FAKE_CARDS"]))
    node = Node(state)
    if code := obey(node.all, program):
        print(f"{program}: dcmi_init failed, ret is {code}")
        return code & 0xFF
    if node.all.init_code:
        print(f"dcmi module initialize failed. ret is {node.all.init_code}")
        return 255
    try:
        if program == "hccn_tool":
            text = hccn_tool(node, options.i, "link" if options.link else "net_health")
        elif options.verb == "set":
            text = reset(node, options.i, options.c)
        elif options.m is not None:
            text = mapping(node)
        elif options.t:
            text = usages(node, options.i) if options.t == "usages" else common(node, options.i)
        else:
            text = info(node)
    except ValueError as error:
        print(error)
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
