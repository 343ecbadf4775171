"""A fork storm without a cgroup, stopped: `python -m tests.chaos.storm_point FOLDER LANES KILL`, in a room of its own.

KILL: "supervisor" where that is killed first, so that the storm's processes have come to somebody else; "" for none.
Exit codes as of point.py.
"""

import contextlib
import os
import platform
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from muster.v1 import job_pb2
from tests.chaos import faults, room
from tests.chaos.oracle import GRACE_S, STOP_S, Failed
from tests.chaos.point import FAILED, HELD, LEFT_OUT
from tests.conftest import Daemon, alive, eventually
from tests.fakes import build

#: No more processes than these are in the room: from Linux 6.14 on each process namespace has a limit of its own.
MOST, LIMITED_FROM = 3000, (6, 14)
#: Longer than the bound of a stop, so that it does not end by itself before.
STORM_S = 60


def stormy() -> list[int]:
    """Processes of the storm that are alive at this moment; while it rages most have gone before they are looked at."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{name}/comm").read_text() == "storm\n" and alive(int(name)):
                found.append(int(name))
    return found


def bound() -> None:
    """Keeps the storm in the room: without a limit it would leave no process to anybody. Raises LeftOut."""
    release = tuple(int(part) for part in platform.release().split(".")[:2])
    if release < LIMITED_FROM:
        raise faults.LeftOut("a bounded fork storm needs Linux 6.14: a pid_max of each process namespace")
    Path("/proc/sys/kernel/pid_max").write_text(f"{MOST}\n")


def run(folder: Path, lanes: int, kill: str) -> None:
    bound()
    site = faults.Site(folder, "storm")
    faults.NoCgroup(site, random.Random(0)).prepare()
    daemon = site.daemon = Daemon(site.node)
    daemon.start()
    spec = job_pb2.JobSpec(job_id="storm", ranks=1)
    spec.command.extend([str(build.program("storm")), str(lanes), str(STORM_S)])
    spec.grace_steps.add().FromMilliseconds(int(GRACE_S * 1000))
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    eventually(lambda: b"storm" in daemon.output(daemon.get("storm")), message="the storm begins")
    assert not daemon.get("storm").warnings
    if kill:
        pid = site.pid(kill)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: site.pid(kill) not in (0, pid), message="there is a successor")
    began = time.monotonic()
    answer = daemon.jobs.Stop(job_pb2.StopRequest(job_id="storm"), timeout=GRACE_S + STOP_S + 10)
    took = time.monotonic() - began
    print(f"stop took {took:.1f} s: ended {answer.ended}, {answer.job.warnings}")
    # An empty look proves little, many in a row do.
    left = {pid for _ in range(20) for pid in stormy()}
    if left or not answer.ended or answer.job.warnings or took > GRACE_S + STOP_S:
        raise Failed(f"the stop took {took:.1f} s, and of the storm {len(left)} processes are left: {answer.job}")


def main() -> int:
    if not room.is_closed():
        print(room.why_open())
        return LEFT_OUT
    try:
        run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    except (faults.LeftOut, build.NoCompiler) as reason:
        print(reason)
        return LEFT_OUT
    except Failed as error:
        print(f"FAILED: {error}")
        return FAILED
    except BaseException:
        traceback.print_exc()
        return 1
    return HELD


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
