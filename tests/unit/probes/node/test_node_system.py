"""The rules about ports, file systems and processes, on folders that look like the kernel's."""

import errno
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.cards.accelerator import SLOT
from muster.probes.cards.driver import View
from muster.probes.checks.result import Action, Code, Status
from muster.probes.kernel import mount_table
from muster.probes.node import filesystems, infiniband, nics, odd_processes, processes
from muster.probes.node.filesystems import Mount, mounts_of
from muster.probes.node.infiniband import Port
from muster.probes.node.memory import Memory
from muster.probes.node.node_check import About
from muster.probes.node.node_settings import NodeSettings
from muster.probes.node.odd_processes import OddProcess, OddProcesses
from tests.unit.node_looks import look, view

NOBODY = View(kind=SLOT)


def at(memory=None, now=1000.0, tmp=None, **settings):
    return look(NOBODY, memory, now, tmp, **settings)


# --- ports ------------------------------------------------------------------------------------------------------------


def up(name="mlx5_0/1", rate=400.0):
    return Port(name, True, "ACTIVE, LinkUp", rate)


def down(name="mlx5_0/1"):
    return Port(name, False, "DOWN, Polling", 10.0)


class Ports:
    """Looks every 15 seconds."""

    def __init__(self, **settings):
        self.past = {}
        self.settings = NodeSettings(**settings)
        self.now = 1000.0

    def look(self, *ports, seconds=15.0):
        self.now += seconds
        return infiniband.judge(ports, self.past, self.settings, self.now)


def test_a_port_that_was_up_counts_as_down_after_four_minutes():
    ports = Ports()
    assert [r.code for r in ports.look(up())] == [Code.NODE_OK]
    codes = [ports.look(down())[0].code for _ in range(17)]
    assert codes == [Code.NODE_PENDING] * 16 + [Code.IB_PORT_DOWN]
    (found,) = ports.look(down())
    assert (found.device, found.status) == ("mlx5_0/1", Status.CRITICAL)
    assert "DOWN, Polling" in found.reason
    assert [r.code for r in ports.look(up())] == [Code.NODE_OK]


def test_an_adapter_that_vanishes_is_down():
    ports = Ports()
    ports.look(up())
    ports.look()
    (found,) = ports.look(seconds=300.0)
    assert found.code is Code.IB_PORT_DOWN and "removed" in found.reason


def test_a_port_that_was_never_up_is_not_in_use():
    ports = Ports()
    for _ in range(50):
        (found,) = ports.look(down())
        assert found.code is Code.NODE_NOT_APPLICABLE


def flap(ports, seconds):
    ports.look(down(), seconds=1.0)
    return ports.look(up(), seconds=seconds)


def test_three_long_interruptions_in_twelve_hours_are_flapping():
    ports = Ports()
    ports.look(up())
    assert [flap(ports, 25.0)[0].code for _ in range(3)] == [Code.NODE_OK, Code.NODE_OK, Code.IB_PORT_FLAPPING]
    # ... and it is over when the window has passed.
    assert ports.look(up(), seconds=43_201.0)[0].code is Code.NODE_OK


def test_short_interruptions_are_no_flapping():
    ports = Ports()
    ports.look(up())
    assert {flap(ports, 24.0)[0].code for _ in range(10)} == {Code.NODE_OK}


def test_so_many_ports_are_wanted():
    ports = Ports(ib_ports=2)
    assert ports.look(up(), down("mlx5_1/1"))[-1].code is Code.NODE_PENDING
    found = ports.look(up(), down("mlx5_1/1"), seconds=240.0)[-1]
    assert (found.code, found.device, found.status) == (Code.IB_PORTS_MISSING, "", Status.CRITICAL)
    assert ports.look(up(), up("mlx5_1/1"))[-1].code is Code.NODE_OK


def test_a_port_that_is_too_slow():
    (found,) = Ports(ib_rate_gbps=400).look(up(rate=200.0))
    assert (found.code, found.observed) == (Code.IB_RATE_LOW, "200 Gb/s")
    assert Ports(ib_rate_gbps=400).look(up(rate=400.0))[0].code is Code.NODE_OK


def sysfs_port(tmp, adapter="mlx5_0", port="1", state="4: ACTIVE", phys="5: LinkUp", rate="400 Gb/sec (4X NDR)"):
    folder = tmp / "sys/class/infiniband" / adapter / "ports" / port
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("state", state), ("phys_state", phys), ("rate", rate)):
        (folder / name).write_text(f"{text}\n")
    counters = folder / "counters"
    counters.mkdir(exist_ok=True)
    counter = counters / "symbol_error"
    if not counter.exists():
        # An open of this one for reading waits for ever.
        os.mkfifo(counter)
    return folder


