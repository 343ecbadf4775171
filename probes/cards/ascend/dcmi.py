"""Huawei's libdcmi.so through ctypes: its calls, in its two dialects.

Facts of dcmi_interface_api.h of the driver (2025). The older dialect names a chip by its board and its place there; the
newer one (dcmiv2_*, Ascend 950) by its logical number. A library knows both and refuses the one that is not its
chip's with -8255. All calls block; ctypes lets go of the interpreter meanwhile.
"""

import ctypes
import queue
import threading
from ctypes import POINTER, byref, c_char, c_int, c_uint
from dataclasses import field
from functools import partial

from muster.probes.calls.call_threads import Answer, AskEach, CallFailure, Late, in_turn
from muster.probes.cards.accelerator import DriverError, Trouble, no_answer
from muster.probes.cards.ascend.ascend_numbers import ChipIdentity, Seat
from muster.probes.cards.ascend.dcmi_codes import UNSUPPORTED, error
from muster.probes.cards.ascend.dcmi_layouts import DcmiEvent, DcmiProcess, EventFilter, Label, words
from muster.probes.kernel.dataclass import dataclass

#: The health that dcmi_get_device_health reports for a missing chip.
_ABSENT = 0xFFFFFFFF
#: Cards that a system has at most, and chips on one board.
_CARDS, _CHIPS = 64, 16
#: Error codes that one chip tells at most, and processes: the library is given no length and writes at most 32.
_ERRORS, _PROCESSES = 128, 64
_TEXT = 256
#: Faults that wait for somebody to read them.
_FAULTS = 1024
#: What an event asserts: that the chip has recovered, or that it has the fault from now on; 2: it happened once.
_RECOVERED, _CAME = 0, 1
_SEVERITIES = {0: "warning", 1: "minor", 2: "major", 3: "critical"}

#: Function by what it tells: in the older dialect, and in the newer one ("" where that has none).
_FUNCTIONS = {
    "driver_version": ("dcmi_get_driver_version", "dcmiv2_get_driver_version"),
    "type": ("dcmi_get_device_type", "dcmiv2_get_device_type"),
    "chip": ("dcmi_get_device_chip_info_v2", "dcmiv2_get_device_chip_info"),
    "pcie": ("dcmi_get_device_pcie_info_v2", "dcmiv2_get_device_pcie_info"),
    "die": ("dcmi_get_device_die_v2", "dcmiv2_get_device_die_id"),
    "affinity": ("dcmi_get_affinity_cpu_info_by_device_id", "dcmiv2_get_affinity_cpu_info_by_dev_id"),
    "topology": ("dcmi_get_topo_info_by_device_id", "dcmiv2_get_topo_info_by_device_id"),
    "health": ("dcmi_get_device_health", "dcmiv2_get_device_health"),
    "errors": ("dcmi_get_device_errorcode_v2", "dcmiv2_get_device_error_code_list"),
    "error_text": ("dcmi_get_device_errorcode_string", "dcmiv2_get_device_error_info"),
    "utilization": ("dcmi_get_device_utilization_rate", "dcmiv2_get_device_utilization_rate"),
    "temperature": ("dcmi_get_device_temperature", "dcmiv2_get_device_temperature"),
    "power": ("dcmi_get_device_power_info", "dcmiv2_get_device_power_info"),
    "frequency": ("dcmi_get_device_frequency", "dcmiv2_get_device_frequency"),
    "hbm": ("dcmi_get_device_hbm_info", "dcmiv2_get_device_hbm_info"),
    "voltage": ("dcmi_get_device_voltage", "dcmiv2_get_device_voltage"),
    "ecc": ("dcmi_get_device_ecc_info", "dcmiv2_get_device_ecc_info"),
    "network": ("dcmi_get_device_network_health", "dcmiv2_get_device_network_health"),
    "port": ("dcmi_get_netdev_pkt_stats_info", "dcmiv2_get_netdev_pkt_stats_info"),
    "ub": ("", "dcmiv2_get_ub_port_link_status"),
    "processes": ("dcmi_get_device_resource_info", "dcmiv2_get_device_proc_mem_info"),
    "brother": ("dcmi_get_netdev_brother_device", ""),
    "boot": ("dcmi_get_device_boot_status", "dcmiv2_get_device_boot_status"),
}


@dataclass(frozen=True, slots=True)
class ChipFault:
    """An error that came up. `logical` is the chip's logical number; `over`, `stays`: as of a CardEvent."""

    code: int
    logical: int
    text: str = ""
    over: bool = False
    stays: bool = False


@dataclass(slots=True)
class Listing:
    """The chips with their numbers, and those that do not tell these, with why."""

    found: list[ChipIdentity] = field(default_factory=list)
    lost: dict[Seat, DriverError] = field(default_factory=dict)


