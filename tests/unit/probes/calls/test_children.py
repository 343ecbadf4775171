"""Who waits for whom, in a process of its own: pytest's own children are nobody's orphans."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, time
from muster.probes.calls import children

def ended(pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

own = children.spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(7)"], os.environ)
orphan = os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], os.environ)
lives = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"], os.environ)
ended(own), ended(orphan)
assert children.any_ended()
assert children.reap([own, lives]) == []
assert children.reap([own, orphan, lives]) == [orphan]
assert children.reap([own, orphan, lives]) == []
assert children.any_ended()
assert os.waitstatus_to_exitcode(children.wait(own)) == 7
assert not children.any_ended()
try:
    children.spawn("/nowhere", ["x"], {})
except FileNotFoundError:
    pass
os.kill(lives, signal.SIGKILL)
ended(lives)
assert children.reap([lives]) == [lives]
assert not children.any_ended()
"""


@pytest.mark.timeout(60)
def test_own_children_are_left_to_who_started_them():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
