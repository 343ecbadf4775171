"""The network of an Ascend card, read by calls that may block: these must not make the whole card unreadable.

dcmi_get_device_network_health is known not to return for a card that dropped off (npu-exporter gives it one second),
and only a program reports whether the port is up. Both are asked in a thread beside, at most one for each card.
"""

import threading
import time
from collections.abc import Callable

from muster.probes.cards.accelerator import DriverError, Trouble
from muster.probes.cards.ascend import npu_smi
from muster.probes.cards.ascend.ascend_program import find, run
from muster.probes.cards.ascend.dcmi_codes import FOR_GOOD, is_lacking

#: Folders of hccn_tool, over those of PATH.
_FOLDERS = "/usr/local/Ascend/driver/tools"
#: How long somebody waits for an answer that was no slower at the last time, in seconds: cards are asked one by one.
WAIT_S = 0.3
#: How old an answer may be that came too late for its caller.
_SERVES_S = 60.0
#: The program is run this often for each card, and given so long; what it said is forgotten after two more turns.
_LINK_S, _LINK_LIMIT_S = 60.0, 5.0

#: All cards are due at the same moment: the program is run for one of them at a time.
_one_by_one = threading.Lock()


class Network:
    """One card's. `ask_health` is the call that may not return; of the port of card `index` hccn_tool tells."""

    def __init__(self, index: int, ask_health: Callable[[], int]) -> None:
        self._index = index
        self._ask_health = ask_health
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._answered = threading.Event()
        #: The last answer, when it came, and whether it took no longer than anybody waits.
        self._health: int | None = None
        self._health_at: float | None = None
        self._quick = True
        #: It is not told for good: there is nothing to wait for.
        self._untold = False
        #: Why the last call told nothing; empty where it did, and of a card that has no such thing.
        self._refused = ""
        self._link: bool | None = None
        self._link_at: float | None = None

    def look(self, wait_s: float | None = None) -> tuple[int | None, bool | None]:
        """The network's health (0 and 6 are good) and whether the port is up; None where no answer came in time.

        Waits at most `wait_s` seconds (None: WAIT_S), and not at all where the last answer took longer: the next look
        has it then.
        """
        with self._lock:
            if self._untold and not self.link_due():
                return None, self._link
            if self._thread is None or not self._thread.is_alive():
                self._answered.clear()
                thread = threading.Thread(target=self._ask, name=f"network of card {self._index}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no thread can be had
                    return None, None
                self._thread = thread
        limit_s = WAIT_S if wait_s is None else wait_s
        if not self._answered.wait(limit_s if self._quick else 0):
            self._quick = False
        return self._health if self._fresh() else None, self._link if not self.link_due(3) else None

    @property
    def unread(self) -> str:
        """Why the last look had no health, of a card that has such a thing: the driver's answer, or that there is none
        yet; else empty."""
        if self._refused or self._untold or self._fresh():
            return self._refused
        return "dcmi_get_device_network_health has not answered"

    def _fresh(self) -> bool:
        return self._health_at is not None and time.monotonic() - self._health_at < _SERVES_S

    def link_due(self, turns: int = 1) -> bool:
        """Whether the port was not asked for, or not within so many turns."""
        return self._link_at is None or time.monotonic() - self._link_at >= turns * _LINK_S

    def _ask(self) -> None:
        began = time.monotonic()
        try:
            if not self._untold:
                self._health, self._refused = self._ask_health(), ""
        except DriverError as trouble:
            self._health = None
            self._refused = "" if is_lacking(trouble) else str(trouble)
            self._untold = trouble.trouble is Trouble.NOT_TOLD and trouble.number in FOR_GOOD
        finally:
            self._health_at = time.monotonic()
            self._quick = self._health_at - began <= WAIT_S
            self._answered.set()
        if self.link_due():
            self._link = self._ask_link()
            self._link_at = time.monotonic()

    def _ask_link(self) -> bool | None:
        program = find("hccn_tool", _FOLDERS)
        if program is None:
            return None
        try:
            with _one_by_one:
                return npu_smi.link_up(run(program, "-i", str(self._index), "-link", "-g", limit_s=_LINK_LIMIT_S))
        except DriverError:
            return None
