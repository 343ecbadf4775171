"""Records of the kernel's log, from a socket that hands out one at a time as /dev/kmsg does, and from the real one."""

import errno
import os
import socket
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.probes.kernel import kmsg, process
from muster.probes.kernel.kmsg import KernelLog, Position


def test_a_record_with_its_further_lines():
    record = kmsg.parse(
        b"4,1234,98765432,-,caller=T12;pcieport 0000:00:01.0: oops\n SUBSYSTEM=pci\n DEVICE=+pci:0000\n"
    )
    assert record is not None
    assert (record.seq, record.seconds, record.level, record.kernel) == (1234, 98.765432, 4, True)
    assert record.text == "pcieport 0000:00:01.0: oops"


def test_escapes_are_undone():
    record = kmsg.parse(rb"6,1,2,-;NVRM: a\x0aNVRM: b\x5cx ; c")
    assert record is not None and record.text == "NVRM: a\nNVRM: b\\x ; c"


@pytest.mark.parametrize(
    ("priority", "kernel"),
    [(b"4", True), (b"12", False), (b"30", None)],  # the kernel, a program of root's, a system service
)
def test_who_wrote_it(priority, kernel):
    record = kmsg.parse(priority + b",1,2,-;text")
    assert (record.kernel if record is not None else None) is kernel


@pytest.mark.parametrize(
    "data", [b"", b";", b"4,1;x", b"a,b,c,-;x", b"4,1,2,-", b"-4,1,2,-;x", b"4,+1,2,-;x", b"4, 1,2;x"]
)
def test_what_is_no_record(data):
    assert kmsg.parse(data) is None


@given(st.binary(max_size=300))
@example(b"6,1,2,-;\\x")
@example(b"6," + b"9" * 5000 + b",2,-;text")
@example("6,٣,2,-;text".encode())
def test_any_bytes(data):
    record = kmsg.parse(data)
    assert record is None or (record.seq >= 0 and isinstance(record.text, str))
    assert (kmsg.sequence(data) or 0) >= 0


class Fake:
    """Stands for /dev/kmsg: one packet, one record."""

    def __init__(self, monkeypatch):
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        monkeypatch.setattr(os, "open", lambda *_: os.dup(self.ours.fileno()))

    def put(self, seq, text="text", priority=4):
        self.theirs.send(f"{priority},{seq},{seq * 1000},-;{text}\n".encode())


@pytest.fixture
def fake(monkeypatch):
    device = Fake(monkeypatch)
    yield device
    device.ours.close()
    device.theirs.close()


@pytest.fixture
def log(fake):
    made = []

    def make(after=None, boot_id="now"):
        log = KernelLog(after=after, boot_id=boot_id)
        log.open()
        made.append(log)
        return log

    yield make
    for log in made:
        log.close()


def numbers(read):
    records, _ = read
    return [record.seq for record in records]


def test_what_is_new_is_read_once(fake, log):
    reader = log()
    assert reader.position is None
    for seq in range(5, 8):
        fake.put(seq)
    assert numbers(reader.read()) == [5, 6, 7]
    assert numbers(reader.read()) == []
    fake.put(8)
    assert numbers(reader.read()) == [8]
    assert reader.position == Position("now", 8)


def test_a_successor_goes_on_and_another_boot_begins_anew(fake, log):
    for seq in range(5, 9):
        fake.put(seq)
    assert numbers(log(Position("now", 6)).read()) == [7, 8]
    for seq in range(5, 9):
        fake.put(seq)
    assert numbers(log(Position("before", 6)).read()) == [5, 6, 7, 8]


def test_a_long_log_is_read_in_pieces(fake, log):
    for seq in range(30):
        fake.put(seq)
    reader = log()
    read, more = reader.read(most=20)
    assert len(read) == 20 and more
    read, more = reader.read(most=20)
    assert len(read) == 10 and not more


