"""What each code means, what to do about it, and how the condition that it makes goes away: one table for all of them.

A check says what it saw; status and action of a code are here, so that a finding is judged in the same way wherever it
comes from. `muster check explain CODE` shows a row, and docs/reference/checks.md lists all.
"""

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from muster.probes.checks.result import Action, Code, Status


class Clears(enum.StrEnum):
    """How a condition goes away. An operator's `clear` ends each of them."""

    READING = "reading"  # a later look of the same check does not find it any more
    REBOOT = "reboot"  # the node has another boot id
    OPERATOR = "operator"  # nothing but that
    AGE = "age"  # it was not seen again for so long


class UnknownCode(ValueError):
    """Raised when somebody asks for a code that does not exist. The message names the nearest."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One code: what it means and what an operator does about it, in sentences.

    `condition` tells whether a result with this code is something that is wrong *now*; without it the code is that of
    an event, or says that nothing is wrong. `age_s` (seconds) counts with `clears` AGE alone. `steady`: it does not
    come and go, so that one look which does not find it ends it. `presence`: it is about which cards there are; it
    says nothing of those that a job can get.
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


_DAY = 86_400.0


def _fine(what: str, status: Status = Status.OK) -> Explanation:
    return Explanation(what, "Nothing.", status, Action.NONE, condition=False)


def _off(what: str) -> Explanation:
    return _fine(what, Status.NOT_APPLICABLE)


def _warn(what: str, remedy: str, action: Action = Action.INVESTIGATE) -> Explanation:
    return Explanation(what, remedy, Status.WARN, action)


def _bad(
    what: str, remedy: str, action: Action = Action.DRAIN, clears: Clears = Clears.READING, *, steady: bool = False
) -> Explanation:
    return Explanation(what, remedy, Status.CRITICAL, action, clears, steady=steady)


def _unsure(what: str, remedy: str, *, condition: bool = True, steady: bool = False) -> Explanation:
    return Explanation(what, remedy, Status.UNKNOWN, Action.INVESTIGATE, condition=condition, steady=steady)


def _event(what: str, remedy: str, action: Action = Action.INVESTIGATE, status: Status = Status.WARN) -> Explanation:
    return Explanation(what, remedy, status, action, condition=False)


def _aged(what: str, remedy: str, age_s: float = _DAY) -> Explanation:
    return Explanation(what, remedy, Status.WARN, Action.INVESTIGATE, Clears.AGE, age_s=age_s)


def _differs(what: str, remedy: str, status: Status = Status.WARN) -> Explanation:
    return Explanation(what, remedy, status, Action.INVESTIGATE, steady=True, presence=True)


_MEND_SCRIPT = "Mend the script; its exit code must be 0, 1, 2 or 3 (OK, WARN, CRITICAL, UNKNOWN)."
_AFTER_RESET = "Let the jobs on the card end, then `nvidia-smi --gpu-reset -i CARD` or a reboot"

_PRE_CHECKS: dict[Code, Explanation] = {
    Code.DNS_OK: _fine("Every name of the job's nodes and of the .host files resolves."),
    Code.DNS_NO_NAMES: _off("There is no name to ask for."),
    Code.DNS_NAME_UNRESOLVED: _bad(
        "A name of the job's nodes, or of a .host file, is unknown here.",
        "Look at /etc/hosts, the .host file and the search domains of /etc/resolv.conf.",
    ),
    Code.DNS_SERVER_FAILED: _bad(
        "The name server gave no answer, twice.", "Look whether the name server is reachable."
    ),
    Code.DNS_NAME_INVALID: _bad("What is in the list of names is no host name.", "Correct the list."),
    Code.DNS_RESOLVER_ERROR: _unsure("The resolver itself failed.", "Look for a want of memory or of descriptors."),
    Code.DNS_HOST_FILE_UNREADABLE: _unsure(
        "A .host file is not readable, not text, over 1 MiB, or there are over 4096 names in all.",
        "Correct the file or the setting `host_files`.",
    ),
    Code.DISK_OK: _fine("The file system is large enough."),
    Code.DISK_OFF: _off("The path is set to nothing."),
    Code.DISK_PATH_ABSENT: _off("The path does not exist on this host."),
    Code.DISK_PATH_REQUIRED: _bad("The path does not exist, and the settings require it.", "Mount it."),
    Code.DISK_SIZE_TOO_SMALL: _bad(
        "The file system is smaller than a job needs.",
        "Give the node a larger one; for /dev/shm of a container, `--shm-size`.",
    ),
    Code.DISK_SPACE_LOW: _warn("Little of the space is free.", "Remove what earlier jobs left."),
    Code.DISK_INODES_LOW: _warn("Few of the inodes are free.", "Remove what earlier jobs left."),
    Code.DISK_READ_ONLY: _warn(
        "A file system that jobs write to is mounted read-only.",
        "Look in the kernel's log for file system errors; mount it read-write.",
    ),
    Code.DISK_SIZE_NOT_TOLD: _unsure("The file system does not tell its size.", "Look at it with `df`."),
    Code.DISK_UNREADABLE: _unsure("The file system cannot be asked.", "Look whether its server or disk answers."),
    Code.ULIMIT_OK: _fine("The limits that ranks get are high enough."),
    Code.ULIMIT_OFF: _off("The check is switched off."),
    Code.ULIMIT_NO_INFINIBAND: _off("There is no InfiniBand adapter, for which the limits would have to be high."),
    Code.ULIMIT_TOO_LOW: _bad(
        "A limit that ranks would get is too low for InfiniBand.",
        "Raise `Limit...=` in musterd's unit, `--ulimit` of the container, or the job's own `limits`.",
    ),
    Code.ULIMIT_NOT_ALLOWED: _bad(
        "The job asks for more than the hard limit, or than fs.nr_open.",
        "Ask for less, or raise the hard limit of musterd.",
        Action.INVESTIGATE,
    ),
    Code.ULIMIT_UNREADABLE: _unsure("The limits that ranks would get cannot be read.", "Look at /proc/PID/limits."),
    Code.CARDS_OK: _fine("Every card that the job wants is there, and answers."),
    Code.CARDS_NOT_WANTED: _off("The job wants no cards."),
    Code.CARDS_ARE_SLOTS: _off("The host has slots instead of cards: there is nothing to ask."),
    Code.CARDS_NONE_FOUND: _bad("The host shows no cards.", "Look at the driver and the devices of the container."),
    Code.CARDS_TOO_FEW: _bad("The host shows fewer cards than are wanted.", "Look at `muster check gpu-lost`."),
    Code.CARDS_MISSING: _bad("A card of this number is not there.", "Look at `muster check gpu-lost`."),
    Code.CARDS_LIBRARY_MISSING: _bad(
        "Device nodes are there, the driver's library is not.", "Install it, or give it to the container."
    ),
    Code.CARDS_DRIVER_FAILED: _bad(
        "The driver does not start: not loaded, or of another version than its library.",
        "Load it, or reboot after an update.",
    ),
    Code.CARDS_NO_ANSWER: _bad(
        "The driver has no such card, or the card is lost or must be reset.", "Reset the card, or reboot."
    ),
    Code.CARDS_UNHEALTHY: _bad(
        "An Ascend card has a major or critical alarm.", "`npu-smi info -t health -i CARD` says which."
    ),
    Code.CARDS_NOT_TOLD: _unsure(
        "The driver does not tell: no permission, not supported, no memory. Nothing is known against the card.",
        "Look at the rights of the daemon.",
    ),
    Code.CUSTOM_OK: _fine("The check of one's own found nothing."),
    Code.CUSTOM_WARN: _warn("The check of one's own warns.", "Its message says of what."),
    Code.CUSTOM_CRITICAL: _bad("The check of one's own says that the node is not fit.", "Its message says why."),
    Code.CUSTOM_UNKNOWN: _unsure("The check of one's own could not tell.", "Its message says why."),
    Code.CUSTOM_BAD_EXIT_CODE: _unsure("The check ended with a code that means nothing.", _MEND_SCRIPT),
    Code.CUSTOM_SIGNALLED: _unsure("The check was ended by a signal.", _MEND_SCRIPT),
    Code.CUSTOM_NOT_EXECUTABLE: _unsure("The check could not be executed.", "Mend its first line or its rights."),
    Code.CUSTOM_TOO_MUCH_OUTPUT: _unsure("The check wrote more than 1 MiB and was ended.", "Mend the script."),
    Code.CUSTOM_UNSAFE: _unsure(
        "The check was not run: others may write it.", "`chown root` and `chmod go-w` on the file and its folder."
    ),
    Code.CUSTOM_FOLDER_UNREADABLE: _unsure("The folder of the checks cannot be listed.", "Look at `custom_dir`."),
    Code.PROBE_TIMED_OUT: _unsure(
        "The check had no answer in time: something that it asks hangs. Nothing is known against the node.",
        "The reason names what hangs: a file system's server, a driver, a resolver.",
    ),
    Code.PROBE_FAILED: _unsure("The check itself is broken. Nothing is known against the node.", "Report it."),
    Code.NODE_OK: _fine("The check found nothing wrong."),
    Code.NODE_PENDING: _fine(
        "The check saw something that counts only when several looks in a row agree, which they do not yet."
    ),
    Code.NODE_NOT_APPLICABLE: _off(
        "There is nothing here that the check could look at: no such hardware, or a reading that this card does"
        " not give."
    ),
    Code.NODE_NOT_TOLD: _unsure(
        "A reading could not be had this time. It makes no condition and ends none.",
        "The check `driver` says what is wrong with the driver, if something is.",
        condition=False,
    ),
}

_CARDS: dict[Code, Explanation] = {
    Code.DRIVER_NOT_LOADED: _bad(
        "The cards' kernel module is not loaded.",
        "Load it; the kernel's log says why it is not (`dmesg`).",
        steady=True,
    ),
    Code.DRIVER_MISMATCH: _bad(
        "The driver's library and its kernel module are of different versions, as after an update.",
        "Reload the kernel module, or reboot.",
        Action.REBOOT,
        steady=True,
    ),
    Code.DRIVER_LIBRARY_MISSING: _bad(
        "Cards are there, the driver's library (libnvidia-ml.so.1, libdcmi.so) is not.",
        "Install the driver's libraries, or give them to the container (for NVIDIA the `utility` capability).",
        steady=True,
    ),
    Code.DRIVER_FAILED: _bad(
        "The driver does not start.", "The reason has the driver's own words; reload it, or reboot.", steady=True
    ),
    Code.DRIVER_HANG: _unsure(
        "A call of the driver does not return, for one card or for all. Other cards are asked on; a job is never"
        " refused for this alone, since nothing is known.",
        "Look for processes in state D (`muster check d-state`) and for Xids; a reboot usually ends it.",
        steady=True,
    ),
    Code.CARD_MISSING: _differs(
        "A card that the node had is not there any more: the driver does not show it. It is remembered over restarts"
        " and reboots, until it is back or an operator accepts that it is gone. Jobs that want other cards still come.",
        "Look for it in `lspci` and in the kernel's log; reboot, else have the hardware looked at. If it was taken out,"
        " `muster node accept CARD`.",
        Status.CRITICAL,
    ),
    Code.CARD_REPLACED: _differs(
        "Another card is in the place of one that the node had.",
        "If that is meant, `muster node accept CARD`; else find out who changed the hardware.",
    ),
    Code.CARD_MOVED: _differs(
        "A card that the node had is in another place on the PCI bus, as after a change of slots or firmware settings.",
        "If that is meant, `muster node accept CARD`; it has no other effect.",
    ),
    Code.CARD_NEW: _differs(
        "A card is there that the node did not have, in a place where none was.",
        "If that is meant, `muster node accept CARD`; it can be used all the same.",
    ),
    Code.CARD_NOT_SHOWN: _differs(
        "The PCI bus has a card of the maker that the driver's library does not show. WARN where it may be meant so: a"
        " display adapter without a driver, or one that is seen from within a container. Cards that are kept for"
        " virtual machines (vfio) are not muster's and no finding.",
        "The kernel's log says why the driver did not start the card; reload the driver, or reboot. If that is meant,"
        " `muster node accept CARD`.",
        Status.CRITICAL,
    ),
    Code.CARD_DRIVER_GONE: _differs(
        "The node had cards, and no driver shows any: its library was removed, its kernel module is not loaded, or all"
        " cards are gone. WARN where the driver of another maker answers, and in a container that was not given them.",
        "Install or load the driver. If the node is to have no cards any more, `muster node accept --all`.",
        Status.CRITICAL,
    ),
    Code.CARD_COUNT: _bad(
        "No card is there, and no driver of one, but `expected_cards` says that there should be some.",
        "Install or load the driver; look for the cards in `lspci`.",
        Action.INVESTIGATE,
        steady=True,
    ),
    Code.GPU_LOST: _bad(
        "The driver says that the card fell off the bus.",
        "Reboot; when it happens again have card, riser and power looked at.",
        Action.REBOOT,
    ),
    Code.GPU_COUNT: _bad(
        "The host has another number of cards than it should: than `expected_cards` says, or than there are device"
        " nodes.",
        "Look for the missing one in `lspci` and in the kernel's log; reboot, else have the hardware looked at.",
        Action.INVESTIGATE,
    ),
    Code.GPU_NO_ANSWER: _bad(
        "The driver answers a call for this card with an error, several looks in a row.",
        "The reason has the driver's code; reset the card, or reboot.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_RESET_REQUIRED: _bad(
        "The driver says that the card works again only after a reset.", f"{_AFTER_RESET}.", Action.RESET_DEVICE
    ),
    Code.GPU_REBOOT_REQUIRED: _bad(
        "The driver says that the card works again only after a reboot of the node.", "Reboot.", Action.REBOOT
    ),
    Code.GPU_DRAIN_REQUIRED: _bad(
        "The driver asks for the end of all work between cards (P2P) before the card is used again.",
        "Let the node's jobs end, then clear it; a reset if it stays.",
        Action.DRAIN,
    ),
    Code.GPU_ECC_SRAM_UNCORRECTED: _bad(
        "The card's on-chip memory has had an error that could not be corrected since the driver was loaded.",
        f"{_AFTER_RESET}; when it comes back have the card replaced.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_ECC_UNCORRECTED: _warn(
        "The card's memory has had errors that could not be corrected since the driver was loaded. The row is"
        " replaced at the next reset (see GPU_ROW_REMAP_PENDING); what the job computed with it is suspect.",
        f"{_AFTER_RESET}.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_ECC_SRAM_CORRECTED: _warn(
        "The card's on-chip memory had many errors that were corrected.", "Watch it; have it replaced if they grow."
    ),
    Code.GPU_ECC_DRAM_CORRECTED: _warn(
        "The card's memory had very many errors that were corrected.", "Watch it; have it replaced if they grow."
    ),
    Code.GPU_ROW_REMAP_PENDING: _bad(
        "A row of the card's memory is broken and will be replaced by a spare one at the next reset.",
        f"{_AFTER_RESET}.",
        Action.RESET_DEVICE,
    ),
    Code.GPU_ROW_REMAP_FAILED: _bad(
        "A broken row of the card's memory could not be replaced: there is no spare one left.",
        "Have the card replaced.",
        Action.RMA,
    ),
    Code.GPU_HW_SLOWDOWN: _warn(
        "The hardware slows the card down (heat, power brake) for most of the window. A gang is as slow as that card.",
        "Look at fans, inlet temperature and power supplies.",
    ),
    Code.GPU_TEMPERATURE: _warn(
        "The card is at the temperature at which it slows down, several looks in a row.", "Look at fans and inlet air."
    ),
    Code.GPU_MEMORY_TEMPERATURE: _warn(
        "The card's memory is at its highest allowed temperature, several looks in a row.",
        "Look at fans and inlet air.",
    ),
    Code.GPU_PERSISTENCE_OFF: _warn(
        "Persistence mode is off: the driver initializes the card anew for each first user, which takes seconds, and"
        " forgets settings.",
        "Run nvidia-persistenced, or `nvidia-smi -pm 1`.",
    ),
    Code.GPU_LEFTOVER_PROCESS: _warn(
        "A process that belongs to no job of muster holds memory of a card that no job has.",
        "The reason names it; end it, or put its name into `leftover_ignore`.",
    ),
    Code.NVLINK_DOWN: _bad(
        "NVLinks of the card are down that were up, or that should be up.",
        f"{_AFTER_RESET}; when it stays look at bridge, baseboard and NVSwitches.",
        Action.RESET_DEVICE,
    ),
    Code.FABRIC_NOT_READY: _bad(
        "The card is not registered with the NVSwitch fabric; CUDA programs on it fail with error 802.",
        "Look whether nvidia-fabricmanager (or IMEX) runs, in the driver's version.",
        Action.INVESTIGATE,
    ),
    Code.FABRIC_UNHEALTHY: _bad(
        "The card's registration with the NVSwitch fabric failed, or the driver calls the fabric unhealthy.",
        "Look into the log of nvidia-fabricmanager; reset the fabric, or reboot.",
        Action.REBOOT,
    ),
    Code.PCIE_WIDTH_DEGRADED: _warn(
        "The PCI Express link has fewer lanes than card and slot can have.",
        "Reseat the card or its riser; look for PCIe errors in the kernel's log.",
    ),
    Code.PCIE_GEN_DEGRADED: _warn(
        "The PCI Express link runs slower than card and slot can, while the card works.",
        "Reseat the card or its riser; look for PCIe errors in the kernel's log.",
    ),
    Code.PCIE_REPLAYS: _warn(
        "Packets on the PCI Express link are repeated often: the signal is poor.", "Reseat the card or its riser."
    ),
    Code.GPU_OFF_BUS: _bad(
        "Xid 79, or the same told without a number: the card fell off the bus.",
        "Reboot; when it happens again have card, riser and power looked at.",
        Action.REBOOT,
        Clears.REBOOT,
    ),
    Code.GPU_XID_REBOOT: _bad(
        "An Xid after which the card is not to be trusted before a reboot (48 62 64 74 95 119 120 140).",
        "Let the running job end or fail, then reboot the node.",
        Action.REBOOT,
        Clears.REBOOT,
    ),
    Code.GPU_XID_RESET: _bad(
        "An Xid after which NVIDIA's catalogue asks for a reset of the card.",
        f"{_AFTER_RESET}, then `muster check clear`.",
        Action.RESET_DEVICE,
        Clears.REBOOT,
    ),
    Code.GPU_XID_INSPECT: _bad(
        "An Xid that points to the hardware (54 81 143).",
        "Have card, power and cabling looked at, then `muster check clear`.",
        Action.INVESTIGATE,
        Clears.OPERATOR,
    ),
    Code.GPU_XID_REPEATED: _bad(
        "The same fatal Xid on the same card again, after two reboots (`xid_reboots`) did not mend it.",
        "Have the card replaced, then `muster check clear`.",
        Action.RMA,
        Clears.OPERATOR,
    ),
    Code.GPU_XID_APPLICATION: _event(
        "An Xid that a program causes, such as 13 (exception) and 31 (page fault). The job's rank usually fails"
        " with it.",
        "Look at the program; only if it follows a card through different jobs, at the card.",
        Action.RESTART_JOB,
    ),
    Code.GPU_XID_OTHER: _event(
        "An Xid for which no action is known. It is never held against the node.",
        "NVIDIA's catalogue of Xids says more.",
    ),
    Code.GPU_XID_NOTE: _event(
        "An Xid that is told for information: 45, 63, 92, 154 and such.", "Nothing.", Action.NONE, Status.OK
    ),
    Code.NVSWITCH_FATAL: _bad(
        "An NVSwitch reports a fatal error (SXid).",
        "Reset all cards and switches together, or reboot; look into the log of nvidia-fabricmanager.",
        Action.REBOOT,
        Clears.REBOOT,
    ),
    Code.NVSWITCH_ERROR: _event("An NVSwitch reports an error that is not fatal (SXid).", "Watch it."),
    Code.NPU_LOST: _bad(
        "The driver says that the card is gone.",
        "Reset the card (`npu-smi set -t reset -i CARD -c CHIP`), or reboot.",
        Action.REBOOT,
    ),
    Code.NPU_COUNT: _bad(
        "The host has another number of cards than it should: than `expected_cards` says, or than there are device"
        " nodes.",
        "Look for the missing one in `lspci` and `npu-smi info -m`; reboot, else have the hardware looked at.",
        Action.INVESTIGATE,
    ),
    Code.NPU_NO_ANSWER: _bad(
        "The driver answers a call for this card with an error, several looks in a row.",
        "The reason has DCMI's code; reset the card, or reboot.",
        Action.RESET_DEVICE,
    ),
    Code.NPU_ALARM: _warn("The card has a minor alarm.", "`npu-smi info -t health -i CARD` says which."),
    Code.NPU_UNHEALTHY: _bad(
        "The card has a major or critical alarm.",
        "`npu-smi info -t health -i CARD` says which; reset the card, else have it looked at.",
        Action.RESET_DEVICE,
    ),
    Code.NPU_NOT_BOOTED: _bad(
        "The card has not finished to start, several looks in a row.", "Reset the card, or reboot.", Action.RESET_DEVICE
    ),
    Code.NPU_ERROR_CODES: _warn(
        "The card reports error codes. How grave they are says its health (NPU_ALARM, NPU_UNHEALTHY).",
        "Huawei's list of health management faults has each code.",
    ),
    Code.NPU_ECC_UNCORRECTED: _warn(
        "The card's memory has had errors that could not be corrected.",
        "`npu-smi info -t ecc -i CARD`; reset the card when no job is on it, have it replaced if they grow.",
    ),
    Code.NPU_TEMPERATURE: _warn("The card is too hot, several looks in a row.", "Look at fans and inlet air."),
    Code.NPU_NETWORK_DOWN: _bad(
        "The card's RoCE port does not reach the network, although it did.",
        "`hccn_tool -i CARD -link -g` and `-net_health -g`; look at cable, optics and switch.",
        Action.INVESTIGATE,
    ),
    Code.NPU_LEFTOVER_PROCESS: _warn(
        "A process that belongs to no job of muster holds memory of a card that no job has.",
        "The reason names it; end it, or put its name into `leftover_ignore`.",
    ),
    Code.NPU_FAULT_EVENT: _event(
        "The card's driver reported a fault.", "Look at `muster check npu-health npu-errors` and npu-smi."
    ),
}

_NODE: dict[Code, Explanation] = {
    Code.IB_PORT_DOWN: _bad(
        "An InfiniBand or RoCE port that was up is down for minutes.",
        "Look at cable, optics and switch; `ibstat` shows the port.",
        Action.INVESTIGATE,
    ),
    Code.IB_PORT_FLAPPING: _warn(
        "An InfiniBand or RoCE port went down and up again several times.", "Look at cable, optics and switch."
    ),
    Code.IB_PORTS_MISSING: _bad(
        "Fewer InfiniBand or RoCE ports are up than `ib_ports` says.", "`ibstat` shows which.", Action.INVESTIGATE
    ),
    Code.IB_RATE_LOW: _warn("A port runs slower than `ib_rate_gbps` says.", "Look at cable, optics and switch."),
    Code.IB_HARDWARE_WARNING: _event(
        "An adapter reports too little power, or a module that is too hot.", "Look at slot power and cooling."
    ),
    Code.FS_SPACE_LOW: _warn("Little of the space of a file system is free.", "Remove what nobody needs."),
    Code.FS_INODES_LOW: _warn("Few of the inodes of a file system are free.", "Remove what nobody needs."),
    Code.FS_UNREADABLE: _unsure(
        "A file system cannot be asked.", "Look whether the path exists and its server answers."
    ),
    Code.FS_NOT_MOUNTED: _bad("A file system that `mounts` names is not mounted.", "Mount it."),
    Code.FS_READ_ONLY: _bad(
        "A file system that was mounted read-write, or that `mounts` names, is read-only.",
        "The kernel's log says why (`dmesg`); check the file system, replace the disk.",
    ),
    Code.NFS_HANGS: _warn(
        "A network file system does not answer, several looks in a row. Whatever touches it hangs, too.",
        "Look at its server and the network; `umount -f -l` if it is not needed.",
    ),
    Code.NFS_STALE: _warn("A network file system is mounted whose server has forgotten it.", "Mount it anew."),
    Code.NFS_NOT_RESPONDING: _event(
        "The kernel waits for the server of a network file system.", "Look at `muster check nfs` and the server."
    ),
    Code.PROCS_D_STATE: _warn(
        "Processes wait in the kernel for minutes and cannot be killed (state D).",
        "The evidence tells where they wait: a disk, a network file system, a driver. Often only a reboot ends it.",
    ),
    Code.ZOMBIES: _warn(
        "Many processes have ended and their parents do not ask for it.", "The reason names the parents; end those."
    ),
    Code.PIDS_NEARLY_FULL: Explanation(
        "The kernel's process numbers, or those of this cgroup, are nearly used up. WARN and CRITICAL by two"
        " thresholds.",
        "Find who has so many threads; raise kernel.pid_max, kernel.threads-max or pids.max.",
        Status.WARN,
        Action.INVESTIGATE,
    ),
    Code.FD_NEARLY_FULL: Explanation(
        "The kernel's file descriptors are nearly used up. WARN and CRITICAL by two thresholds.",
        "Find who has so many; raise fs.file-max.",
        Status.WARN,
        Action.INVESTIGATE,
    ),
    Code.SUPERVISOR_CRASHING: _aged(
        "The supervisor of a job, or the nursery, dies again and again, or gets no successor. The ranks live on, `stop`"
        " works, and ends are recorded by the next supervisor that lives. It clears a minute after the last death.",
        "The reason has the last error, the daemon's log and `muster events` the traceback. Mend what it names: a disk,"
        " a limit. A defect is worth a report.",
        60.0,
    ),
    Code.DAEMON_DEGRADED: _aged(
        "The daemon cannot write one of its folders or logs, or has no file descriptors left. It answers, shows,"
        " explains and stops; new jobs are refused where they could not be recorded.",
        "The reason names the path and the error: make room, mount it writable, raise the limit. It heals by itself.",
        30.0,
    ),
    Code.OUTPUT_LOST: _aged(
        "The file system of the logs takes no output of ranks: it is read, counted and thrown away, so that no rank"
        " waits for it. The reason says how much so far, since when, and why.",
        "Mend what the reason names: make room, mount it writable, move away what stands in a log's place. Writing"
        " resumes by itself, with a line in the log that says what is missing.",
        30.0,
    ),
    Code.KERNEL_LOG_UNREADABLE: _unsure(
        "The kernel's log cannot be read, so Xids, disk errors and OOM kills are not seen there. The reason says"
        " what is"
        " missing.",
        "Give the daemon CAP_SYSLOG (AmbientCapabilities= of its unit, `--cap-add SYSLOG` and /dev/kmsg in a"
        " container).",
    ),
    Code.KERNEL_DISK_LOST: Explanation(
        "The kernel gave up a disk or its controller, or an array failed with it.",
        "Replace the disk. What depends on it says the checks of its file systems.",
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
        "A CPU was stuck in the kernel for long (soft or hard lockup, RCU stall).",
        "Look at the stack in the kernel's log.",
    ),
    Code.KERNEL_HUNG_TASK: _event(
        "A process waited in the kernel for two minutes.", "Look at the stack in the kernel's log, and at `d-state`."
    ),
    Code.KERNEL_OOPS: _aged(
        "The kernel itself failed (oops, BUG) and went on.", "Reboot at the next occasion; report the stack.", 7 * _DAY
    ),
    Code.KERNEL_MEMORY_CORRECTED: _event(
        "The node's memory had an error that was corrected.",
        "Nothing; replace the module if they are many.",
        Action.NONE,
        Status.OK,
    ),
    Code.KERNEL_MEMORY_UNCORRECTED: _aged(
        "The node's memory or a CPU had an error that could not be corrected.",
        "Have the memory module replaced; the machine's management controller names it.",
        7 * _DAY,
    ),
    Code.KERNEL_PCIE_ERROR: _event(
        "A PCI Express device reports an error that could not be corrected.", "Reseat the card or its riser."
    ),
    Code.OOM_KILL: _event(
        "The kernel killed a process for want of memory. If it was a rank's, its outcome says so.",
        "Give the job more memory, or let it use less.",
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
        near = difflib.get_close_matches(code.strip().upper(), list(Code), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UnknownCode(f"no code {code!r}{hint}; `muster check --list -o json` has all of them") from None
    return found, EXPLANATIONS[found]