async def test_ports_are_read_from_sysfs_and_their_counters_are_not(tmp_path):
    sysfs_port(tmp_path)
    sysfs_port(tmp_path, "mlx5_1", state="1: DOWN", phys="3: Disabled", rate="10 Gb/sec (4X SDR)")
    sysfs_port(tmp_path, "mlx5_2", rate="rubbish")
    (tmp_path / "sys/class/infiniband/mlx5_3").mkdir()  # vanishing
    assert infiniband.read(tmp_path / "sys") == [
        up(),
        Port("mlx5_1/1", False, "DOWN, Disabled", 10.0),
        Port("mlx5_2/1", True, "ACTIVE, LinkUp", 0.0),
    ]
    (rule,) = infiniband.RULES
    assert rule.applies(at(tmp=tmp_path)) == ""
    found = await rule.judge(at(tmp=tmp_path, ib_ignore="mlx5_1, mlx5_2"))
    assert [(r.device, r.code) for r in found] == [("mlx5_0/1", Code.NODE_OK)]


async def test_symbol_errors_of_a_port_by_a_setting(tmp_path):
    folder, memory = sysfs_port(tmp_path), Memory()
    counter = folder / "counters/symbol_error"
    counter.unlink()
    (rule,) = infiniband.RULES

    async def seen(now, count, limit=120):
        counter.write_text(f"{count}\n")
        found = await rule.judge(at(memory, now, tmp_path, ib_symbol_errors=limit))
        return [r.code for r in found if r.code is not Code.NODE_OK]

    # What it counted before counts for nothing; nor does it matter how often somebody looks.
    assert await seen(0.0, 5000) == []
    assert await seen(15.0, 6000) == [], "read once a minute"
    assert await seen(60.0, 5121) == [Code.IB_SYMBOL_ERRORS]
    assert await seen(120.0, 5121, limit=121) == []
    assert await seen(3720.0, 5121) == [], "an hour without new ones"
    assert await seen(3780.0, 3) == [], "the adapter began anew"
    counter.write_text("N/A (no PMA)\n")
    assert {r.code for r in await rule.judge(at(memory, 4000.0, tmp_path, ib_symbol_errors=1))} == {Code.NODE_OK}


def test_without_adapters_ports_do_not_apply(tmp_path):
    (rule,) = infiniband.RULES
    assert "no InfiniBand" in rule.applies(at(tmp=tmp_path))
    assert rule.applies(at(tmp=tmp_path, ib_ports=8)) == ""


# --- file systems -----------------------------------------------------------------------------------------------------

TABLE = r"""
22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
30 28 259:3 / /data\040disk rw,relatime - xfs /dev/nvme1n1 ro,attr2
29 28 259:5 / /image ro,relatime - ext4 /dev/nvme2n1 rw
34 28 259:6 / /cdrom ro,relatime - ext4 /dev/nvme3n1 ro
35 28 0:60 / /lower rw,relatime - squashfs /dev/loop0 ro
31 28 0:50 / /share rw - nfs4 server:/a\040b rw,vers=4.2
32 28 259:4 / /old rw - ext4 /dev/sdb1 rw
33 28 0:51 / /old rw - tmpfs none rw
not a mount at all
40 28
"""


def test_mountinfo():
    assert mounts_of(mount_table.parse(TABLE)) == [
        Mount("/sys", "sysfs", "sysfs", False),
        Mount("/", "ext4", "/dev/nvme0n1p2", False),
        Mount("/data disk", "xfs", "/dev/nvme1n1", True, became_read_only=True),
        Mount("/image", "ext4", "/dev/nvme2n1", True),
        Mount("/cdrom", "ext4", "/dev/nvme3n1", True),
        Mount("/lower", "squashfs", "/dev/loop0", True),
        Mount("/share", "nfs4", "server:/a b", False),
        Mount("/old", "tmpfs", "none", False),
    ]
    assert [one.path for one in mount_table.parse(TABLE, "ext4")] == ["/", "/image", "/cdrom", "/old"]


@given(st.text())
def test_mountinfo_takes_any_text(text):
    assert all(isinstance(mount, Mount) for mount in mounts_of(mount_table.parse(text)))


def disk(path="/", read_only=False, type="ext4"):
    return Mount(path, type, "/dev/nvme0n1p2", read_only)


def mounts(table, memory=None, **settings):
    return filesystems.judge_mounts(table, at(memory, **settings))


