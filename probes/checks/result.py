"""What a check says: one shape for all of them, so that logs, journal, metrics and commands need to know only this."""

import enum
from collections.abc import Iterable

from muster.probes.kernel.dataclass import dataclass


class Status(enum.StrEnum):
    """Verdict of one check. UNKNOWN means that the check could not tell; it is never a reason to refuse or drain."""

    OK = "OK"
    WARN = "WARN"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"
    NOT_APPLICABLE = "NOT_APPLICABLE"

    @property
    def exit_code(self) -> int:
        """Exit code of a command that reports this status; the same numbers as a Nagios plugin's."""
        return _EXIT_CODES[self]


_EXIT_CODES = {Status.OK: 0, Status.NOT_APPLICABLE: 0, Status.WARN: 1, Status.CRITICAL: 2, Status.UNKNOWN: 3}


class Action(enum.StrEnum):
    """What an operator should do.

    A check that is CRITICAL says DRAIN, since ModelArts isolates a node whose pre-check failed.
    """

    NONE = "NONE"
    RESTART_JOB = "RESTART_JOB"
    RESET_DEVICE = "RESET_DEVICE"
    REBOOT = "REBOOT"
    DRAIN = "DRAIN"
    RMA = "RMA"
    INVESTIGATE = "INVESTIGATE"


