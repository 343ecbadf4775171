"""Checks whose findings come from events: a look tells what happened since the boot, or since it was cleared."""

from muster.probes.checks.result import Code
from muster.probes.node.node_check import NodeCheck
from muster.probes.node.reported import kernel_lines

XID = NodeCheck(
    kernel_lines.XID,
    "Xids of the NVIDIA cards, from the kernel's log and from NVML",
    0.0,
    (
        Code.GPU_OFF_BUS,
        Code.GPU_INIT_FAILED,
        Code.GPU_XID_REBOOT,
        Code.GPU_XID_RESET,
        Code.GPU_XID_INSPECT,
        Code.GPU_XID_REPEATED,
        Code.GPU_XID_APPLICATION,
        Code.GPU_XID_OTHER,
        Code.GPU_XID_NOTE,
    ),
    of_cards=True,
)
NVSWITCH = NodeCheck(
    kernel_lines.NVSWITCH,
    "errors of the NVSwitches (SXid), from the kernel's log",
    0.0,
    (Code.NVSWITCH_FATAL, Code.NVSWITCH_ERROR),
    of_cards=True,
)
STORAGE = NodeCheck(
    kernel_lines.STORAGE,
    "errors of disks and file systems, from the kernel's log",
    0.0,
    (
        Code.KERNEL_DISK_LOST,
        Code.KERNEL_DISK_TIMEOUT,
        Code.KERNEL_IO_ERROR,
        Code.KERNEL_FS_ERROR,
        Code.KERNEL_FS_READ_ONLY,
    ),
)
KERNEL = NodeCheck(
    kernel_lines.KERNEL,
    "lockups, hung tasks, failures of the kernel itself and PCIe errors, from its log",
    0.0,
    (
        Code.KERNEL_SOFT_LOCKUP,
        Code.KERNEL_HUNG_TASK,
        Code.KERNEL_OOPS,
        Code.KERNEL_MACHINE_CHECK,
        Code.KERNEL_PEERMEM,
        Code.KERNEL_PCIE_ERROR,
    ),
)
MEMORY = NodeCheck(
    kernel_lines.MEMORY,
    "errors of the node's memory (MCE, EDAC), from the kernel's log",
    0.0,
    (Code.KERNEL_MEMORY_CORRECTED, Code.KERNEL_MEMORY_UNCORRECTED),
)
OOM = NodeCheck(
    kernel_lines.OOM,
    "processes that the kernel killed because it ran out of memory, from its log",
    0.0,
    (Code.OOM_KILL,),
)