@pytest.mark.parametrize(("path", "status"), [("/", Status.CRITICAL), ("/scratch", Status.WARN)])
def test_a_file_system_that_became_read_only(path, status):
    memory = Memory()
    assert [r.code for r in mounts([disk(path)], memory)] == [Code.NODE_OK]
    (found,) = mounts([disk(path, read_only=True)], memory)
    assert (found.code, found.status, found.device) == (Code.FS_READ_ONLY, status, path)
    assert [r.code for r in mounts([disk(path)], memory)] == [Code.NODE_OK]


@pytest.mark.parametrize("mount", [disk(read_only=True), disk(type="squashfs", read_only=True), disk(type="overlay")])
def test_what_was_read_only_from_the_beginning_is_meant_so(mount):
    (found,) = mounts([mount])
    assert found.code is Code.NODE_OK


def test_a_file_system_that_became_read_only_before_the_first_look():
    (found,) = [one for one in mounts(mounts_of(mount_table.parse(TABLE))) if one.code is Code.FS_READ_ONLY]
    assert (found.device, found.status) == ("/data disk", Status.WARN)


def test_what_must_be_mounted():
    table = [disk("/"), disk("/cache", read_only=True), disk("/models", read_only=True)]
    found = mounts(table, mounts="/cache,/models:ro,/data")
    assert [(r.device, r.code, r.status) for r in found[:3]] == [
        ("/cache", Code.FS_READ_ONLY, Status.CRITICAL),
        ("/models", Code.NODE_OK, Status.OK),
        ("/data", Code.FS_NOT_MOUNTED, Status.CRITICAL),
    ]


def statvfs(free, inodes=1000, of=1000, files=1000):
    return os.statvfs_result((4096, 4096, of, free, free, files, inodes, inodes, 0, 255))


def test_free_space_and_inodes():
    say = About("disk-free", "/")
    assert [r.code for r in filesystems.judge_free(say, statvfs(100), 10.0)] == [Code.NODE_OK]
    both = filesystems.judge_free(say, statvfs(99, 5), 10.0)
    assert [(r.code, r.status) for r in both] == [
        (Code.FS_SPACE_LOW, Status.WARN),
        (Code.FS_INODES_LOW, Status.WARN),
    ]
    assert "9.9 %" in both[0].reason
    assert [r.code for r in filesystems.judge_free(say, statvfs(0, 0, of=0, files=0), 10.0)] == [Code.NODE_OK]


async def judged(rules, item, look):
    (rule,) = [rule for rule in rules if rule.check.item == item]
    return await rule.judge(look)


async def test_one_file_system_that_hangs_holds_up_no_other(tmp_path, monkeypatch):
    release = threading.Event()
    real = os.statvfs

    def slow(path):
        if path == "/dead":
            release.wait(60)
        return real(path)

    monkeypatch.setattr(os, "statvfs", slow)
    try:
        paths = f"{tmp_path},/dead,/does/not/exist"
        found = await judged(
            filesystems.RULES, "disk-free", at(disk_paths=paths, disk_free_percent=0, look_deadline_s=1.5)
        )
    finally:
        release.set()
    assert [(r.device, r.code, r.status) for r in found] == [
        (str(tmp_path), Code.NODE_OK, Status.OK),
        ("/dead", Code.PROBE_TIMED_OUT, Status.UNKNOWN),
        ("/does/not/exist", Code.FS_UNREADABLE, Status.UNKNOWN),
    ]


SHARE = Mount("/share", "nfs4", "server:/export", False)


def share(answer, memory, now):
    return filesystems.judge_share(SHARE, answer, at(memory, now))


def test_a_share_that_does_not_answer_five_looks_in_a_row():
    memory = Memory()
    codes = [share("no answer within 5 s", memory, n * 60.0).code for n in range(5)]
    assert codes == [Code.NODE_PENDING] * 4 + [Code.NFS_HANGS]
    assert share("", memory, 300.0).code is Code.NODE_OK
    assert share("no answer within 5 s", memory, 360.0).code is Code.NODE_PENDING


def test_a_share_that_is_stale_or_fails():
    memory = Memory()
    assert share("stale", memory, 0.0).code is Code.NFS_STALE
    failed = share("error: Permission denied", memory, 0.0)
    assert (failed.code, failed.status) == (Code.FS_UNREADABLE, Status.UNKNOWN)


@pytest.mark.parametrize(("number", "code"), [(errno.ESTALE, Code.NFS_STALE), (errno.EIO, Code.FS_UNREADABLE)])
async def test_shares_are_found_and_asked(tmp_path, monkeypatch, number, code):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(TABLE)

    def broken(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "statvfs", broken)
    (found,) = await judged(filesystems.RULES, "nfs", at(tmp=tmp_path))
    assert (found.device, found.code, found.observed) == ("/share", code, "server:/a b (nfs4)")


