"""What each code means, what to do about it, and how its condition clears: one table for all codes.

A check reports what it saw; this table has the status and action of each code, so muster judges a finding in the same
way wherever it comes from. `muster check explain CODE` shows a row, and docs/reference/checks.md lists all.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType

from muster.probes.checks.result import Action, Code, Status
from muster.probes.kernel.dataclass import dataclass


class Clears(enum.StrEnum):
    """How a condition clears. An operator's `clear` ends every condition."""

    READING = "reading"  # a later look of the same check no longer finds it
    REBOOT = "reboot"  # the node has another boot id
    OPERATOR = "operator"  # only an operator ends it
    AGE = "age"  # it was not seen again for `age_s` seconds


class UnknownCode(ValueError):
    """There is no such code. The message names the nearest."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One code: what it means and what an operator does about it, in sentences.

    `condition`: a result with this code means that something is wrong *now*; otherwise the code belongs to an event, or
    means that nothing is wrong. `age_s` (seconds) applies only with `clears` AGE. `steady`: the finding does not come
    and go, so the first look without it ends it. `presence`: the finding is about which cards exist, not about those
    that a job can get. `lasting`: a card that does not report the reading any more keeps the finding.
    """

    what: str
    remedy: str
    status: Status
    action: Action
    clears: Clears = Clears.READING
    condition: bool = True
    age_s: float = 0.0
    steady: bool = False
    presence: bool = False
    reset_ends: bool = False
    lasting: bool = False


_DAY = 86_400.0


def _fine(what: str, status: Status = Status.OK) -> Explanation:
    return Explanation(what, "Nothing.", status, Action.NONE, condition=False)


def _off(what: str) -> Explanation:
    return _fine(what, Status.NOT_APPLICABLE)


def _warn(what: str, remedy: str, action: Action = Action.INVESTIGATE, *, steady: bool = False) -> Explanation:
    return Explanation(what, remedy, Status.WARN, action, steady=steady)


def _bad(
    what: str,
    remedy: str,
    action: Action = Action.DRAIN,
    clears: Clears = Clears.READING,
    *,
    steady: bool = False,
    reset_ends: bool = False,
    lasting: bool = False,
) -> Explanation:
    return Explanation(
        what, remedy, Status.CRITICAL, action, clears, steady=steady, reset_ends=reset_ends, lasting=lasting
    )


def _unsure(what: str, remedy: str, *, condition: bool = True, steady: bool = False) -> Explanation:
    return Explanation(what, remedy, Status.UNKNOWN, Action.INVESTIGATE, condition=condition, steady=steady)


def _event(what: str, remedy: str, action: Action = Action.INVESTIGATE, status: Status = Status.WARN) -> Explanation:
    return Explanation(what, remedy, status, action, condition=False)


def _aged(what: str, remedy: str, age_s: float = _DAY) -> Explanation:
    return Explanation(what, remedy, Status.WARN, Action.INVESTIGATE, Clears.AGE, age_s=age_s)


def _differs(what: str, remedy: str, status: Status = Status.WARN) -> Explanation:
    return Explanation(what, remedy, status, Action.INVESTIGATE, steady=True, presence=True)


_MEND_SCRIPT = "Fix the script; its exit code must be 0, 1, 2 or 3 (OK, WARN, CRITICAL, UNKNOWN)."
#: The reset drains the node, waits for the card's jobs, resets the card and tests it.
_OR_REBOOT = "run `muster node reset CARD`, or reboot"
_RESET_FIRST = "Run `muster node reset CARD`, or reboot"

