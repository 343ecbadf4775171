"""One chaos point: a strike against muster's processes while something else is broken, and what must be true then.

`python -m tests.chaos.point FOLDER SEED NUMBER` carries one out in this process's room (room.py) and prints what
happened. Exit code: HELD, FAILED, LEFT_OUT (the reason is the last line); any other is a fault of the test itself.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from muster.supervisors.model.states import JOB
from muster.v1 import job_pb2
from tests.chaos import faults, paced, room
from tests.chaos.accounts import Wrong
from tests.chaos.faults import RANKS, LeftOut, Site
from tests.chaos.oracle import GRACE_S, Failed, Oracle
from tests.chaos.plan import Plan
from tests.conftest import Daemon, eventually

HELD, FAILED, LEFT_OUT = 0, 10, 11
#: Seconds that a point may take; whatever it waits for is bounded by less.
LIMIT_S = 240


class Point:
    """Carries out one plan."""

    def __init__(self, folder: Path, seed: int, number: int, plan: Plan) -> None:
        self.plan = plan
        self.site = site = Site(folder, f"pair-{number}")
        self.fault = faults.FAULTS[plan.fault](site, random.Random(f"fault-{seed}-{number}"))
        self.daemon = Daemon(site.node, "[logs]\nmax_file_bytes = 262144\n" if plan.rotate else "")
        self.daemon.starts_in = 90.0
        site.daemon = self.daemon
        self.oracle = Oracle(site, self.daemon, plan, self.keep_daemon, self.tell)
        self.began = time.monotonic()
        self.lines: list[str] = []
        self.faulty = False

    def tell(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began:7.3f} {text}")

    # --- the course of it ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Failed, Wrong, LeftOut, and anything else for a fault of the test itself."""
        plan, oracle = self.plan, self.oracle
        if self.fault.closed and not room.is_closed():
            raise LeftOut(f"{plan.fault}: {room.why_open()}")
        self.fault.prepare()
        self.daemon.start()
        self.tell("the daemon answers")
        self.start_job()
        if not plan.early:
            eventually(lambda: all(account.least for account in oracle.accounts), 60, "all ranks write")
        time.sleep(plan.delay)  # the random moment itself; nothing is waited for
        for step in (self.inject, self.strike) if plan.fault_first else (self.strike, self.inject):
            step()
            time.sleep(plan.pause)
        if plan.stop == "meanwhile":
            # A file that is taken away is noticed within tenths of a second.
            time.sleep(max(plan.stop_after, 0.5) if faults.takes_away(plan.fault) else plan.stop_after)
            oracle.stop()
        else:
            oracle.watch()
        self.lift()
        if plan.stop == "after":
            time.sleep(plan.stop_after)
            oracle.stop()
        elif not plan.stop:
            oracle.resume()
            (self.site.notes / "finish").touch()
            self.tell("the ranks are to finish")
        oracle.check(oracle.end())

    def start_job(self) -> None:
        plan = self.plan
        # Only the one that is to fail knows its code.
        code = f'[ "$RANK" = {plan.failing} ] && code={plan.code} || code=0'
        program = f"{sys.executable} -S {paced.__file__} {self.site.notes}"
        command = f"{code}; exec {program} {plan.pause_ms} $code {int(plan.stubborn)} {int(plan.stray)}"
        spec = job_pb2.JobSpec(job_id=self.site.job_id, command=("sh", "-c", command), ranks=RANKS)
        for _ in range(2):
            spec.grace_steps.add().FromMilliseconds(int(GRACE_S * 500))
        self.daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
        self.tell("the job was started")

    def inject(self) -> None:
        self.faulty = True
        self.tell(f"fault: {self.fault.inject()}")

    def lift(self) -> None:
        self.faulty = False
        self.fault.lift()
        self.tell("the fault is gone")
        self.thaw()

    # --- strikes ------------------------------------------------------------------------------------------------------

    def strike(self) -> None:
        for i, name in enumerate(self.plan.kills):
            time.sleep(self.plan.pause / 4 if i else 0.0)
            self.kill(name)
        if self.plan.frozen:
            self.freeze(self.plan.frozen)
        self.keep_daemon()

    def kill(self, name: str) -> None:
        if name == "daemon":
            self.daemon.kill()
        else:
            pid = self.site.pid(name)
            if not pid:
                self.tell(f"no {name} to be killed")
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.tell(f"SIGKILL: {name}")

    def freeze(self, name: str) -> None:
        pid = self.site.pid(name)
        if not pid:
            self.tell(f"no {name} to be stopped")
            return
        os.kill(pid, signal.SIGSTOP)
        self.oracle.frozen.append(pid)
        self.tell(f"SIGSTOP: {name} {pid}")
        if name == "daemon" and self.plan.lasting:
            # Nobody can ask it for a stop: its service manager's watchdog replaces it.
            time.sleep(self.plan.freeze)
            self.oracle.frozen.clear()
            self.kill("daemon")
        elif not self.plan.lasting:
            timer = threading.Timer(self.plan.freeze, self.thaw)
            timer.daemon = True
            timer.start()

    def thaw(self) -> None:
        while self.oracle.frozen:
            pid = self.oracle.frozen.pop()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                self.tell(f"SIGCONT: {pid}")

    def keep_daemon(self) -> None:
        """As a service manager does: a daemon that has ended is started again. Raises Failed."""
        process = self.daemon.process
        if process is not None:
            code = process.poll()
            if code is None:
                return
            self.tell(f"the daemon ended with {code}")
            self.daemon.process = None
            if self.plan.fault != "memory of the daemon":
                raise Failed(f"the daemon ended by itself, with {code}")
        try:
            self.daemon.start()
        except AssertionError as error:
            when = " while the fault lasts" if self.faulty else ""
            raise Failed(f"the daemon does not start{when}: {error}") from None
        self.tell("a daemon answers again")

    # --- the report ---------------------------------------------------------------------------------------------------

    def report(self) -> str:
        """What was struck when, and what muster wrote down of it."""
        folder = self.daemon.root.job(self.site.job_id).folder
        log = self.site.root.log
        if not log.exists():
            log = self.site.log
        parts = [("what was struck when", "\n".join(self.lines))]
        for title, path, lines in (
            ("journal", folder / "journal", 80),
            ("the job's own log", log / self.site.log_of(JOB).name, 20),
            ("log of the daemon", self.daemon.stderr, 80),
            ("log of the nursery and of supervisors", log / "nursery.log", 80),
        ):
            try:
                text = path.read_text(errors="replace").replace("\0", "")
                parts.append((title, "\n".join(line[:600] for line in text.splitlines()[-lines:])))
            except OSError as error:
                parts.append((title, str(error)))
        with contextlib.suppress(OSError):
            parts.append(("log folder", "\n".join(f"{p.lstat().st_size:9} {p.name}" for p in sorted(log.iterdir()))))
        return "\n".join(f"--- {title}\n{text}" for title, text in parts)

    def close(self) -> None:
        """What the room does not put away by itself."""
        self.thaw()
        if self.faulty:
            with contextlib.suppress(Exception):
                self.fault.lift()
        if not room.is_closed():
            with contextlib.suppress(Exception):
                self.daemon.close()


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"the point took longer than {LIMIT_S} s")


def main() -> int:
    folder, seed, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    plan = Plan.draw(seed, number)
    print(f"seed {seed}, point {number}: {plan}", flush=True)
    point = Point(folder, seed, number, plan)
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(LIMIT_S)
    try:
        point.run()
    except LeftOut as reason:
        print(reason)
        return LEFT_OUT
    except (Failed, Wrong) as error:
        print(f"FAILED: {error}\n{point.report()}", flush=True)
        return FAILED
    except BaseException:
        print(f"{traceback.format_exc()}\n{point.report()}", flush=True)
        return 1
    finally:
        point.close()
    print("\n".join(point.lines))
    return HELD


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # whatever of gRPC still runs is not waited for
