"""What the kernel's log says of processes that died of a fault of their own."""

import pytest

from muster.probes.kernel import kmsg, process_crashes


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
    found = process_crashes.parse(record(text))
    assert found is not None
    assert (found.name, found.pid, found.text) == (name, pid, text)


@pytest.mark.parametrize(
    "text", ["Out of memory: Killed process 4711 (python)", "x: segfault at 0", "[1] segfault at 0", "eth0: link up"]
)
def test_other_lines(text: str) -> None:
    assert process_crashes.parse(record(text)) is None