_PRE_CHECKS: dict[Code, Explanation] = {
    Code.DNS_OK: _fine("Every name of the job's nodes and of the .host files resolves."),
    Code.DNS_NO_NAMES: _off("There is no name to resolve."),
    Code.DNS_NAME_UNRESOLVED: _bad(
        "A name of the job's nodes, or of a .host file, is unknown here.",
        "Look at /etc/hosts, the .host file and the search domains of /etc/resolv.conf.",
    ),
    Code.DNS_SERVER_FAILED: _bad("The name server failed to answer twice.", "Check that the name server is reachable."),
    Code.DNS_NAME_INVALID: _bad("The list of names contains an entry that is not a host name.", "Correct the list."),
    Code.DNS_RESOLVER_ERROR: _unsure(
        "The resolver itself failed.", "Check whether the node is out of memory or file descriptors."
    ),
    Code.DNS_HOST_FILE_UNREADABLE: _unsure(
        "A .host file is not readable, not text, over 1 MiB, or there are over 4096 names in all.",
        "Correct the file or the setting `host_files`.",
    ),
    Code.DISK_OK: _fine("The file system is large enough."),
    Code.DISK_OFF: _off("The path is not set."),
    Code.DISK_PATH_ABSENT: _off("The path does not exist on this host."),
    Code.DISK_PATH_REQUIRED: _bad("The path does not exist, and the settings require it.", "Mount it."),
    Code.DISK_SIZE_TOO_SMALL: _bad(
        "The file system is smaller than a job needs.",
        "Give the node a larger one; for /dev/shm of a container, `--shm-size`.",
    ),
    Code.DISK_SPACE_LOW: _warn("The file system is low on free space.", "Remove the files of earlier jobs."),
    Code.DISK_INODES_LOW: _warn("The file system is low on free inodes.", "Remove the files of earlier jobs."),
    Code.DISK_READ_ONLY: _warn(
        "A file system that jobs write to is mounted read-only.",
        "Look in the kernel's log for file system errors; mount it read-write.",
    ),
    Code.DISK_SIZE_NOT_TOLD: _unsure("The file system does not report its size.", "Look at it with `df`."),
    Code.DISK_UNREADABLE: _unsure("The file system does not answer.", "Check its server or disk."),
    Code.ULIMIT_OK: _fine("The limits that ranks get are high enough."),
    Code.ULIMIT_OFF: _off("The check is switched off."),
    Code.ULIMIT_NO_INFINIBAND: _off("The node has no InfiniBand adapter, and only those need high limits."),
    Code.ULIMIT_TOO_LOW: _bad(
        "A limit that ranks would get is too low for InfiniBand.",
        "Raise `Limit...=` in musterd's unit, `--ulimit` of the container, or the job's own `limits`.",
    ),
    Code.ULIMIT_NOT_ALLOWED: _bad(
        "The job asks for more than the hard limit or fs.nr_open allows.",
        "Ask for less, or raise the hard limit of musterd.",
        Action.INVESTIGATE,
    ),
    Code.ULIMIT_UNREADABLE: _unsure("The limits that ranks would get are not readable.", "Look at /proc/PID/limits."),
    Code.CARDS_OK: _fine("Every card that the job wants exists and answers."),
    Code.CARDS_NOT_WANTED: _off("The job wants no cards."),
    Code.CARDS_ARE_SLOTS: _off("The host has slots instead of cards: there is nothing to check."),
    Code.CARDS_NONE_FOUND: _bad("The host shows no cards.", "Look at the driver and the devices of the container."),
    Code.CARDS_TOO_FEW: _bad("The host shows fewer cards than the job wants.", "Run `muster check gpu-lost`."),
    Code.CARDS_MISSING: _bad("The host has no card with this number.", "Run `muster check gpu-lost`."),
    Code.CARDS_LIBRARY_MISSING: _bad(
        "Device nodes exist, but the driver's library does not.", "Install the library, or mount it into the container."
    ),
    Code.CARDS_DRIVER_FAILED: _bad(
        "The driver does not start: it is not loaded, or its version differs from the version of its library.",
        "Load the driver, or reboot after an update.",
    ),
    Code.CARDS_NO_ANSWER: _bad(
        "The driver has no such card, or the card is lost or needs a reset.", f"{_RESET_FIRST}."
    ),
    Code.CARDS_UNHEALTHY: _bad(
        "An Ascend card has a major or critical alarm.", "`npu-smi info -t health -i CARD` shows it."
    ),
    Code.CARDS_NOT_TOLD: _unsure(
        "The driver gives no reading: no permission, not supported, no memory. This is not a fault of the card.",
        "Check the rights of the daemon.",
    ),
    Code.CUSTOM_OK: _fine("The custom check found nothing wrong."),
    Code.CUSTOM_WARN: _warn("The custom check warns.", "Its message gives the reason."),
    Code.CUSTOM_CRITICAL: _bad("The custom check reports that the node is not fit.", "Its message gives the reason."),
    Code.CUSTOM_UNKNOWN: _unsure("The custom check could not decide.", "Its message gives the reason."),
    Code.CUSTOM_BAD_EXIT_CODE: _unsure("The custom check ended with an undefined exit code.", _MEND_SCRIPT),
    Code.CUSTOM_SIGNALLED: _unsure("A signal ended the custom check.", _MEND_SCRIPT),
    Code.CUSTOM_NOT_EXECUTABLE: _unsure(
        "The kernel cannot execute the custom check.", "Fix its first line or its mode (`chmod +x`)."
    ),
    Code.CUSTOM_TOO_MUCH_OUTPUT: _unsure(
        "The custom check wrote more than 1 MiB, so muster ended it.", "Fix the script."
    ),
    Code.CUSTOM_UNSAFE: _unsure(
        "Other users may write to the custom check, so muster did not run it.",
        "`chown root` and `chmod go-w` the file and its folder.",
    ),
    Code.CUSTOM_FOLDER_UNREADABLE: _unsure(
        "The folder of custom checks is not readable.", "Check the setting `custom_dir`."
    ),
    Code.ACTIVE_OK: _fine("The card computed, stored and transferred everything correctly, and fast enough."),
    Code.ACTIVE_WRONG_RESULT: _bad(
        "The card computed, stored or transferred something wrong, without any error: silent data corruption.",
        "Take the card out of service (`muster node drain`) and have it replaced; results of jobs that ran on it since"
        " its last good test are in doubt.",
        Action.RMA,
        Clears.OPERATOR,
    ),
    Code.ACTIVE_SLOW: _warn(
        "The card is slower than its model should be, than the other cards of the node, or than it was.",
        "Look at its clocks, temperature, power limit and PCIe link (`muster check`), and test it again when it is"
        " cool. If it is to stay slower than it was, as with a lower power limit: `muster check clear ACTIVE_SLOW"
        ' "card N"` forgets its earlier results.',
        steady=True,
    ),
    Code.ACTIVE_FAILED: _bad(
        "The driver refused or aborted a test of the card, and no other process used the card.",
        f"Look for an Xid at the same time (`muster events`); {_OR_REBOOT}. A reset tests the card again.",
        steady=True,
    ),
    Code.ACTIVE_NO_END: _bad(
        "Two tests of the card in a row did not end: the card hangs.",
        f"{_RESET_FIRST}, and test the card again.",
        steady=True,
    ),
    Code.ACTIVE_NOT_RUN: _unsure(
        "A test of the card did not run, which says nothing about the card.",
        "The reason says what is missing: a free card, free memory, the driver's libcuda.so.1.",
        condition=False,
    ),
    Code.PROBE_TIMED_OUT: _unsure(
        "The check got no answer in time, because something that it queries hangs. muster does not hold this against"
        " the"
        " node.",
        "The reason names what hangs: the server of a file system, a driver, a resolver.",
    ),
    Code.PROBE_FAILED: _unsure(
        "The check itself failed: a defect of muster. muster does not hold this against the node.", "Report the defect."
    ),
    Code.NODE_OK: _fine("The check found nothing wrong."),
    Code.NODE_PENDING: _fine("The check saw something that counts only after several identical looks in a row."),
    Code.NODE_NOT_APPLICABLE: _off(
        "There is nothing here for the check to look at: the hardware is absent, or the card does not give the reading."
    ),
    Code.NODE_NOT_TOLD: _unsure(
        "The driver did not give a reading this time. This neither begins nor ends a condition.",
        "If the driver has a fault, the check `driver` reports it.",
        condition=False,
    ),
}

