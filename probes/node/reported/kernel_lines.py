"""Lines of the kernel's log that mean something: one table, one row per kind of line."""

import re
from collections.abc import Callable

from muster.probes.checks.result import Code
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.kmsg import KernelRecord
from muster.probes.node.reported import xids

#: Items whose findings come from events.
XID, NVSWITCH, STORAGE, KERNEL, MEMORY, OOM = "xid", "nvswitch", "storage", "kernel", "memory-errors", "oom"
NFS, IB, NPU = "nfs", "ib", "npu-errors"


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """What a line says: of which item and code, about which device, or which device on the PCI bus ("0000:9d:00"), with
    which number (of an Xid, an SXid)."""

    item: str
    code: Code
    device: str = ""
    bus_id: str = ""
    number: int | None = None


#: A device on the PCI bus, with or without domain and function.
_BUS = r"(?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"


@dataclass(frozen=True, slots=True)
class _LineRule:
    pattern: re.Pattern[str]
    told: Callable[[re.Match[str]], KernelFinding]


def _plain(item: str, code: Code) -> Callable[[re.Match[str]], KernelFinding]:
    """The first group, if there is one, is the device."""
    return lambda m: KernelFinding(item, code, (m[1] or "") if m.re.groups else "")


def _xid(m: re.Match[str]) -> KernelFinding:
    return KernelFinding(XID, Code.GPU_XID_OTHER, bus_id=m[1], number=int(m[2]))


def _sxid(m: re.Match[str]) -> KernelFinding:
    # "..., 20034, Fatal, Link 30 ..." and "..., 12028, Non-fatal, ..."
    code = Code.NVSWITCH_FATAL if m[4].lower() == "fatal" else Code.NVSWITCH_ERROR
    return KernelFinding(NVSWITCH, code, device=m[1], bus_id=m[2], number=int(m[3]))


def _rows(item: str, code: Code, *patterns: str) -> tuple[_LineRule, ...]:
    return tuple(_LineRule(re.compile(pattern, re.DOTALL), _plain(item, code)) for pattern in patterns)