class Code(enum.StrEnum):
    """Stable names of findings: alerts and scripts may depend on them, so that one is never renamed or reused."""

    DNS_OK = "DNS_OK"
    DNS_NO_NAMES = "DNS_NO_NAMES"
    DNS_NAME_UNRESOLVED = "DNS_NAME_UNRESOLVED"
    DNS_SERVER_FAILED = "DNS_SERVER_FAILED"
    DNS_NAME_INVALID = "DNS_NAME_INVALID"
    DNS_RESOLVER_ERROR = "DNS_RESOLVER_ERROR"
    DNS_HOST_FILE_UNREADABLE = "DNS_HOST_FILE_UNREADABLE"

    DISK_OK = "DISK_OK"
    DISK_OFF = "DISK_OFF"
    DISK_PATH_ABSENT = "DISK_PATH_ABSENT"
    DISK_PATH_REQUIRED = "DISK_PATH_REQUIRED"
    DISK_SIZE_TOO_SMALL = "DISK_SIZE_TOO_SMALL"
    DISK_SPACE_LOW = "DISK_SPACE_LOW"
    DISK_INODES_LOW = "DISK_INODES_LOW"
    DISK_READ_ONLY = "DISK_READ_ONLY"
    DISK_SIZE_NOT_TOLD = "DISK_SIZE_NOT_TOLD"
    DISK_UNREADABLE = "DISK_UNREADABLE"

    ULIMIT_OK = "ULIMIT_OK"
    ULIMIT_OFF = "ULIMIT_OFF"
    ULIMIT_NO_INFINIBAND = "ULIMIT_NO_INFINIBAND"
    ULIMIT_TOO_LOW = "ULIMIT_TOO_LOW"
    ULIMIT_NOT_ALLOWED = "ULIMIT_NOT_ALLOWED"
    ULIMIT_UNREADABLE = "ULIMIT_UNREADABLE"

    CARDS_OK = "CARDS_OK"
    CARDS_NOT_WANTED = "CARDS_NOT_WANTED"
    CARDS_ARE_SLOTS = "CARDS_ARE_SLOTS"
    CARDS_NONE_FOUND = "CARDS_NONE_FOUND"
    CARDS_TOO_FEW = "CARDS_TOO_FEW"
    CARDS_MISSING = "CARDS_MISSING"
    CARDS_LIBRARY_MISSING = "CARDS_LIBRARY_MISSING"
    CARDS_DRIVER_FAILED = "CARDS_DRIVER_FAILED"
    CARDS_NO_ANSWER = "CARDS_NO_ANSWER"
    CARDS_UNHEALTHY = "CARDS_UNHEALTHY"
    CARDS_NOT_TOLD = "CARDS_NOT_TOLD"

    CUSTOM_OK = "CUSTOM_OK"
    CUSTOM_WARN = "CUSTOM_WARN"
    CUSTOM_CRITICAL = "CUSTOM_CRITICAL"
    CUSTOM_UNKNOWN = "CUSTOM_UNKNOWN"
    CUSTOM_BAD_EXIT_CODE = "CUSTOM_BAD_EXIT_CODE"
    CUSTOM_SIGNALLED = "CUSTOM_SIGNALLED"
    CUSTOM_NOT_EXECUTABLE = "CUSTOM_NOT_EXECUTABLE"
    CUSTOM_TOO_MUCH_OUTPUT = "CUSTOM_TOO_MUCH_OUTPUT"
    CUSTOM_UNSAFE = "CUSTOM_UNSAFE"
    CUSTOM_FOLDER_UNREADABLE = "CUSTOM_FOLDER_UNREADABLE"

    ACTIVE_OK = "ACTIVE_OK"
    ACTIVE_WRONG_RESULT = "ACTIVE_WRONG_RESULT"
    ACTIVE_SLOW = "ACTIVE_SLOW"
    ACTIVE_FAILED = "ACTIVE_FAILED"
    ACTIVE_NO_END = "ACTIVE_NO_END"
    ACTIVE_NOT_RUN = "ACTIVE_NOT_RUN"

    PROBE_TIMED_OUT = "PROBE_TIMED_OUT"
    PROBE_FAILED = "PROBE_FAILED"

    # Of the node checks. The first four are common to all of them.
    NODE_OK = "NODE_OK"
    NODE_PENDING = "NODE_PENDING"
    NODE_NOT_APPLICABLE = "NODE_NOT_APPLICABLE"
    NODE_NOT_TOLD = "NODE_NOT_TOLD"

    DRIVER_NOT_LOADED = "DRIVER_NOT_LOADED"
    DRIVER_MISMATCH = "DRIVER_MISMATCH"
    DRIVER_LIBRARY_MISSING = "DRIVER_LIBRARY_MISSING"
    DRIVER_FAILED = "DRIVER_FAILED"
    DRIVER_HANG = "DRIVER_HANG"

    CARD_MISSING = "CARD_MISSING"
    CARD_REPLACED = "CARD_REPLACED"
    CARD_MOVED = "CARD_MOVED"
    CARD_NEW = "CARD_NEW"
    CARD_NOT_SHOWN = "CARD_NOT_SHOWN"
    CARD_DRIVER_GONE = "CARD_DRIVER_GONE"
    CARD_COUNT = "CARD_COUNT"

    GPU_LOST = "GPU_LOST"
    GPU_COUNT = "GPU_COUNT"
    GPU_NO_ANSWER = "GPU_NO_ANSWER"
    GPU_RESET_REQUIRED = "GPU_RESET_REQUIRED"
    GPU_REBOOT_REQUIRED = "GPU_REBOOT_REQUIRED"
    GPU_DRAIN_REQUIRED = "GPU_DRAIN_REQUIRED"
    GPU_IMEX_REQUIRED = "GPU_IMEX_REQUIRED"
    GPU_ECC_SRAM_UNCORRECTED = "GPU_ECC_SRAM_UNCORRECTED"
    GPU_ECC_UNCORRECTED = "GPU_ECC_UNCORRECTED"
    GPU_ECC_SRAM_CORRECTED = "GPU_ECC_SRAM_CORRECTED"
    GPU_ECC_DRAM_CORRECTED = "GPU_ECC_DRAM_CORRECTED"
    GPU_ROW_REMAP_PENDING = "GPU_ROW_REMAP_PENDING"
    GPU_ROW_REMAP_FAILED = "GPU_ROW_REMAP_FAILED"
    GPU_PAGES_PENDING = "GPU_PAGES_PENDING"
    GPU_PAGES_RETIRED = "GPU_PAGES_RETIRED"
    GPU_HW_SLOWDOWN = "GPU_HW_SLOWDOWN"
    GPU_CLOCKS_LOW = "GPU_CLOCKS_LOW"
    GPU_TEMPERATURE = "GPU_TEMPERATURE"
    GPU_MEMORY_TEMPERATURE = "GPU_MEMORY_TEMPERATURE"
    GPU_PERSISTENCE_OFF = "GPU_PERSISTENCE_OFF"
    GPU_LEFTOVER_PROCESS = "GPU_LEFTOVER_PROCESS"
    GPU_STRANGER_PROCESS = "GPU_STRANGER_PROCESS"
    NVLINK_DOWN = "NVLINK_DOWN"
    NVLINK_ERRORS = "NVLINK_ERRORS"
    FABRIC_MANAGER_DOWN = "FABRIC_MANAGER_DOWN"
    FABRIC_NOT_READY = "FABRIC_NOT_READY"
    FABRIC_UNHEALTHY = "FABRIC_UNHEALTHY"
    PCIE_WIDTH_DEGRADED = "PCIE_WIDTH_DEGRADED"
    PCIE_GEN_DEGRADED = "PCIE_GEN_DEGRADED"
    PCIE_REPLAYS = "PCIE_REPLAYS"

    # One code for what is to be done about an Xid; which Xid it was is in the finding.
    GPU_OFF_BUS = "GPU_OFF_BUS"
    GPU_INIT_FAILED = "GPU_INIT_FAILED"
    GPU_XID_REBOOT = "GPU_XID_REBOOT"
    GPU_XID_RESET = "GPU_XID_RESET"
    GPU_XID_INSPECT = "GPU_XID_INSPECT"
    GPU_XID_REPEATED = "GPU_XID_REPEATED"
    GPU_XID_APPLICATION = "GPU_XID_APPLICATION"
    GPU_XID_OTHER = "GPU_XID_OTHER"
    GPU_XID_NOTE = "GPU_XID_NOTE"
    NVSWITCH_FATAL = "NVSWITCH_FATAL"
    NVSWITCH_ERROR = "NVSWITCH_ERROR"

    NPU_LOST = "NPU_LOST"
    NPU_COUNT = "NPU_COUNT"
    NPU_NO_ANSWER = "NPU_NO_ANSWER"
    NPU_ALARM = "NPU_ALARM"
    NPU_UNHEALTHY = "NPU_UNHEALTHY"
    NPU_NOT_BOOTED = "NPU_NOT_BOOTED"
    NPU_FAULT_RESET = "NPU_FAULT_RESET"
    NPU_FAULT_ISOLATE = "NPU_FAULT_ISOLATE"
    NPU_ERROR_CODES = "NPU_ERROR_CODES"
    NPU_ECC_UNCORRECTED = "NPU_ECC_UNCORRECTED"
    NPU_TEMPERATURE = "NPU_TEMPERATURE"
    NPU_NETWORK_DOWN = "NPU_NETWORK_DOWN"
    NPU_FAULT_REPEATED = "NPU_FAULT_REPEATED"
    NPU_LEFTOVER_PROCESS = "NPU_LEFTOVER_PROCESS"
    NPU_STRANGER_PROCESS = "NPU_STRANGER_PROCESS"
    NPU_FAULT_EVENT = "NPU_FAULT_EVENT"
    NPU_FAULT_JOB = "NPU_FAULT_JOB"
    NPU_FAULT_NOTE = "NPU_FAULT_NOTE"

    IB_PORT_DOWN = "IB_PORT_DOWN"
    IB_PORT_FLAPPING = "IB_PORT_FLAPPING"
    IB_PORTS_MISSING = "IB_PORTS_MISSING"
    IB_RATE_LOW = "IB_RATE_LOW"
    IB_SYMBOL_ERRORS = "IB_SYMBOL_ERRORS"
    NIC_FLAPPING = "NIC_FLAPPING"
    NIC_LINK_ERRORS = "NIC_LINK_ERRORS"
    IB_HARDWARE_WARNING = "IB_HARDWARE_WARNING"

    FS_SPACE_LOW = "FS_SPACE_LOW"
    FS_INODES_LOW = "FS_INODES_LOW"
    FS_UNREADABLE = "FS_UNREADABLE"
    FS_NOT_MOUNTED = "FS_NOT_MOUNTED"
    FS_READ_ONLY = "FS_READ_ONLY"
    NFS_HANGS = "NFS_HANGS"
    NFS_STALE = "NFS_STALE"
    NFS_NOT_RESPONDING = "NFS_NOT_RESPONDING"

    PROCS_D_STATE = "PROCS_D_STATE"
    ZOMBIES = "ZOMBIES"
    PIDS_NEARLY_FULL = "PIDS_NEARLY_FULL"
    FD_NEARLY_FULL = "FD_NEARLY_FULL"
    SUPERVISOR_CRASHING = "SUPERVISOR_CRASHING"
    DAEMON_DEGRADED = "DAEMON_DEGRADED"
    OUTPUT_LOST = "OUTPUT_LOST"
    PRIVATE_TMP_LEFT = "PRIVATE_TMP_LEFT"

    KERNEL_LOG_UNREADABLE = "KERNEL_LOG_UNREADABLE"
    KERNEL_DISK_LOST = "KERNEL_DISK_LOST"
    KERNEL_DISK_TIMEOUT = "KERNEL_DISK_TIMEOUT"
    KERNEL_IO_ERROR = "KERNEL_IO_ERROR"
    KERNEL_FS_ERROR = "KERNEL_FS_ERROR"
    KERNEL_FS_READ_ONLY = "KERNEL_FS_READ_ONLY"
    KERNEL_SOFT_LOCKUP = "KERNEL_SOFT_LOCKUP"
    KERNEL_HUNG_TASK = "KERNEL_HUNG_TASK"
    KERNEL_OOPS = "KERNEL_OOPS"
    KERNEL_MACHINE_CHECK = "KERNEL_MACHINE_CHECK"
    KERNEL_PEERMEM = "KERNEL_PEERMEM"
    KERNEL_MEMORY_CORRECTED = "KERNEL_MEMORY_CORRECTED"
    KERNEL_MEMORY_UNCORRECTED = "KERNEL_MEMORY_UNCORRECTED"
    KERNEL_PCIE_ERROR = "KERNEL_PCIE_ERROR"
    OOM_KILL = "OOM_KILL"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check: readings and thresholds as text with their units, so that the verdict explains itself."""

    item: str
    status: Status
    code: Code
    reason: str
    observed: str = ""
    threshold: str = ""
    action: Action = Action.NONE
    #: How long the check took.
    seconds: float = 0.0
    #: What it is about: "card 3", "mlx5_0/1", "/dev/shm"; empty: the node. And the number of the card, if it is one.
    device: str = ""
    card: int | None = None
    #: What else speaks for it: a line of the kernel's log, processes by name.
    evidence: str = ""

    @property
    def sentence(self) -> str:
        """The reason, and of what."""
        return f"{self.device}: {self.reason}" if self.device else self.reason


#: From harmless to grave. UNKNOWN is below CRITICAL although its exit code is higher: what is not known is no fault.
GRAVITY = (Status.OK, Status.WARN, Status.UNKNOWN, Status.CRITICAL)


def worst(results: Iterable[CheckResult]) -> Status:
    """The gravest status: CRITICAL, UNKNOWN, WARN, OK in this order. NOT_APPLICABLE counts as OK, as does no result."""
    return max(
        (Status.OK if r.status is Status.NOT_APPLICABLE else r.status for r in results),
        key=GRAVITY.index,
        default=Status.OK,
    )


def one_line(text: str) -> str:
    """`text` with everything that could break or forge a line of a log (line ends, control characters) made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def log_lines(results: Iterable[CheckResult]) -> list[str]:
    """One line per result for the job's log. Each has the word `item`, by which users of ModelArts search for them."""
    return [
        one_line(f"pre-check item: {r.item}, result: {r.status} ({r.code}), {r.seconds:.3f} s: {r.sentence}")
        for r in results
    ]


def final_line(results: Iterable[CheckResult]) -> str:
    """The line that ends the job's log when no restart is left after a failed pre-check: ModelArts' `error,exiting`."""
    failed = ", ".join(r.item for r in results if r.status is Status.CRITICAL)
    return one_line(f"pre-check failed (item: {failed or 'none'}): error,exiting")
