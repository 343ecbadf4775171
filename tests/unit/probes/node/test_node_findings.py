"""From lines of the kernel's log and events of a driver to findings."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.cards.accelerator import ASCEND, NVIDIA, CardEvent
from muster.probes.checks.result import Action, Code, Status
from muster.probes.kernel.kmsg import KernelRecord
from muster.probes.node.node_settings import NodeSettings
from muster.probes.node.reported import npu_codes, xids
from muster.probes.node.reported.findings import Findings, bus_of
from muster.probes.node.reported.kernel_lines import KernelLineReader
from tests.unit.node_looks import gpu

CARDS = {i: gpu(i, bus_id=f"0000:{0x90 + i:02x}:00.0") for i in range(8)}


def record(text, seconds=100.0, seq=1, kernel=True):
    return KernelRecord(seq, seconds, 4, kernel, text)


def read(text):
    return KernelLineReader().read(record(text))


def findings(earlier_boots=lambda card, xid: 0, cards=CARDS, **settings):
    return Findings(lambda: NodeSettings(**settings), cards.values, earlier_boots)


def one(text, **more):
    (found,) = findings(**more).of_records([record(text)])
    return found


def xid_line(number, rest="pid=7, name=python, something", bus="PCI:0000:93:00"):
    return f"NVRM: Xid ({bus}): {number}, {rest}"


@pytest.mark.parametrize(
    ("line", "bus", "number"),
    [
        ("NVRM: Xid (PCI:0000:93:00): 79, pid=7, GPU has fallen off the bus.", "0000:93:00", 79),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14),
        ("NVRM: Xid (PCI:0000:05:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008", "0000:05:00", 31),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)", "0018:01:00", 149),
        ("NVRM: Xid (PCI:0000:9D:00): 63, Row Remapper: New row marked", "0000:9D:00", 63),
    ],
)
def test_xids_in_the_kernels_words(line, bus, number):
    told = read(line)
    assert told is not None
    assert (told.item, told.bus_id, told.number) == ("xid", bus, number)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:93:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:93:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.",
    ],
)
def test_off_the_bus_without_a_number(line):
    found = one(line)
    assert (found.code, found.device, found.number, found.action) == (Code.GPU_OFF_BUS, "card 3", 79, Action.REBOOT)
    assert "\n" not in found.text


def test_a_card_that_the_driver_cannot_initialize():
    found = one("NVRM: GPU 0000:93:00.0: RmInitAdapter failed! (0x26:0xffff:1482)")
    assert (found.item, found.code, found.device) == ("xid", Code.GPU_INIT_FAILED, "card 3")
    assert (found.status, found.action) == (Status.CRITICAL, Action.REBOOT)
    found = one("NVRM: RmInitAdapter failed! (0x26:0xffff:1482)")  # older drivers
    assert (found.item, found.code, found.device) == ("xid", Code.GPU_INIT_FAILED, "")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[Hardware Error]: Uncorrected, software containable error.", Code.KERNEL_MACHINE_CHECK),
        ("[Hardware Error]: System Fatal error.", Code.KERNEL_MACHINE_CHECK),
        ("mce: Uncorrected hardware memory error in user-access at 1c8f4a000", Code.KERNEL_MEMORY_UNCORRECTED),
        ("nv_peer_mem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping", Code.KERNEL_PEERMEM),
        (
            "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 8: be00000000800400",
            Code.KERNEL_MACHINE_CHECK,
        ),
        ("mce: [Hardware Error]: Machine check events logged", Code.KERNEL_MEMORY_CORRECTED),
        (
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
            Code.KERNEL_PEERMEM,
        ),
    ],
)
def test_machine_checks_and_peermem(line, code):
    assert one(line).code is code


def test_off_the_bus_in_several_records():
    lines = [
        "NVRM: The NVIDIA GPU 0000:93:00.0",
        "NVRM: has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    (found,) = findings().of_records([record(text, 100.0 + i / 1e6) for i, text in enumerate(lines)])
    assert (found.code, found.device) == (Code.GPU_OFF_BUS, "card 3")
    late = [record(lines[0], 100.0), record(lines[2], 200.0)]
    (unnamed,) = findings().of_records(late)
    assert (unnamed.code, unnamed.device, unnamed.card) == (Code.GPU_OFF_BUS, "", None)


@pytest.mark.parametrize(
    ("line", "item", "code", "device"),
    [
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress",
            "nvswitch",
            Code.NVSWITCH_ERROR,
            "nvidia-nvswitch3",
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "nvswitch",
            Code.NVSWITCH_FATAL,
            "nvidia-nvswitch0",
        ),
        (
            "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
            "storage",
            Code.KERNEL_DISK_TIMEOUT,
            "nvme4",
        ),
        ("nvme nvme0: I/O 22 QID 5 timeout, aborting", "storage", Code.KERNEL_DISK_TIMEOUT, "nvme0"),
        ("nvme nvme4: Disabling device after reset failure: -19", "storage", Code.KERNEL_DISK_LOST, "nvme4"),
        ("block nvme0n1: no available path - failing I/O", "storage", Code.KERNEL_DISK_LOST, "nvme0n1"),
        (
            "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.",
            "storage",
            Code.KERNEL_DISK_LOST,
            "nvme0n1p1",
        ),
        ("EXT4-fs (md0): Remounting filesystem read-only", "storage", Code.KERNEL_FS_READ_ONLY, "md0"),
        ("BTRFS info (device sdb1: state E): forced readonly", "storage", Code.KERNEL_FS_READ_ONLY, "sdb1"),
        ("BTRFS: Remounting filesystem read-only", "storage", Code.KERNEL_FS_READ_ONLY, ""),
        ("EXT4-fs error (device dm-0): ext4_lookup:1855: inode #2: comm ls", "storage", Code.KERNEL_FS_ERROR, "dm-0"),
        (
            "XFS (nvme1n1): Metadata I/O Error (0x1) detected. Shutting down filesystem.",
            "storage",
            Code.KERNEL_FS_ERROR,
            "nvme1n1",
        ),
        (
            "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write",
            "storage",
            Code.KERNEL_IO_ERROR,
            "dm-0",
        ),
        ("blk_update_request: critical medium error, dev sda, sector 12", "storage", Code.KERNEL_IO_ERROR, "sda"),
        ("I/O error, dev nvme0n1, sector 1234 op 0x1:(WRITE)", "storage", Code.KERNEL_IO_ERROR, "nvme0n1"),
        ("EXT4-fs (dm-0): I/O error while writing superblock", "storage", Code.KERNEL_IO_ERROR, "dm-0"),
        ("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]", "kernel", Code.KERNEL_SOFT_LOCKUP, ""),
        ("rcu: INFO: rcu_preempt self-detected stall on CPU", "kernel", Code.KERNEL_SOFT_LOCKUP, ""),
        ("INFO: task jfsmount:136986 blocked for more than 120 seconds.", "kernel", Code.KERNEL_HUNG_TASK, ""),
        ("BUG: unable to handle page fault for address: ffffc90000", "kernel", Code.KERNEL_OOPS, ""),
        ("Oops: 0002 [#1] SMP NOPTI", "kernel", Code.KERNEL_OOPS, ""),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "memory-errors", Code.KERNEL_MEMORY_UNCORRECTED, "MC0"),
        ("EDAC MC1: 3 CE memory read error on CPU_SrcID#0", "memory-errors", Code.KERNEL_MEMORY_CORRECTED, "MC1"),
        ("{1}[Hardware Error]: event severity: recoverable", "memory-errors", Code.KERNEL_MEMORY_UNCORRECTED, ""),
        ("{1}[Hardware Error]: event severity: corrected", "memory-errors", Code.KERNEL_MEMORY_CORRECTED, ""),
        ("mce: [Hardware Error]: Machine check events logged", "memory-errors", Code.KERNEL_MEMORY_CORRECTED, ""),
        ("Out of memory: Killed process 4711 (python) total-vm:1kB", "oom", Code.OOM_KILL, ""),
        ("Memory cgroup out of memory: Killed process 12 (a) b) total-vm:1kB", "oom", Code.OOM_KILL, ""),
        ("nfs: server 10.0.0.1 not responding, timed out", "nfs", Code.NFS_NOT_RESPONDING, "10.0.0.1"),
        (
            "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W).",
            "ib",
            Code.IB_HARDWARE_WARNING,
            "0000:5c:00.0",
        ),
        (
            "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            "ib",
            Code.IB_HARDWARE_WARNING,
            "0000:5c:00.0",
        ),
        (
            "[ERROR] [drv_soft_fault] [f 1] Heartbeat lost. (device=5; x=1)",
            "npu-errors",
            Code.NPU_FAULT_EVENT,
            "card 5",
        ),
    ],
)
def test_other_lines(line, item, code, device):
    told = read(line)
    assert told is not None
    assert (told.item, told.code, told.device) == (item, code, device)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86",
        "NVRM: GPU at PCI:0000:93:00: GPU-1234",
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
        "EXT4-fs (nvme0n1p2): re-mounted. Opts: errors=remount-ro",
        "blk_update_request: I/O error, dev fd0, sector 0",
        "Buffer I/O error on dev sr0, logical block 0",
        "nvme nvme0: 16/0/0 default/read/poll queues",
        "nfs: server 10.0.0.1 OK",
        "pcieport 0000:00:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        "systemd[1]: Started out of memory notifier",
        "a user wrote: Xid 79",
    ],
)
def test_lines_without_meaning(line):
    assert read(line) is None


def test_a_pcie_error_is_the_cards():
    found = one("nvidia 0000:95:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer")
    assert (found.code, found.device, found.card) == (Code.KERNEL_PCIE_ERROR, "card 5", 5)


@given(st.text(max_size=200))
def test_any_line(text):
    KernelLineReader().read(record(text))
    findings().of_records([record(f"NVRM: Xid ({text}): 79, {text}"), record(text)])


# --- what an Xid asks for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "code", "status", "action"),
    [
        ((13, 31, 43, 137, 170, 94), Code.GPU_XID_APPLICATION, Status.WARN, Action.RESTART_JOB),
        ((45, 92, 63, 154), Code.GPU_XID_NOTE, Status.OK, Action.NONE),
        ((81, 54), Code.GPU_XID_INSPECT, Status.CRITICAL, Action.INVESTIGATE),
        ((74, 151), Code.GPU_XID_REBOOT, Status.CRITICAL, Action.REBOOT),
        ((48, 62, 64, 95, 119, 120, 140, 143), Code.GPU_XID_RESET, Status.CRITICAL, Action.RESET_DEVICE),
        ((46, 109, 110, 136, 155, 156, 158), Code.GPU_XID_RESET, Status.CRITICAL, Action.RESET_DEVICE),
        ((79,), Code.GPU_OFF_BUS, Status.CRITICAL, Action.REBOOT),
        ((1, 61, 999), Code.GPU_XID_OTHER, Status.WARN, Action.INVESTIGATE),
    ],
)
def test_the_policy(numbers, code, status, action):
    for number in numbers:
        found = one(xid_line(number))
        assert (found.code, found.status, found.action, found.number) == (code, status, action, number)
        assert (found.condition is None) == (status is not Status.CRITICAL)


def test_no_number_is_in_two_lists():
    lists = [xids.APPLICATION, xids.NOTE, xids.REBOOT, xids.RESET, xids.INSPECT, xids.NVLINK5, {xids.OFF_BUS}]
    assert len(set().union(*lists)) == sum(map(len, lists))


@pytest.mark.parametrize(("word", "code"), [("Fatal", Code.GPU_XID_RESET), ("Nonfatal", Code.GPU_XID_OTHER)])
def test_nvlink_5_says_itself_how_grave_it_is(word, code):
    assert one(xid_line(149, f"NETIR_LINK_EVT {word} XC0 i0 Link 08 (0x0)")).code is code


def test_numbers_of_ones_own():
    assert one(xid_line(31), xid_fatal="31,13").code is Code.GPU_XID_REBOOT
    assert one(xid_line(74), xid_ignore="74").code is Code.GPU_XID_NOTE
    assert one(xid_line(999), xid_reset="999").code is Code.GPU_XID_RESET
    assert one(xid_line(13), xid_inspect="13", xid_application="13").code is Code.GPU_XID_INSPECT
    assert one(xid_line(48), xid_application="48").code is Code.GPU_XID_APPLICATION
    assert one(xid_line(79), xid_application="79").code is Code.GPU_OFF_BUS


def test_an_xid_of_a_card_that_the_node_does_not_show_is_a_warning():
    """In a container the kernel's log is the host's."""
    found = one(xid_line(79, bus="PCI:0000:07:00"))
    assert (found.status, found.card) == (Status.CRITICAL, None)
    assert found.condition is not None
    assert (found.condition.status, found.condition.action) == (Status.WARN, Action.INVESTIGATE)
    assert "does not show" in found.condition.reason


def test_a_condition_tells_card_xid_and_the_kernels_line():
    condition = one(xid_line(48)).condition
    assert condition is not None
    assert (condition.item, condition.device, condition.card) == ("xid", "card 3", 3)
    assert condition.reason == "Xid 48 (double bit ECC error)"
    assert "kernel log: NVRM: Xid (PCI:0000:93:00): 48, pid=7" in condition.evidence


def test_the_same_after_two_reboots_asks_for_another_card():
    boots = {("GPU-3", 79): 2, ("GPU-4", 79): 1, ("GPU-3", 31): 9}

    def earlier(card, xid):
        return boots.get((card, xid), 0)

    again = one(xid_line(79), earlier_boots=earlier)
    assert (again.code, again.action) == (Code.GPU_XID_REPEATED, Action.RMA)
    assert one(xid_line(79, bus="PCI:0000:94:00"), earlier_boots=earlier).code is Code.GPU_OFF_BUS
    assert one(xid_line(31), earlier_boots=earlier).code is Code.GPU_XID_APPLICATION
    assert one(xid_line(79), earlier_boots=earlier, xid_reboots=0).code is Code.GPU_OFF_BUS


def test_a_card_that_is_not_known_is_named_by_its_place():
    found = one(xid_line(79, bus="PCI:0000:01:00"), earlier_boots=lambda card, xid: 2 if card == "0000:01:00" else 0)
    assert (found.device, found.card, found.code) == ("0000:01:00", None, Code.GPU_XID_REPEATED)


# --- twice told, many alike -------------------------------------------------------------------------------------------


def event(number=79, index=3, text="", kind=NVIDIA, bus_id="0000:93:00.0"):
    return CardEvent(kind, number, index, bus_id, text)


def test_kernel_and_driver_tell_of_one_xid():
    known = findings()
    assert len(known.of_records([record(xid_line(79), 100.0)])) == 1
    assert known.of_events([event()], now=101.0, at=5.0) == []
    # ... and the other way round, and by another spelling of the place.
    assert len(known.of_events([event(index=None, bus_id="0000:94:00.0")], now=200.0, at=5.0)) == 1
    assert known.of_records([record(xid_line(79, bus="PCI:0000:94:00"), 199.5)]) == []


def test_another_card_another_number_and_a_later_one_are_no_doubles():
    known = findings()
    known.of_records([record(xid_line(79), 100.0)])
    assert len(known.of_events([event(index=4, bus_id="0000:94:00.0")], now=100.5, at=5.0)) == 1
    assert len(known.of_events([event(number=48)], now=100.5, at=5.0)) == 1
    assert len(known.of_events([event()], now=103.0, at=5.0)) == 1


def test_the_same_source_twice_is_twice():
    known = findings()
    (found,) = known.of_records([record(xid_line(31), 100.0), record(xid_line(31), 100.1)])
    assert found.count == 2


def test_a_graver_view_is_no_double():
    known = findings()
    (weak,) = known.of_events([event(number=149)], now=100.0, at=5.0)
    assert weak.code is Code.GPU_XID_OTHER
    (grave,) = known.of_records([record(xid_line(149, "NETIR_LINK_EVT Fatal XC0 i0"), 100.2)])
    assert grave.code is Code.GPU_XID_RESET


def test_a_flood_becomes_one_finding_with_its_number():
    lines = [record(f"Buffer I/O error on dev sda, logical block {i}", 100.0, i) for i in range(500)]
    lines.append(record("Buffer I/O error on dev sdb, logical block 1"))
    found = findings().of_records(lines)
    assert [(f.device, f.count) for f in found] == [("sda", 500), ("sdb", 1)]


def test_events_of_drivers():
    known = findings()
    xid, fault, nothing = event(), event(0x80CB8009, 5, kind=ASCEND), event(kind="slot")
    first, second = known.of_events([xid, fault, nothing], now=100.0, at=1234.5)
    assert (first.code, first.text, first.source, first.at) == (
        Code.GPU_OFF_BUS,
        "Xid 79 (the GPU has fallen off the bus)",
        "driver",
        1234.5,
    )
    assert (second.item, second.code, second.number) == ("npu-errors", Code.NPU_FAULT_JOB, 0x80CB8009)
    assert second.device == "card 5" and second.condition is None


def test_fault_events_of_ascend_cards_by_what_they_ask_for():
    codes = (0x80C78008, 0x80E18402, 0x81078603, 0x80E01801, 0x8C104E00, 0x12345678)
    found = findings(npu_ignore="80E18402").of_events(
        [event(code, 5, kind=ASCEND) for code in codes], now=100.0, at=1234.5
    )
    notes, others = [Code.NPU_FAULT_NOTE] * 2, [Code.NPU_FAULT_EVENT] * 2
    assert [f.code for f in found] == [Code.NPU_FAULT_RESET, *notes, Code.NPU_FAULT_JOB, *others]
    condition = found[0].condition
    assert condition is not None and condition.status is Status.CRITICAL and condition.item == "npu-errors"
    assert found[1].condition is None and found[1].status is Status.OK
    (stranger,) = findings().of_events([CardEvent(ASCEND, 0x80C78008, None)], now=100.0, at=1234.5)
    assert stranger.condition is not None and stranger.condition.status is Status.WARN


def test_a_fault_event_says_its_number_and_what_it_asks_for():
    """The remedy sends an operator to both, whatever words the driver has."""
    told = [CardEvent(ASCEND, 0x80E18402, 5, "", text) for text in ("critical: HBM rows", "")]
    first, second = (findings().of_events([one], now=100.0, at=1234.5)[0] for one in told)
    assert first.text == "error code 0x80E18402 (replace it): critical: HBM rows"
    assert second.text == "error code 0x80E18402 (replace it)"
    assert first.condition is not None and first.condition.reason == first.text


def test_the_codes_of_ascend_chips():
    """As many as the list of the device plugin has, each in one level; those that people look for first."""
    known = npu_codes.known()
    assert len(known) == 802
    table = tomllib.loads(Path(npu_codes.__file__).with_suffix(".toml").read_text())
    assert sum(map(len, table.values())) == 802
    assert npu_codes.level_of(0xA2301001, NodeSettings()) is npu_codes.FaultLevel.REPLACE, "of two levels the worse"
    assert npu_codes.level_of(0x110001024, NodeSettings()) is npu_codes.FaultLevel.ISOLATE, "nine digits"


def test_what_a_program_wrote_is_marked():
    (found,) = findings().of_records([record(xid_line(79), kernel=False)])
    assert found.code is Code.GPU_OFF_BUS and found.text.endswith("(written by a program)")


def test_a_line_cannot_forge_another():
    found = one(xid_line(79, "name=\x1b[2J\nmuster: fine"))
    assert found.text.isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PCI:0000:9d:00", (0, 0x9D, 0)),
        ("00000000:9D:00.0", (0, 0x9D, 0)),
        ("9d:00.1", (0, 0x9D, 0)),
        ("0018:01:00", (0x18, 1, 0)),
        ("", None),
        ("nvme0", None),
        ("a:b:c:d", None),
    ],
)
def test_places_on_the_bus(text, expected):
    assert bus_of(text) == expected
