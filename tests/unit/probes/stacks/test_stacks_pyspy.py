"""What py-spy prints, and how it ends."""

import sys
from pathlib import Path

import pytest

from muster.probes.calls.script import ScriptEnd
from muster.probes.stacks import pyspy
from muster.probes.stacks.pyspy import MAX_FRAMES, MAX_THREADS, DumpOutcome

#: As py-spy 0.4.3 prints it of a program that was given as text.
DUMP = """Process 12217: /usr/bin/python3 -c import time
Thread 5 (idle): "this is the program's text"
    f (fake.py:1)
Python v3.11.7 (/usr/bin/python3.11)

Thread 12217 (idle): "MainThread"
    inner (lock.py:7)
    <module> (<string>:9)
Thread 12220 (active+gil): "loader"
    Thread.run (threading.py:982)
Thread 0x7F2A44 (idle)
    pump (io.py:3)
"""
#: And of errors.
NOT_PYTHON = """Error: Failed to find python version from target process

Stack backtrace:
   0: anyhow::error::<impl anyhow::Error>::msg
"""
FORBIDDEN = """Error: Failed to get process executable name. Check that the process is running.

Caused by:
    0: Permission denied (os error 13)
    1: Permission denied (os error 13)

Stack backtrace:
   0: <E as anyhow::context::ext::StdError>::ext_context
"""
GONE = FORBIDDEN.replace("Permission denied (os error 13)", "No such file or directory (os error 2)")
TORN = """Error: Failed to get stack traces

Caused by:
    0: Failed to copy PyFrameObject
    1: Bad address (os error 14)
"""


def ended(code: int = 1, out: str = "", err: str = "", flooded: bool = False) -> ScriptEnd:
    return ScriptEnd(code, out.encode(), err.encode(), flooded)


def test_threads_and_frames():
    main, loader, third = pyspy.parse(DUMP)
    assert (main.tid, main.name, main.active) == (12217, "MainThread", False)
    assert main.frames == ("inner (lock.py:7)", "<module> (<string>:9)")
    assert (loader.tid, loader.name, loader.active) == (12220, "loader", True)
    assert (third.tid, third.name, third.frames) == (0, "", ("pump (io.py:3)",))


def test_a_name_with_line_ends_adds_no_frame_to_others():
    text = DUMP.replace('"loader"', '"weird\nname"')
    assert [len(thread.frames) for thread in pyspy.parse(text)] == [2, 1, 1]


@pytest.mark.parametrize("text", ["", "\n", "Python v3.11\n", "    f (a.py:1)\n", "Thread", "Thread x (idle)\n\0"])
def test_garbage_has_no_thread(text: str):
    assert pyspy.parse(text) == ()


def test_what_is_deep_or_many_is_bounded():
    frames = "".join(f"    f{i} (a.py:{i})\n" for i in range(5000))
    many = "".join(f'Thread {i} (idle): "t"\n    g (b.py:1)\n' for i in range(1, 2 * MAX_THREADS))
    found = pyspy.parse(f"Python v3.11\n\nThread 7 (idle)\n{frames}{many}")
    assert len(found) == MAX_THREADS
    assert len(found[0].frames) == MAX_FRAMES
    assert (found[0].frames[0], found[0].frames[-1]) == ("f0 (a.py:0)", "f4999 (a.py:4999)")
    assert f"({5000 - MAX_FRAMES + 1} frames are not shown)" in found[0].frames


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (ended(0, DUMP), DumpOutcome.DONE),
        (ended(-9, DUMP, flooded=True), DumpOutcome.DONE),
        (ended(0, "Process 1\nPython v3.11\n"), DumpOutcome.FAILED),
        (ended(1, err=NOT_PYTHON), DumpOutcome.NOT_PYTHON),
        (ended(1, err=FORBIDDEN), DumpOutcome.REFUSED),
        (ended(1, err="Permission Denied: Try running again with elevated permissions"), DumpOutcome.REFUSED),
        (ended(1, err="Error: Operation not permitted (os error 1)"), DumpOutcome.REFUSED),
        (ended(1, err=GONE), DumpOutcome.GONE),
        (ended(1, err=TORN), DumpOutcome.FAILED),
        (ended(-11), DumpOutcome.FAILED),
        (ended(101), DumpOutcome.FAILED),
    ],
)
def test_how_a_dump_ended(end: ScriptEnd, outcome: DumpOutcome):
    assert pyspy.judge(end).outcome is outcome


def test_an_error_is_reported_in_one_line_without_its_backtrace():
    said = pyspy.judge(ended(1, err=FORBIDDEN)).text
    assert said == (
        "Failed to get process executable name. Check that the process is running.; Permission denied (os error 13)"
    )
    assert pyspy.judge(ended(-11)).text == "it was killed by SIGSEGV"


def test_it_is_looked_for_beside_python_and_then_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "py-spy"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert pyspy.find() == ""
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere/py-spy"
    for file in (other, program):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
        assert pyspy.find() == str(file)