_CARDS: dict[Code, Explanation] = {
    Code.DRIVER_NOT_LOADED: _bad(
        "The cards' kernel module is not loaded.",
        "Load it; the kernel's log gives the reason (`dmesg`).",
        steady=True,
    ),
    Code.DRIVER_MISMATCH: _bad(
        "The driver's library and its kernel module are of different versions, as after an update.",
        "Reload the kernel module, or reboot.",
        Action.REBOOT,
        steady=True,
    ),
    Code.DRIVER_LIBRARY_MISSING: _bad(
        "The node has cards, but not the driver's library (libnvidia-ml.so.1, libdcmi.so).",
        "Install the driver's libraries, or give them to the container (for NVIDIA the `utility` capability).",
        steady=True,
    ),
    Code.DRIVER_FAILED: _bad(
        "The driver does not start, or muster keeps it closed because its library crashed musterd.",
        "The reason quotes the driver, and names a container that lost its devices; otherwise reload the driver, or"
        " reboot.",
        steady=True,
    ),
    Code.DRIVER_HANG: _unsure(
        "A driver call does not return, for one card or for all. muster continues to query the other cards, and"
        " does not refuse jobs for this alone, because the state of the card is unknown.",
        "Look for processes in state D (`muster check d-state`) and for Xids; a reboot usually ends it.",
        steady=True,
    ),
    Code.CARD_MISSING: _differs(
        "The driver no longer shows a card that the node had. muster remembers the card over restarts and reboots,"
        " until"
        " it is back or an operator accepts that it was removed. Jobs that want other cards still run.",
        "Look for it in `lspci` and in the kernel's log; reboot; if that does not help, have the hardware inspected. If"
        " the card was removed on purpose: `muster node accept CARD`.",
        Status.CRITICAL,
    ),
    Code.CARD_REPLACED: _differs(
        "Another card has replaced a card that the node had.",
        "If that is intended: `muster node accept CARD`. Otherwise find out who changed the hardware.",
    ),
    Code.CARD_MOVED: _differs(
        "A card that the node had has moved on the PCI bus, as after a change of slots or firmware settings.",
        "If that is intended: `muster node accept CARD`. The move has no other effect.",
    ),
    Code.CARD_NEW: _differs(
        "The node has a new card, in a place where it had none.",
        "If that is intended: `muster node accept CARD`. Jobs can use the card in any case.",
    ),
    Code.CARD_NOT_SHOWN: _differs(
        "The PCI bus has a card of this vendor that the driver's library does not show. WARN where that may be"
        " intended:"
        " a display adapter without a driver, or a card seen from inside a container. muster ignores cards that are"
        " reserved for virtual machines (vfio).",
        "The kernel's log shows why the driver did not start the card; reload the driver, or reboot. If that is"
        " intended: `muster node accept CARD`.",
        Status.CRITICAL,
    ),
    Code.CARD_DRIVER_GONE: _differs(
        "The node had cards, but no driver shows any: its library was removed, its kernel module is not loaded, or all"
        " cards were removed. WARN where another vendor's driver answers, and in a container without these cards.",
        "Install or load the driver. If the node no longer has cards on purpose: `muster node accept --all`.",
        Status.CRITICAL,
    ),
    Code.CARD_COUNT: _bad(
        "The node has neither a card nor a driver, but `expected_cards` expects cards.",
        "Install or load the driver; look for the cards in `lspci`.",
        Action.INVESTIGATE,
        steady=True,
    ),
    Code.GPU_LOST: _bad(
        "The driver reports that the card fell off the bus.",
        "Reboot; if it happens again, have card, riser and power supply inspected.",
        Action.REBOOT,
    ),
    Code.GPU_COUNT: _bad(
        "The number of cards differs from `expected_cards`, or from the number of device nodes.",
        "Look for the missing card in `lspci` and in the kernel's log; reboot; if that does not help, have the hardware"
        " inspected.",
        Action.INVESTIGATE,
    ),
    Code.GPU_NO_ANSWER: _bad(
        "The driver answers a call for this card with an error, several looks in a row.",
        f"The reason gives the driver's error code; {_OR_REBOOT}.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_RESET_REQUIRED: _bad(
        "The driver reports that the card needs a reset.", f"{_RESET_FIRST}.", Action.RESET_DEVICE
    ),
    Code.GPU_REBOOT_REQUIRED: _bad(
        "The driver reports that the card needs a reboot of the node.", "Reboot.", Action.REBOOT
    ),
    Code.GPU_DRAIN_REQUIRED: _bad(
        "The driver requires that all work between cards (P2P) ends before the card is used again.",
        "Let the node's jobs end, then run `muster check clear`; if the finding stays, run `muster node reset CARD`.",
        Action.DRAIN,
    ),
    Code.GPU_IMEX_REQUIRED: _bad(
        "The driver asks to recover the IMEX domain: the card no longer shares memory with cards of other nodes.",
        "Let the jobs on the nodes of the domain end, then run `systemctl restart nvidia-imex` on each of them; if the"
        " finding stays, reboot.",
        Action.INVESTIGATE,
    ),
    Code.GPU_ECC_SRAM_UNCORRECTED: _bad(
        "The card's on-chip memory has had an uncorrectable error since the driver was loaded.",
        f"{_RESET_FIRST}; if the error comes back, have the card replaced.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_ECC_UNCORRECTED: _warn(
        "The card's memory has had uncorrectable errors since the driver was loaded. The next reset replaces the row"
        " (see"
        " GPU_ROW_REMAP_PENDING). Do not trust what the job computed with it.",
        f"{_RESET_FIRST}.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_ECC_SRAM_CORRECTED: _warn(
        "The card's on-chip memory had many corrected errors.", "Watch the count; if it grows, have the card replaced."
    ),
    Code.GPU_ECC_DRAM_CORRECTED: _warn(
        "The card's memory had very many corrected errors.", "Watch the count; if it grows, have the card replaced."
    ),
    Code.GPU_ROW_REMAP_PENDING: _bad(
        "A row of the card's memory is broken. The next reset replaces it with a spare row.",
        f"{_RESET_FIRST}.",
        Action.RESET_DEVICE,
        lasting=True,
    ),
    Code.GPU_ROW_REMAP_FAILED: _bad(
        "A broken row of the card's memory could not be replaced: no spare row is left.",
        "Have the card replaced.",
        Action.RMA,
        lasting=True,
    ),
    Code.GPU_PAGES_PENDING: _bad(
        "A page of the card's memory is broken (cards before Ampere). The next reset takes it out of use.",
        f"{_RESET_FIRST}.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_PAGES_RETIRED: _warn(
        "Many pages of the card's memory are out of use (cards before Ampere have room for 64).",
        "Have the card replaced.",
        Action.RMA,
    ),
    Code.GPU_CLOCKS_LOW: _warn(
        "The card works at a clock far below its highest one, and not because of its power limit: the driver slows it"
        " down for heat, or somebody set a lower clock for programs. The slowest card sets the speed of the whole job.",
        "Heat: check fans and inlet air. A lower clock for programs: undo it with `nvidia-smi -rac -i CARD`.",
    ),
    Code.GPU_HW_SLOWDOWN: _warn(
        "The hardware slowed the card down (heat, power brake) for most of the window. The slowest card sets the"
        " speed of"
        " the whole job.",
        "Check fans, inlet temperature and power supplies.",
    ),
    Code.GPU_TEMPERATURE: _warn(
        "The card reached the temperature at which it slows down, several looks in a row.", "Check fans and inlet air."
    ),
    Code.GPU_MEMORY_TEMPERATURE: _warn(
        "The card's memory reached its highest allowed temperature, several looks in a row.",
        "Check fans and inlet air.",
    ),
    Code.GPU_PERSISTENCE_OFF: _warn(
        "Persistence mode is off: after each time without a program, the driver initializes the card again, which takes"
        " seconds and loses settings.",
        "Run nvidia-persistenced, or `nvidia-smi -pm 1`.",
    ),
    Code.GPU_LEFTOVER_PROCESS: _warn(
        "A process outside all muster jobs holds memory of a card that no job uses.",
        "The reason names the process; end it, or add its name to `leftover_ignore`.",
    ),
    Code.GPU_STRANGER_PROCESS: _warn(
        "A process outside the job uses a card that the job holds, and takes memory and time from the job. muster does"
        " not release the card before this process has left it.",
        "The reason names the process; end it, or add its name to `leftover_ignore`.",
    ),
    Code.NVLINK_DOWN: _bad(
        "NVLinks of the card that were up, or should be up, are down.",
        f"{_RESET_FIRST}; if the finding stays, check bridge, baseboard and NVSwitches.",
        Action.RESET_DEVICE,
    ),
    Code.NVLINK_ERRORS: _warn(
        "The card's NVLinks have many errors, or were retrained: the signal is poor, and traffic waits.",
        "Look for Xid 74 and 144 to 150; check bridge, baseboard and NVSwitches; if a reset (`muster node reset CARD`)"
        " does not end it, have card and board inspected.",
    ),
    Code.FABRIC_MANAGER_DOWN: _bad(
        "The node has NVSwitches, but the fabric manager does not run: cards lose their fabric, and new CUDA programs"
        " fail with error 802. The cards still report their state from before it exited.",
        "Run `systemctl restart nvidia-fabricmanager`; its version must be the driver's.",
        Action.INVESTIGATE,
    ),
    Code.FABRIC_NOT_READY: _bad(
        "The card is not registered with the NVSwitch fabric; CUDA programs on it fail with error 802.",
        "Check that nvidia-fabricmanager (or IMEX) runs, and that its version is the driver's.",
        Action.INVESTIGATE,
    ),
    Code.FABRIC_UNHEALTHY: _bad(
        "The card's registration with the NVSwitch fabric failed, or the driver reports the fabric as unhealthy.",
        "Read the log of nvidia-fabricmanager; reset the fabric, or reboot.",
        Action.REBOOT,
    ),
    Code.PCIE_WIDTH_DEGRADED: _warn(
        "The PCI Express link has fewer lanes than card and slot support.",
        "Reseat the card or its riser; look for PCIe errors in the kernel's log.",
    ),
    Code.PCIE_GEN_DEGRADED: _warn(
        "The PCI Express link runs slower than card and slot support, while the card works.",
        "Reseat the card or its riser; look for PCIe errors in the kernel's log.",
    ),
    Code.PCIE_REPLAYS: _warn(
        "The PCI Express link often repeats packets: the signal is poor.", "Reseat the card or its riser."
    ),
    Code.GPU_OFF_BUS: _bad(
        "Xid 79, or the same report without a number: the card fell off the bus.",
        "Reboot; if it happens again, have card, riser and power supply inspected.",
        Action.REBOOT,
        Clears.REBOOT,
    ),
    Code.GPU_INIT_FAILED: _bad(
        "The driver could not initialize the card (RmInitAdapter failed): no program can use it.",
        f"{_RESET_FIRST}; if it happens again, have card, riser and power supply inspected.",
        Action.REBOOT,
        Clears.REBOOT,
        reset_ends=True,
    ),
    Code.GPU_XID_REBOOT: _bad(
        "An Xid after which the card is unreliable until a reboot (74 151).",
        "Let the running job end or fail, then reboot the node.",
        Action.REBOOT,
        Clears.REBOOT,
    ),
    Code.GPU_XID_RESET: _bad(
        "An Xid after which a reset of the card is enough, such as 48, 62, 64, 95, 119, 120 and 140.",
        f"{_RESET_FIRST}. Both end the condition. If you reset the card in another way, run `muster check clear`.",
        Action.RESET_DEVICE,
        Clears.REBOOT,
        reset_ends=True,
    ),
    Code.GPU_XID_INSPECT: _bad(
        "An Xid that points to the hardware (54 81).",
        "Have card, power supply and cabling inspected, then run `muster check clear`.",
        Action.INVESTIGATE,
        Clears.OPERATOR,
    ),
    Code.GPU_XID_REPEATED: _bad(
        "The same fatal Xid came again on the same card, although the node rebooted twice (`xid_reboots`).",
        "Have the card replaced, then run `muster check clear`.",
        Action.RMA,
        Clears.OPERATOR,
    ),
    Code.GPU_XID_APPLICATION: _event(
        "An Xid that a program causes, such as 13 (exception) and 31 (page fault). The rank usually fails with it.",
        "Check the program. If the Xid appears on one card in different jobs, check the card.",
        Action.RESTART_JOB,
    ),
    Code.GPU_XID_OTHER: _event(
        "An Xid without a known action. muster does not hold it against the node.",
        "Look it up in NVIDIA's catalogue of Xids.",
    ),
    Code.GPU_XID_NOTE: _event(
        "An Xid that is only informative, such as 45, 63, 92 and 154.", "Do nothing.", Action.NONE, Status.OK
    ),
    Code.NVSWITCH_FATAL: _bad(
        "An NVSwitch reports a fatal error (SXid).",
        "Reset all cards and switches together, or reboot; read the log of nvidia-fabricmanager.",
        Action.REBOOT,
        Clears.REBOOT,
    ),
    Code.NVSWITCH_ERROR: _event("An NVSwitch reports an error that is not fatal (SXid).", "Watch for more of them."),
    Code.NPU_LOST: _bad(
        "The driver reports that the card was lost.",
        "Reboot, or power cycle the node; `muster node reset CARD --force` tries a reset first.",
        Action.REBOOT,
    ),
    Code.NPU_COUNT: _bad(
        "The number of cards differs from `expected_cards`, or from the number of device nodes.",
        "Look for the missing card in `lspci` and `npu-smi info -m`; reboot; if that does not help, have the hardware"
        " inspected.",
        Action.INVESTIGATE,
    ),
    Code.NPU_NO_ANSWER: _bad(
        "The driver answers a call for this card with an error, several looks in a row.",
        f"The reason gives DCMI's error code; {_OR_REBOOT}.",
        Action.RESET_DEVICE,
    ),
    Code.NPU_ALARM: _warn("The card has a minor alarm.", "`npu-smi info -t health -i CARD` shows it."),
    Code.NPU_UNHEALTHY: _bad(
        "The card has a major or critical alarm.",
        "`npu-smi info -t health -i CARD` shows it; run `muster node reset CARD`; if that does not help, have the card"
        " inspected.",
        Action.RESET_DEVICE,
    ),
    Code.NPU_NOT_BOOTED: _bad(
        "The card has not finished its start, several looks in a row.",
        f"{_RESET_FIRST}.",
        Action.RESET_DEVICE,
    ),
    Code.NPU_FAULT_RESET: _bad(
        "The card reports an error code after which it must be reset (Huawei's MindCluster, or `npu_reset`).",
        "Run `muster node reset CARD` when no job uses the card; if it happens again, have the card inspected.",
        Action.RESET_DEVICE,
    ),
    Code.NPU_FAULT_ISOLATE: _bad(
        "The card reports an error code with which it must get no job (Huawei's MindCluster, or `npu_isolate`).",
        "The reason says whether to isolate it or to replace it; look the code up in Huawei's list of health management"
        " faults.",
        Action.INVESTIGATE,
    ),
    Code.NPU_ERROR_CODES: _warn(
        "The card reports error codes but still works: the job must restart, the card is degraded or needs a reset when"
        " it is idle, or muster does not know the code.",
        "Look the codes up in Huawei's list of health management faults.",
    ),
    Code.NPU_ECC_UNCORRECTED: _warn(
        "The card's memory has had uncorrectable errors.",
        "`npu-smi info -t ecc -i CARD` shows them. Run `muster node reset CARD` when no job uses the card; if they"
        " grow, have the card replaced.",
    ),
    Code.NPU_TEMPERATURE: _warn("The card is too hot, several looks in a row.", "Check fans and inlet air."),
    Code.NPU_NETWORK_DOWN: _bad(
        "The card's RoCE port no longer reaches the network.",
        "Run `hccn_tool -i CARD -link -g` and `hccn_tool -i CARD -net_health -g`; check cable, optics and switch.",
        Action.INVESTIGATE,
    ),
    Code.NPU_FAULT_REPEATED: _bad(
        "The card had the same error code several times within a day. One of them is harmless, but so many are not"
        " (MindCluster's rules of frequency). The card gets no job until an operator clears the condition.",
        "Have the card inspected, then run `muster check clear`.",
        Action.INVESTIGATE,
        Clears.OPERATOR,
    ),
    Code.NPU_STRANGER_PROCESS: _warn(
        "A process outside the job uses a card that the job holds, and takes memory and time from the job. muster does"
        " not release the card before this process has left it.",
        "The reason names the process; end it, or add its name to `leftover_ignore`.",
    ),
    Code.NPU_LEFTOVER_PROCESS: _warn(
        "A process outside all muster jobs holds memory of a card that no job uses.",
        "The reason names the process; end it, or add its name to `leftover_ignore`.",
    ),
    Code.NPU_FAULT_NOTE: _event(
        "An error code that is only informative (Huawei's MindCluster, or `npu_ignore`).",
        "Do nothing.",
        Action.NONE,
        Status.OK,
    ),
    Code.NPU_FAULT_JOB: _event(
        "The card had a fault that ends the work of a job on it and leaves the card usable (Huawei's MindCluster).",
        "Start the job again from its checkpoint; if the fault comes again, have the card inspected.",
        Action.RESTART_JOB,
    ),
    Code.NPU_FAULT_EVENT: _event(
        "The card's driver reported a fault.", "Run `muster check npu-health npu-errors` and `npu-smi info`."
    ),
}

