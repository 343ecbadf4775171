"""For how long a driver that crashed the daemon is left alone."""

import os
import time
from pathlib import Path

import pytest

from muster.agent.node import driver_crashes
from muster.supervisors.paths import Root

STACK = """Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/venv/lib/python3.11/site-packages/pynvml.py", line 3965 in nvmlDeviceGetPowerUsage
  File "/venv/lib/python3.11/site-packages/muster/probes/cards/nvidia/nvidia_calls.py", line 168 in maybe
  File "/usr/lib/python3.11/threading.py", line 982 in run
"""
ELSEWHERE = """Fatal Python error: Aborted

Stack (most recent call first):
  File "/usr/lib/python3.11/asyncio/runners.py", line 118 in run
"""


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root.under(tmp_path)
    root.run.mkdir()
    return root


def left(root: Root, stack: str, ago_s: float = 0.0) -> driver_crashes.DriverCrash:
    """What the next daemon finds, after one that left this stack so long ago."""
    root.crash_stack.write_text(stack)
    root.crash_stack.chmod(0o600)
    at = time.time() - ago_s
    os.utime(root.crash_stack, (at, at))
    found = driver_crashes.earlier(root)
    root.crash_stack.write_text("")
    return found


def test_no_crash_and_a_crash_elsewhere_are_none_of_the_drivers(root: Root) -> None:
    nothing = driver_crashes.DriverCrash()
    assert driver_crashes.earlier(root) == left(root, "") == left(root, ELSEWHERE) == nothing


def test_the_pause_begins_with_the_second_crash_and_grows(root: Root) -> None:
    assert left(root, STACK) == driver_crashes.DriverCrash("NVML crashed musterd in nvmlDeviceGetPowerUsage")
    second, third = left(root, STACK), left(root, STACK)
    assert second.closed and 0 < second.pause_s <= driver_crashes.FIRST_S
    assert driver_crashes.FIRST_S < third.pause_s <= 2 * driver_crashes.FIRST_S
    again = driver_crashes.earlier(root)  # a restart by hand in the pause
    assert (again.text, again.closed) == ("", third.closed)
    assert driver_crashes.pause_s(1000) == driver_crashes.MOST_S


def test_a_pause_that_is_over_and_crashes_far_apart_keep_no_driver_closed(root: Root) -> None:
    left(root, STACK, ago_s=3 * driver_crashes.ROW_S)
    assert left(root, STACK, ago_s=driver_crashes.ROW_S).closed == ""  # the first of a new row
    assert left(root, STACK, ago_s=driver_crashes.FIRST_S + 1).closed == ""


def test_a_file_of_no_use_is_none(root: Root) -> None:
    root.driver_crashes.write_text("[1")
    root.driver_crashes.chmod(0o600)
    assert left(root, STACK).closed == ""