async def test_a_share_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(TABLE)
    release, memory = threading.Event(), Memory()
    monkeypatch.setattr(os, "statvfs", lambda path: release.wait(60))
    try:
        for number in range(5):
            (found,) = await judged(filesystems.RULES, "nfs", at(memory, number * 60.0, tmp_path, nfs_timeout_s=0.05))
        assert found.code is Code.NFS_HANGS
        assert "earlier call still hangs" in found.evidence
        assert sum("/share" in thread.name for thread in threading.enumerate()) == 1
    finally:
        release.set()


# --- processes --------------------------------------------------------------------------------------------------------


def stuck(pid=7, start=100, name="python"):
    return OddProcess(pid, start, name, "D", 1)


def d_state(processes_, memory, now, waiting=None):
    return processes.judge_d_state(processes_, waiting or {}, at(memory, now))


def test_a_process_that_waits_five_looks_in_a_row():
    memory = Memory()
    codes = [d_state([stuck()], memory, n * 60.0).code for n in range(5)]
    assert codes == [Code.NODE_PENDING] * 4 + [Code.PROCS_D_STATE]
    found = d_state([stuck()], memory, 300.0, {7: "nfs_wait_bit_killable"})
    assert (found.status, found.action) == (Status.WARN, Action.INVESTIGATE)
    assert "python (pid 7)" in found.reason and found.evidence == "pid 7: nfs_wait_bit_killable"
    assert d_state([], memory, 360.0).code is Code.NODE_OK


def test_each_look_with_another_process_is_nothing():
    memory = Memory()
    for number in range(10):
        # The same number, but another process: it began later.
        assert d_state([stuck(start=number)], memory, number * 60.0).code is Code.NODE_PENDING


def test_a_driver_that_is_stuck_asks_for_a_reboot():
    memory = Memory()
    for number in range(5):
        found = d_state([stuck(name="nvidia-smi")], memory, number * 60.0)
    assert found.action is Action.REBOOT


def stat(pid, name, state, parent=1, flags=0x400000, start=55):
    return f"{pid} ({name}) {state} {parent} 1 1 0 -1 {flags} " + "0 " * 12 + f"{start}{' 0' * 30}\n"


def test_processes_are_read_with_any_name(tmp_path):
    for pid, text in {
        1: stat(1, "init", "S"),
        7: stat(7, "a) D (b", "D", parent=1),
        8: stat(8, "jbd2/sda", "D", flags=0x208040),  # the kernel's own
        9: stat(9, "gone", "Z", parent=7),
        10: "",
        11: "11 (short) D",
    }.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(text)
    (tmp_path / "12").mkdir()  # ended meanwhile
    (tmp_path / "meminfo").touch()
    assert sorted(OddProcesses().look(tmp_path, 0.0), key=lambda p: p.pid) == [
        OddProcess(7, 55, "a) D (b", "D", 1),
        OddProcess(9, 55, "gone", "Z", 7),
    ]


def test_a_large_node_is_scanned_less_often_and_what_was_found_is_looked_at_each_time(tmp_path):
    """6,000 processes: each third look scans. One that is in state D no longer is missing at once."""

    def put(pid: int, state: str) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_text(stat(pid, "python", state))

    for pid in range(1, 6001):
        (tmp_path / str(pid)).mkdir()
    put(7, "D")
    put(8, "D")
    odd = OddProcesses()
    looks = iter(range(0, 6000, 60))

    def pids() -> list[int]:
        return sorted(p.pid for p in odd.look(tmp_path, float(next(looks))))

    assert pids() == [7, 8]
    put(9, "D")
    put(8, "S")
    assert pids() == [7]
    put(7, "Z")
    assert pids() == [7]
    assert pids() == [7, 9]


@given(st.binary(max_size=200))
def test_any_bytes_for_a_stat(data):
    found = odd_processes.parse(7, data)
    assert found is None or found.pid == 7


def test_many_zombies_name_their_parents():
    assert processes.judge_zombies(1000, [], 1000).code is Code.NODE_OK
    found = processes.judge_zombies(1001, [(7, "python", 900), (8, "sh", 101)], 1000)
    assert (found.code, found.status) == (Code.ZOMBIES, Status.WARN)
    assert "python (pid 7) has 900" in found.reason
    assert processes.judge_zombies(5000, [(7, "python", 5000)], 0).code is Code.NODE_OK


