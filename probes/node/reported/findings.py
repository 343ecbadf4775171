"""Events of the node and its cards: what the kernel's log and the drivers report, as findings."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from muster.probes.cards.accelerator import ASCEND, NVIDIA, Card, CardEvent
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import Action, CheckResult, Code, Status, one_line
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.kmsg import KernelRecord, wall_time
from muster.probes.node.node_settings import NodeSettings
from muster.probes.node.reported import npu_codes, xids
from muster.probes.node.reported.kernel_lines import NPU, XID, KernelFinding, KernelLineReader

KERNEL_LOG, DRIVER = "kernel log", "driver"
#: The kernel's log and NVML tell of the same Xid within this time, in seconds; and so much is remembered of what was
#: told.
_SAME_S, _REMEMBERED = 2.0, 512
#: Longer lines say nothing more, in characters.
_TEXT = 500


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that happened, as opposed to a condition, which is so.

    `device` is "card 3", or what the report names where it is no card of this node's; `number` the Xid, SXid or DCMI's
    error code; `at` epoch seconds; `count` how many alike it stands for; `uuid` the card's, "" where it is not told.
    Status OK: for information.
    """

    item: str
    code: Code
    status: Status
    action: Action
    device: str
    card: int | None
    bus_id: str
    text: str
    at: float
    number: int | None
    source: str
    count: int = 1
    uuid: str = ""

    @property
    def condition(self) -> CheckResult | None:
        """What is wrong from now on because of it; None where it is over as soon as it has happened."""
        if not EXPLANATIONS[self.code].condition:
            return None
        said = xids.name(self.number) if self.item == XID and self.number is not None else self.text
        status, action = self.status, self.action
        if self.item in (XID, NPU) and self.card is None and status is Status.CRITICAL:
            # In a container the kernel's log, and the driver, are the host's, and tell of cards that are others'.
            status, action = Status.WARN, Action.INVESTIGATE
            said += ", of a card that the driver of this node does not show"
        return CheckResult(
            self.item,
            status,
            self.code,
            said,
            f"{self.count} times" if self.count > 1 else "",
            action=action,
            device=self.device,
            card=self.card,
            evidence=f"{self.source}: {self.text}",
        )