_NODE: dict[Code, Explanation] = {
    Code.IB_PORT_DOWN: _bad(
        "An InfiniBand or RoCE port that was up has been down for minutes.",
        "Check cable, optics and switch; `ibstat` shows the port.",
        Action.INVESTIGATE,
    ),
    Code.IB_PORT_FLAPPING: _warn(
        "An InfiniBand or RoCE port went down and up again several times.", "Check cable, optics and switch."
    ),
    Code.IB_PORTS_MISSING: _bad(
        "Fewer InfiniBand or RoCE ports are up than `ib_ports` requires.", "`ibstat` shows which.", Action.INVESTIGATE
    ),
    Code.IB_RATE_LOW: _warn("A port runs slower than `ib_rate_gbps` requires.", "Check cable, optics and switch."),
    Code.IB_SYMBOL_ERRORS: _warn(
        "A port received more symbol errors within an hour than `ib_symbol_errors` allows: the signal is poor.",
        "Clean and reseat cable and optics; compare the port at the other end (`ibqueryerrors`).",
    ),
    Code.IB_HARDWARE_WARNING: _event(
        "An adapter reports too little power, or a module that is too hot.", "Check slot power and cooling."
    ),
    Code.NIC_FLAPPING: _warn(
        "The link of a network adapter went down and up again several times.", "Check cable, optics and switch."
    ),
    Code.NIC_LINK_ERRORS: _warn(
        "The link of a network adapter has many errors: wrong checksums, broken frames, a lost carrier.",
        "Check cable, optics and switch; `ethtool -S NAME` has the adapter's own counters.",
    ),
    Code.FS_SPACE_LOW: _warn("A file system is low on free space.", "Remove files that are no longer needed."),
    Code.FS_INODES_LOW: _warn("A file system is low on free inodes.", "Remove files that are no longer needed."),
    Code.FS_UNREADABLE: _unsure("A file system does not answer.", "Check that the path exists and its server answers."),
    Code.FS_NOT_MOUNTED: _bad("A file system that `mounts` names is not mounted.", "Mount it."),
    Code.FS_READ_ONLY: _bad(
        "A file system that was mounted read-write, or that `mounts` names, is read-only.",
        "The kernel's log gives the reason (`dmesg`). Check the file system, and replace the disk if it is broken.",
    ),
    Code.NFS_HANGS: _warn(
        "A network file system does not answer, several looks in a row. Every process that touches it hangs.",
        "Check its server and the network; `umount -f -l` it if no job needs it.",
    ),
    Code.NFS_STALE: _warn(
        "The server no longer knows this mount of a network file system (ESTALE).", "Mount it again."
    ),
    Code.NFS_NOT_RESPONDING: _event(
        "The kernel waits for the server of a network file system.", "Run `muster check nfs`, and check the server."
    ),
    Code.PROCS_D_STATE: _warn(
        "Processes have been waiting in the kernel for minutes, and no signal can end them (state D).",
        "The evidence shows where they wait: a disk, a network file system, a driver. Often only a reboot helps.",
    ),
    Code.ZOMBIES: _warn(
        "Many processes have ended, but their parents do not reap them.", "The reason names the parents; end those."
    ),
    Code.PIDS_NEARLY_FULL: Explanation(
        "The kernel, or this cgroup, is running out of process numbers. WARN and CRITICAL have their own thresholds.",
        "Find the process with many threads; raise kernel.pid_max, kernel.threads-max or pids.max.",
        Status.WARN,
        Action.INVESTIGATE,
    ),
    Code.FD_NEARLY_FULL: Explanation(
        "The kernel is running out of file descriptors. WARN and CRITICAL have their own thresholds.",
        "Find the process with many open files; raise fs.file-max.",
        Status.WARN,
        Action.INVESTIGATE,
    ),
    Code.SUPERVISOR_CRASHING: _aged(
        "The supervisor of a job, or the nursery, dies again and again, or gets no successor. The ranks continue,"
        " `stop` works, and the next supervisor records how ranks ended. The condition clears a minute after the last"
        " death.",
        "The reason gives the last error; the daemon's log and `muster events` have the traceback. Fix what it names: a"
        " disk, a limit. Report a defect.",
        60.0,
    ),
    Code.DAEMON_DEGRADED: _aged(
        "The daemon cannot write to one of its folders or logs, or has no file descriptors left. It still answers,"
        " shows,"
        " explains and stops jobs, but refuses new jobs that it could not record.",
        "The reason names the path and the error: make room, mount it writable, raise the limit. The condition then"
        " clears by itself.",
        30.0,
    ),
    Code.OUTPUT_LOST: _aged(
        "Supervisors cannot write the output of ranks to the file system of the logs. They read, count and discard it,"
        " so that no rank waits. The reason says how much is lost so far, since when, and why.",
        "Fix what the reason names: make room, mount the file system writable, move away what blocks the path of a log."
        " Writing then resumes by itself, and a line in the log says what is missing.",
        30.0,
    ),
    Code.PRIVATE_TMP_LEFT: _aged(
        "A job with a `/tmp` of its own has ended, and muster cannot remove that folder, which takes space on the file"
        " system of `/tmp`. The reason says why.",
        "Fix what the reason names, or remove the folder: muster tries again every five minutes.",
        900.0,
    ),
    Code.KERNEL_LOG_UNREADABLE: _unsure(
        "The kernel's log is not readable, so muster does not see Xids, disk errors and OOM kills. The reason says"
        " which permission or device is missing.",
        "Give the daemon CAP_SYSLOG (AmbientCapabilities= of its unit, `--cap-add SYSLOG` and /dev/kmsg in a"
        " container).",
    ),
    Code.KERNEL_DISK_LOST: Explanation(
        "The kernel gave up a disk or its controller, or an array failed.",
        "Replace the disk. The checks of its file systems show what depends on it.",
        Status.WARN,
        Action.INVESTIGATE,
        Clears.REBOOT,
    ),
    Code.KERNEL_DISK_TIMEOUT: _aged("A disk did not answer the kernel in time.", "Look at the disk's health (SMART)."),
    Code.KERNEL_IO_ERROR: _aged("The kernel could not read or write a disk.", "Look at the disk's health (SMART)."),
    Code.KERNEL_FS_ERROR: _aged(
        "The kernel found an error in a file system.", "Check the file system; look at the disk's health."
    ),
    Code.KERNEL_FS_READ_ONLY: _aged(
        "The kernel made a file system read-only after an error.", "Check the file system; look at the disk's health."
    ),
    Code.KERNEL_SOFT_LOCKUP: _event(
        "A CPU was stuck in the kernel for a long time (soft or hard lockup, RCU stall).",
        "Read the stack in the kernel's log.",
    ),
    Code.KERNEL_HUNG_TASK: _event(
        "A process waited in the kernel for two minutes.",
        "Read the stack in the kernel's log; run `muster check d-state`.",
    ),
    Code.KERNEL_OOPS: _aged(
        "The kernel itself failed (oops, BUG) and continued.",
        "Reboot at the next opportunity; report the stack.",
        7 * _DAY,
    ),
    Code.KERNEL_MACHINE_CHECK: _bad(
        "The processor reported an error that it could not correct (machine check exception).",
        "Reboot; if it happens again, have processor, memory and board inspected.",
        Action.REBOOT,
        Clears.REBOOT,
    ),
    Code.KERNEL_PEERMEM: _event(
        "The module nvidia_peermem found memory of a process that has exited; jobs here may lose GPUDirect RDMA.",
        "If jobs fail with errors of InfiniBand afterwards, load the module again: `modprobe -r nvidia_peermem &&"
        " modprobe nvidia_peermem`.",
    ),
    Code.KERNEL_MEMORY_CORRECTED: _event(
        "The node's memory had a corrected error.",
        "Do nothing; if there are many, replace the memory module.",
        Action.NONE,
        Status.OK,
    ),
    Code.KERNEL_MEMORY_UNCORRECTED: _aged(
        "The node's memory or a CPU had an uncorrectable error.",
        "Have the memory module replaced; the management controller of the machine names it.",
        7 * _DAY,
    ),
    Code.KERNEL_PCIE_ERROR: _event(
        "A PCI Express device reports an uncorrectable error.", "Reseat the card or its riser."
    ),
    Code.OOM_KILL: _event(
        "The kernel ran out of memory and killed a process. If it was a rank's process, the outcome of the rank says"
        " so.",
        "Give the job more memory, or make it use less.",
        Action.NONE,
    ),
}

#: Every code is in it (a test holds that).
EXPLANATIONS: Mapping[Code, Explanation] = MappingProxyType(_PRE_CHECKS | _CARDS | _NODE)


def explain(code: str) -> tuple[Code, Explanation]:
    """The code of this name, in whatever case, and what it means. Raises UnknownCode."""
    try:
        found = Code(code.strip().upper())
    except ValueError:
        from muster.probes.settings import near_names  # commands that explain a code do without it

        near = near_names(code.strip().upper(), list(Code))
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UnknownCode(f"no code {code!r}{hint}; `muster check --list -o json` has all of them") from None
    return found, EXPLANATIONS[found]