_lock = threading.Lock()
#: Held while the library is asked to report: should that hang, who lists the chips does not.
_subscribing = threading.Lock()
#: Libraries that were initialized (once per process: there is no way back), with their dialect.
_ready: dict[int, bool] = {}
_CALLBACK = ctypes.CFUNCTYPE(None, POINTER(DcmiEvent))
#: What a library reports; and the functions that its thread calls, which must live as long as the process.
_reported: dict[int, "queue.SimpleQueue[ChipFault]"] = {}
_callbacks: dict[int, object] = {}


class Dcmi:
    """A library, spoken to in the dialect of its chips. Threads may call side by side."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handle: int = library._handle
        self.second = False
        with _lock:
            self.reported = _reported.setdefault(self._handle, queue.SimpleQueue())

    def start(self, ask: AskEach = in_turn) -> Listing:
        """Initializes the library where that was not done before, finds the dialect and lists the chips. What a board
        or a chip itself must answer is asked with `ask`: one that does not is `lost` with HANG.

        Raises DriverError, of the driver.
        """
        with _lock:
            known = _ready.get(self._handle)
            if known is not None:
                self.second = known
                try:
                    return self._list(ask)
                except DriverError:
                    pass  # a driver that was unloaded since: once more from the beginning
            return self._begin(ask)

    def _begin(self, ask: AskEach) -> Listing:
        problems: list[DriverError] = []
        empty: list[bool] = []
        for second in (False, True):
            self.second = second
            try:
                self._call("dcmiv2_init" if second else "dcmi_init")
                listing = self._list(ask)
            except DriverError as trouble:
                problems.append(trouble)
                continue
            if listing.found or listing.lost:
                _ready[self._handle] = second
                return listing
            empty.append(second)  # the chips may be of the other dialect
        self.second = empty[0] if empty else _ready.get(self._handle, False)
        if empty:
            return Listing()
        # That a dialect is not the chips' own says nothing of the driver.
        worst = next((one for one in problems if one.trouble is not Trouble.NOT_TOLD), problems[0])
        raise DriverError(worst.trouble, str(worst), worst.number, of_driver=True)

    def answers(self) -> None:
        """Raises DriverError, of the driver, where not even the cards can be listed."""
        count, cards = c_int(), (c_int * _CARDS)()
        try:
            if self.second:
                self._call("dcmiv2_get_device_list", cards, byref(count), _CARDS)
            else:
                self._call("dcmi_get_card_list", byref(count), cards, _CARDS)
        except DriverError as trouble:
            raise DriverError(trouble.trouble, str(trouble), trouble.number, of_driver=True) from None

    def _list(self, ask: AskEach) -> Listing:
        listing = Listing()
        seats = self._seats_second() if self.second else self._seats_first(ask, listing)
        told = ask({("chip", *seat): partial(self.told, seat) for seat in seats})
        for seat, outcome in zip(seats, told.values(), strict=True):
            if not isinstance(outcome, Answer):
                listing.lost[seat] = _lost(outcome, f"chip {'/'.join(map(str, seat))}")
            elif outcome.value is not None:
                listing.found.append(outcome.value)
        return listing

    def _seats_first(self, ask: AskEach, listing: Listing) -> list[Seat]:
        count, boards = c_int(), (c_int * _CARDS)()
        self._call("dcmi_get_card_list", byref(count), boards, _CARDS)
        chips = ask({("board", board): partial(self._chips, board) for board in boards[: _clamp(count.value, _CARDS)]})
        seats: list[Seat] = []
        for (_, board), outcome in chips.items():
            if isinstance(outcome, Answer):
                seats += [(board, chip) for chip in range(outcome.value)]
            else:
                listing.lost[(board, 0)] = _lost(outcome, f"board {board}")
        return seats

    def _seats_second(self) -> list[Seat]:
        count, chips = c_int(), (c_int * _CARDS)()
        self._call("dcmiv2_get_device_list", chips, byref(count), _CARDS)
        return [(chip,) for chip in chips[: _clamp(count.value, _CARDS)]]

    def _chips(self, board: int) -> int:
        """How many places for chips a board has."""
        chips = c_int()
        self._call("dcmi_get_device_num_in_card", board, byref(chips))
        return _clamp(chips.value, _CHIPS)

    def told(self, seat: Seat) -> ChipIdentity | None:
        """The chip's numbers; None of what is no card: a board's management chip, or its processor. Raises
        DriverError."""
        try:
            if self.ask_int("type", seat):
                return None
        except DriverError:
            pass
        return self._numbers(seat)

    def _numbers(self, seat: Seat) -> ChipIdentity:
        """The way back, from the physical number to the logical one, is not to be trusted in a container."""
        logical, number = c_int(seat[0]), c_uint()
        if self.second:
            self._call("dcmiv2_get_chip_phy_id_by_dev_id", *seat, byref(number))
            return ChipIdentity(seat, logical.value, number.value)
        self._call("dcmi_get_device_logic_id", byref(logical), *seat)
        try:
            self._call("dcmi_get_device_phyid_from_logicid", c_uint(logical.value), byref(number))
        except DriverError as trouble:
            if trouble.trouble is not Trouble.NOT_TOLD:
                raise
            return ChipIdentity(seat, logical.value)
        return ChipIdentity(seat, logical.value, number.value)

    def _call(self, function: str, *args: object) -> None:
        try:
            call = getattr(self._library, function)
        except AttributeError:
            raise DriverError(Trouble.NOT_TOLD, f"libdcmi.so lacks {function}: it is of another version") from None
        if code := call(*args):
            raise error(function, code)

    def ask(self, what: str, seat: Seat, *args: object) -> None:
        """Calls the function that tells `what`; it writes to what `args` point to. Raises DriverError."""
        function = _FUNCTIONS[what][self.second]
        if not function:
            raise DriverError(Trouble.NOT_TOLD, f"libdcmi.so does not report {what} for this kind of chip", UNSUPPORTED)
        self._call(function, *seat, *args)

    def ask_int(self, what: str, seat: Seat, *args: object) -> int:
        """The number that the function writes."""
        value = c_int()
        self.ask(what, seat, *args, byref(value))
        return value.value

    def driver_version(self) -> str:
        """Of the driver, "" where it is not told."""
        text = (c_char * _TEXT)()
        try:
            self.ask("driver_version", (), text, c_uint(_TEXT - 1))
        except DriverError:
            return ""
        return words(text.value)

    def label(self, seat: Seat, into: Label) -> None:
        """The electronic label: the board's in the older dialect, the chip's in the newer one."""
        if self.second:
            self._call("dcmiv2_get_device_elabel_info", *seat, byref(into))
        else:
            self._call("dcmi_get_card_elabel_v2", seat[0], byref(into))

    def health(self, seat: Seat) -> int:
        """0 OK, 1 minor, 2 major, 3 critical alarm. Raises DriverError LOST where the driver says that it is absent."""
        value = self.ask_int("health", seat) & 0xFFFFFFFF
        if value == _ABSENT:
            function = _FUNCTIONS["health"][self.second]
            raise DriverError(Trouble.LOST, f"{function}: the driver says that the card is absent", _ABSENT)
        return value

    def errors(self, seat: Seat) -> tuple[int, ...]:
        """Codes of what is wrong now, each once; 0 is none."""
        count, codes = c_int(), (c_uint * _ERRORS)()
        self.ask("errors", seat, byref(count), codes, c_uint(_ERRORS))
        if not 0 <= count.value <= _ERRORS:
            raise DriverError(Trouble.FAILED, f"the driver says that there are {count.value} error codes")
        return tuple(dict.fromkeys(code for code in codes[: count.value] if code))

    def error_text(self, seat: Seat, code: int) -> str:
        """What the driver says of an error code, "" where it says nothing."""
        text = (c_char * _TEXT)()
        try:
            self.ask("error_text", seat, c_uint(code), text, _TEXT - 1)
        except DriverError:
            return ""
        return words(text.value)

    def processes(self, seat: Seat) -> list[tuple[int, int]]:
        """Number and bytes on the chip of each process."""
        count, processes = c_int(), (DcmiProcess * _PROCESSES)()
        self.ask("processes", seat, processes, byref(count))
        return [(one.pid, one.bytes) for one in processes[: _clamp(count.value, _PROCESSES)] if one.pid > 0]

    def affinity(self, seat: Seat) -> str:
        """The processors next to the chip as the kernel writes such a list; the library cuts it after 31 characters."""
        text, length = (c_char * _TEXT)(), c_int(_TEXT - 1)
        self.ask("affinity", seat, text, byref(length))
        return words(text.value) if len(text.value) < 31 else ""

    def subscribe(self) -> bool:
        """From now on, faults of all chips come to `reported`. False: the library has no such thing, or refuses it."""
        with _subscribing:
            if self._handle in _callbacks:
                return True
            callback = _CALLBACK(_Reporter(self.reported))
            try:
                if self.second:
                    self._call("dcmiv2_subscribe_fault_event", -1, EventFilter(), callback)
                else:
                    self._call("dcmi_subscribe_fault_event", -1, -1, EventFilter(), callback)
            except DriverError:
                return False
            _callbacks[self._handle] = callback
            return True


class _Reporter:
    """Called by a thread of the library. It must neither raise, nor wait, nor keep what the pointer points to."""

    def __init__(self, faults: "queue.SimpleQueue[ChipFault]") -> None:
        self._faults = faults

    def __call__(self, pointer: "ctypes._Pointer[DcmiEvent]") -> None:
        event = pointer.contents
        if self._faults.qsize() < _FAULTS:
            over, stays = event.assertion == _RECOVERED, event.assertion == _CAME
            text = f"{_SEVERITIES.get(event.severity, 'unknown severity')}: {words(event.name)}".removesuffix(": ")
            self._faults.put(ChipFault(event.event_id, event.logical, text, over, stays))


def _lost(outcome: CallFailure | Late, what: str) -> DriverError:
    """Why a board or a chip told nothing. Raises that the library is not of its dialect."""
    error = no_answer(outcome, what)
    if error.number == UNSUPPORTED:
        raise error
    return error


def _clamp(count: int, most: int) -> int:
    return max(0, min(count, most))