@pytest.mark.parametrize(
    ("used", "code", "status"),
    [
        (79, Code.NODE_OK, Status.OK),
        (80, Code.PIDS_NEARLY_FULL, Status.WARN),
        (95, Code.PIDS_NEARLY_FULL, Status.CRITICAL),
    ],
)
def test_nearly_full(used, code, status):
    found = processes.nearly_full(About("pids"), Code.PIDS_NEARLY_FULL, (used, 100, "kernel.pid_max"), 80.0, 95.0)
    assert (found.code, found.status) == (code, status)


def kernel_files(tmp, **texts):
    for name, text in texts.items():
        file = tmp / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


async def test_the_tightest_limit_of_process_numbers_decides(tmp_path):
    kernel_files(
        tmp_path,
        proc__loadavg="0.1 0.2 0.3 2/400 999\n",
        proc__sys__kernel__pid_max="4194304\n",
        proc__self__cgroup="0::/pod/box\n",
    )
    kernel_files(tmp_path / "sys/fs/cgroup/pod/box", **{"pids.current": "97\n", "pids.max": "100\n"})
    kernel_files(tmp_path / "sys/fs/cgroup", **{"pids.current": "97\n", "pids.max": "max\n"})
    (found,) = await judged(processes.RULES, "pids", at(tmp=tmp_path))
    assert (found.code, found.status) == (Code.PIDS_NEARLY_FULL, Status.CRITICAL)
    assert "97 of 100" in found.observed and "box" in found.observed


async def test_file_descriptors(tmp_path):
    kernel_files(tmp_path, **{"proc__sys__fs__file-nr": "850\t0\t1000\n"})
    (found,) = await judged(processes.RULES, "file-descriptors", at(tmp=tmp_path))
    assert (found.code, found.status, found.observed) == (Code.FD_NEARLY_FULL, Status.WARN, "850 of 1000 (fs.file-max)")


@pytest.mark.parametrize("item", ["pids", "file-descriptors"])
async def test_what_the_kernel_does_not_tell_is_unknown(item, tmp_path):
    (found,) = await judged(processes.RULES, item, at(tmp=tmp_path))
    assert (found.code, found.status) == (Code.NODE_NOT_TOLD, Status.UNKNOWN)


async def test_this_very_node_can_be_looked_at():
    for rule in (*filesystems.RULES, *processes.RULES):
        if not rule.applies(at()):
            assert await rule.judge(at()), rule.check.item


async def test_a_network_adapter_that_flaps_or_makes_errors(tmp_path):
    net, memory = tmp_path / "sys/class/net", Memory()

    def nic(name, changes, errors, real=True):
        (net / name / "statistics").mkdir(parents=True, exist_ok=True)
        if real:
            (net / name / "device").mkdir(exist_ok=True)
        (net / name / "carrier_changes").write_text(f"{changes}\n")
        (net / name / "statistics/rx_crc_errors").write_text(f"{errors}\n")

    async def at(now):
        (rule,) = nics.RULES
        found = await rule.judge(look(view([]), memory, now, tmp_path, nic_ignore="eth9"))
        return {result.device: result.code for result in found}

    for name in ("eth0", "eth1", "eth9"):
        nic(name, 100, 1000)
    nic("lo", 0, 0, real=False)
    assert await at(0.0) == {"eth0": Code.NODE_OK, "eth1": Code.NODE_OK}
    nic("eth0", 105, 1000)
    nic("eth1", 100, 1061)
    nic("eth9", 300, 9000)
    assert await at(60.0) == {"eth0": Code.NODE_OK, "eth1": Code.NIC_LINK_ERRORS}
    nic("eth0", 106, 1000)
    assert (await at(120.0))["eth0"] is Code.NIC_FLAPPING
    assert await at(50_000.0) == {"eth0": Code.NODE_OK, "eth1": Code.NODE_OK}


async def test_a_network_adapter_that_flaps_and_makes_errors(tmp_path):
    folder, memory = tmp_path / "sys/class/net/eth0", Memory()
    (folder / "statistics").mkdir(parents=True)
    (folder / "device").mkdir()
    (rule,) = nics.RULES
    for now, changes, errors in ((0.0, 0, 0), (60.0, 6, 5000)):
        (folder / "carrier_changes").write_text(f"{changes}\n")
        (folder / "statistics/rx_crc_errors").write_text(f"{errors}\n")
        found = await rule.judge(look(view([]), memory, now, tmp_path))
    assert [result.code for result in found] == [Code.NIC_FLAPPING, Code.NIC_LINK_ERRORS]