class Findings:
    """Makes findings of records and events. An Xid that both the kernel's log and NVML tell of is one."""

    def __init__(
        self,
        settings: Callable[[], NodeSettings],
        cards: Callable[[], Collection[Card]],
        earlier_boots: Callable[[str, int], int],
    ) -> None:
        self._settings = settings
        self._cards = cards
        self._earlier_boots = earlier_boots
        self._reader = KernelLineReader()
        #: (moment, source, card or bus, xid, code) of the last reported findings.
        self._told: deque[tuple[float, str, str, int, Code]] = deque(maxlen=_REMEMBERED)

    def of_records(self, records: Sequence[KernelRecord]) -> list[Finding]:
        """What records of the kernel's log say; alike ones become one with their number in `count`."""
        found: list[Finding] = []
        for record in records:
            told = self._reader.read(record)
            if told is None:
                continue
            at, text = wall_time(record.seconds), one_line(record.text.replace("\n", " ").strip())[:_TEXT]
            if not record.kernel:
                text += " (written by a program)"
            finding = self._finding(told, text, at, KERNEL_LOG)
            if finding is not None and not self._is_double(finding, record.seconds):
                found.append(finding)
        return alike(found)

    def of_events(self, events: Sequence[CardEvent], now: float, at: float) -> list[Finding]:
        """What a driver reported at `now` (seconds of CLOCK_MONOTONIC, the kernel's clock), `at` in epoch seconds."""
        found = []
        for event in events:
            if event.kind == NVIDIA:
                told = KernelFinding(XID, Code.GPU_XID_OTHER, bus_id=event.bus_id, number=event.code)
            elif event.kind == ASCEND and not event.over:
                told = KernelFinding(NPU, Code.NPU_FAULT_EVENT, bus_id=event.bus_id, number=event.code)
            else:
                continue
            finding = self._finding(told, one_line(event.text)[:_TEXT], at, DRIVER, event.index)
            if finding is not None and not self._is_double(finding, now):
                found.append(finding)
        return alike(found)

    def _finding(
        self, told: KernelFinding, text: str, at: float, source: str, index: int | None = None
    ) -> Finding | None:
        card = self._card(index, told)
        code = told.code
        if told.item == XID and told.number is not None:
            code = self._xid_code(told, text, card)
            text = text or xids.name(told.number)
        elif told.item == NPU and told.number is not None:
            code = npu_codes.code_of_event(told.number, self._settings())
            # What it asks for stands behind the number alone, and an operator looks that up.
            named = f"error code {npu_codes.named([told.number], self._settings())}"
            text = f"{named}: {text}" if text else named
        elif not text:
            text = f"error code {told.number:#x}" if told.number is not None else str(code)
        row = EXPLANATIONS[code]
        device = f"card {card.index}" if card is not None else told.device or told.bus_id
        number = None if card is None else card.index
        bus_id = card.bus_id if card is not None and card.bus_id else told.bus_id
        uuid = card.uuid if card is not None else ""
        return Finding(
            told.item, code, row.status, row.action, device, number, bus_id, text, at, told.number, source, uuid=uuid
        )

    def _xid_code(self, told: KernelFinding, text: str, card: Card | None) -> Code:
        settings, xid = self._settings(), told.number or 0
        code = xids.code_of(xid, text, {name: settings.numbers(name) for name in xids.OWN})
        if code in xids.FATAL and settings.xid_reboots:
            who = (card.uuid or card.bus_id) if card is not None else told.bus_id
            if who and self._earlier_boots(who, xid) >= settings.xid_reboots:
                return Code.GPU_XID_REPEATED
        return code

    def _card(self, index: int | None, told: KernelFinding) -> Card | None:
        cards = self._cards()
        if index is not None:
            return next((card for card in cards if card.index == index), Card(index, NVIDIA, bus_id=told.bus_id))
        wanted = bus_of(told.bus_id)
        for card in cards:
            if (wanted is not None and bus_of(card.bus_id) == wanted) or told.device == f"card {card.index}":
                return card
        return None

    def _is_double(self, finding: Finding, moment: float) -> bool:
        """Whether the other source has told of this Xid just now; a graver view of it is no double."""
        if finding.item != XID or finding.number is None:
            return False
        who = str(bus_of(finding.bus_id) or finding.device)
        for at, source, whose, xid, code in self._told:
            same = whose == who and xid == finding.number and abs(moment - at) <= _SAME_S
            if same and source != finding.source and not _graver(finding.code, code):
                return True
        self._told.append((moment, finding.source, who, finding.number, finding.code))
        return False


def _graver(one: Code, other: Code) -> bool:
    return EXPLANATIONS[one].status is Status.CRITICAL and EXPLANATIONS[other].status is not Status.CRITICAL


def bus_of(bus_id: str) -> tuple[int, int, int] | None:
    """Domain, bus and device of "0000:9d:00.0", "PCI:0000:9d:00", "00000000:9D:00.0" or "9d:00"; None where it is
    none."""
    parts = bus_id.removeprefix("PCI:").partition(".")[0].split(":")
    try:
        numbers = [int(part, 16) for part in parts]
    except ValueError:
        return None
    if len(numbers) == 2:
        numbers.insert(0, 0)
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def alike(findings: Sequence[Finding]) -> list[Finding]:
    """One for all that have item, code, device and number in common: the last, with how many there were."""
    merged: dict[tuple[str, Code, str, int | None], Finding] = {}
    for finding in findings:
        key = (finding.item, finding.code, finding.device, finding.number)
        before = merged.pop(key, None)
        merged[key] = finding if before is None else replace(finding, count=before.count + finding.count)
    return list(merged.values())