_FS = r"(?:EXT4-fs|XFS|F2FS-fs|BTRFS)(?: [a-z]+)? \((?:device )?([\w.-]+)[^)]*\)"
#: Disks that can be taken out, or are none: their errors say nothing of the node.
_DISK = r"dev(?:ice)? (?!fd\d|sr\d|loop\d)([\w.-]+)"
#: The first row that matches counts. The wordings are those of NVIDIA's Xid and Fabric Manager documents, of Ascend's
#: driver and of Linux 4.18 to 6.15.
_ROWS = (
    _LineRule(re.compile(rf"NVRM: Xid \({_BUS}[^)]*\).*?: (\d{{1,6}})(?:,|$)"), _xid),
    _LineRule(
        re.compile(rf"NVRM:(?: The NVIDIA)? GPU (?:at )?{_BUS}.*fallen off the bus", re.DOTALL),
        lambda m: KernelFinding(XID, Code.GPU_OFF_BUS, bus_id=m[1], number=xids.OFF_BUS),
    ),
    _LineRule(
        re.compile(r"NVRM:.*fallen off the bus", re.DOTALL),
        lambda _: KernelFinding(XID, Code.GPU_OFF_BUS, number=xids.OFF_BUS),
    ),
    _LineRule(
        re.compile(rf"NVRM: GPU {_BUS}: RmInitAdapter failed!"),
        lambda m: KernelFinding(XID, Code.GPU_INIT_FAILED, bus_id=m[1]),
    ),
    _LineRule(  # older drivers do not say which
        re.compile(r"NVRM: RmInitAdapter failed!"),
        lambda _: KernelFinding(XID, Code.GPU_INIT_FAILED),
    ),
    _LineRule(re.compile(rf"(nvidia-nvswitch\d+): SXid \({_BUS}[^)]*\): (\d{{1,6}}), ([A-Za-z-]+)"), _sxid),
    _LineRule(
        re.compile(r"drv_soft_fault\].*Heartbeat lost.*?\(device=(\d{1,3})\b"),
        lambda m: KernelFinding(NPU, Code.NPU_FAULT_EVENT, f"card {int(m[1])}"),
    ),
    *_rows(
        STORAGE,
        Code.KERNEL_DISK_LOST,
        r"nvme (nvme\d+): (?:Disabling device after reset failure|Removing after probe failure)",
        r"block (nvme\w+): no available path - failing I/O",
        r"md/raid\S*: Disk failure on (\w+)",
    ),
    *_rows(STORAGE, Code.KERNEL_DISK_TIMEOUT, r"nvme (nvme\d+): I/O (?:tag )?\d+.*timeout"),
    *_rows(
        STORAGE,
        Code.KERNEL_FS_READ_ONLY,
        rf"{_FS}.*[Rr]emounting filesystem read-only",
        rf"{_FS}.*forced readonly",
        r"[Rr]emounting filesystem read-only",
    ),
    *_rows(
        STORAGE,
        Code.KERNEL_IO_ERROR,
        rf"Buffer I/O error on {_DISK}",
        rf"(?:I/O|critical (?:medium|target)) error, {_DISK}",
        rf"{_FS}: I/O error while writing superblock",
    ),
    *_rows(
        STORAGE,
        Code.KERNEL_FS_ERROR,
        r"(?:EXT4-fs error|BTRFS (?:error|critical)) \(device ([\w.-]+)",
        r"XFS \(([\w.-]+)\): .*(?:[Ss]hutting down filesystem|[Cc]orruption)",
    ),
    *_rows(OOM, Code.OOM_KILL, r"ut of memory(?: \(\w+\))?: Killed process \d+"),
    *_rows(
        KERNEL,
        Code.KERNEL_SOFT_LOCKUP,
        r"soft lockup - CPU#\d+ stuck",
        r"[Ww]atchdog detected hard LOCKUP",
        r"self-detected stall on CPU|detected stalls? on",
    ),
    *_rows(KERNEL, Code.KERNEL_HUNG_TASK, r"task \S.*?:\d+ blocked for more than \d+ seconds"),
    *_rows(
        KERNEL,
        Code.KERNEL_OOPS,
        r"BUG: (?:unable to handle|kernel NULL pointer)",
        r"(?:Oops|general protection fault|divide error|invalid opcode).*\[#\d+\]",
        r"kernel BUG at ",
    ),
    # Without "Exception" it is the report of a corrected one.
    *_rows(
        KERNEL,
        Code.KERNEL_MACHINE_CHECK,
        r"mce: \[Hardware Error\]: CPU \d+: Machine Check Exception",
        r"\[Hardware Error\]: (?:System Fatal error|Uncorrected, software (?:restartable|containable) error)\.",
    ),
    *_rows(KERNEL, Code.KERNEL_PEERMEM, r"nv(?:idia)?[-_]peer_?mem.*detected invalid context"),
    *_rows(
        MEMORY,
        Code.KERNEL_MEMORY_UNCORRECTED,
        r"\[Hardware Error\]: event severity: (?:fatal|recoverable)",
        r"EDAC (MC\d+): \d+ UE ",
        r"Memory failure: 0x[0-9a-f]+:",
        r"begin to process (?:user|kernel)space SEA exception",
        r"mce: Uncorrected hardware memory error in user-access at",
    ),
    *_rows(
        MEMORY,
        Code.KERNEL_MEMORY_CORRECTED,
        r"\[Hardware Error\]: event severity: corrected",
        r"EDAC (MC\d+): \d+ CE ",
        r"mce: \[Hardware Error\]: Machine check events logged",
    ),
    _LineRule(
        re.compile(rf"{_BUS}: (?:AER: )?PCIe Bus Error: severity=Uncorrect"),
        lambda m: KernelFinding(KERNEL, Code.KERNEL_PCIE_ERROR, bus_id=m[1]),
    ),
    *_rows(
        NFS,
        Code.NFS_NOT_RESPONDING,
        r"nfs: server (\S+) not responding",
        r"nfs4_reclaim_open_state: Lock reclaim failed",
    ),
    *_rows(
        IB,
        Code.IB_HARDWARE_WARNING,
        r"mlx5_core (\S+?): .*Detected insufficient power on the PCIe slot",
        r"mlx5_core (\S+?): .*Port module event.*[Hh]igh [Tt]emperature",
    ),
)
#: Most lines have none of these words, and need not be matched with each row.
_WORDS = re.compile(
    r"NVRM|peer_?mem|SXid|drv_soft_fault|nvme|md/raid|EXT4-fs|XFS|BTRFS|F2FS|I/O error|(?:medium|target) error"
    r"|emounting filesystem|ut of memory|lockup|LOCKUP|stall|blocked for more|BUG|Oops|protection fault|divide error"
    r"|invalid opcode|Hardware Error|hardware memory error|EDAC|Memory failure|SEA exception|PCIe Bus Error|nfs|mlx5"
)
#: Which card a message that fills several records is about: it names it in its first.
_NVIDIA_GPU = re.compile(rf"NVRM: The NVIDIA GPU {_BUS}")


class KernelLineReader:
    """Reads lines, with a memory of one line for messages that fill several records."""

    def __init__(self) -> None:
        self._card = ("", -1.0)

    def read(self, record: KernelRecord) -> KernelFinding | None:
        """What the record says; None for nothing of interest."""
        text = record.text
        if not _WORDS.search(text):
            return None
        if named := _NVIDIA_GPU.search(text):
            self._card = (named[1], record.seconds)
        for row in _ROWS:
            if match := row.pattern.search(text):
                told = row.told(match)
                if told.code is Code.GPU_OFF_BUS and not told.bus_id:
                    # "NVRM: The NVIDIA GPU 0000:18:00.0", "NVRM: ... has", "NVRM: fallen off the bus and ..."
                    bus_id, at = self._card
                    if 0 <= record.seconds - at <= 1.0:
                        return KernelFinding(told.item, told.code, bus_id=bus_id, number=told.number)
                return told
        return None