def test_what_others_write_moves_on_and_is_passed_over(fake, log):
    reader = log()
    fake.put(5)
    fake.put(6, priority=30)
    fake.put(7)
    assert numbers(reader.read()) == [5, 7]
    assert reader.lost == 0


def test_what_was_overwritten_is_counted(fake, log, monkeypatch):
    reader = log()
    fake.put(5)
    reader.read()
    fake.put(105)
    real = os.read
    told: list[bool] = []

    def overwritten(fd, size):
        if not told:
            told.append(True)
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        return real(fd, size)

    monkeypatch.setattr(os, "read", overwritten)
    assert numbers(reader.read()) == [105]
    assert reader.lost == 99


def test_another_error_is_raised(fake, log, monkeypatch):
    def broken(fd, size):
        raise OSError(errno.EIO, "Input/output error")

    reader = log()
    monkeypatch.setattr(os, "read", broken)
    with pytest.raises(OSError):
        reader.read()


def proc(tmp_path, capabilities, restricted):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/dmesg_restrict").write_text(f"{restricted}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("number", "capabilities", "restricted", "words"),
    [
        (errno.EPERM, 0, 1, ("CAP_SYSLOG", "dmesg_restrict is 1", "AmbientCapabilities")),
        (errno.EPERM, 0, 0, ("CAP_SYSLOG",)),
        (errno.EACCES, 0, 1, ("CAP_SYSLOG",)),
        (errno.EACCES, 1 << 34, 1, ("this user may not open it", "mode")),
        (errno.EACCES, 0, 0, ("this user may not open it",)),
        (errno.ENOENT, 0, 1, ("--device", "CAP_SYSLOG")),
        (errno.EIO, 0, 1, ("Input/output error",)),
    ],
)
def test_why_the_log_cannot_be_read(number, capabilities, restricted, words, tmp_path):
    text = kmsg.unreadable(OSError(number, os.strerror(number)), proc=proc(tmp_path, capabilities, restricted))
    assert all(word in text for word in ("/dev/kmsg", *words)), text
    assert ("CAP_SYSLOG" in text) == ("CAP_SYSLOG" in words)


def test_the_time_of_a_record_is_near_the_clock():
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert abs(kmsg.wall_time(now - 100.0) - (time.time() - 100.0)) < 5.0


def record(text: str) -> kmsg.KernelRecord:
    return kmsg.KernelRecord(1, 5.0, 6, True, text)


@pytest.mark.parametrize(
    ("text", "name", "pid"),
    [
        (
            "python3[29653]: segfault at 1 ip 00007f0c1c985ad8 sp 00007ffc0a4d05a8 error 4 in libc.so.6[167a,7f+1]",
            "python3",
            29653,
        ),
        ("traps: a [1] b[4711] general protection fault ip:7f sp:7f error:0 in libcuda.so[7f+1]", "a [1] b", 4711),
        ("traps: python[12] trap invalid opcode ip:7f sp:7f error:0 in libx.so[7f+1]", "python", 12),
        ("python[13]: unhandled exception: SEGV, code 1, esr 0x92000006, in libx.so", "python", 13),
    ],
)
def test_a_process_that_crashed(text: str, name: str, pid: int) -> None:
    found = kmsg.crash(record(text))
    assert found is not None
    assert (found.name, found.pid, found.text) == (name, pid, text)


@pytest.mark.parametrize(
    "text", ["Out of memory: Killed process 4711 (python)", "x: segfault at 0", "[1] segfault at 0", "eth0: link up"]
)
def test_other_lines(text: str) -> None:
    assert kmsg.crash(record(text)) is None


def test_the_real_log_if_it_may_be_read():
    log = KernelLog()
    try:
        log.open()
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be read: {kmsg.unreadable(error)}")
    try:
        found, more = log.read(100_000)
        assert not more and log.position is not None and log.position.boot_id == process.boot_id()
        assert [record.seq for record in found] == sorted({record.seq for record in found})
    finally:
        log.close()
