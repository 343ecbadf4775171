"""What a supervisor does for each job, done once before it is given one.

A supervisor shares the nursery's memory. Each page that it writes to is copied first, and an interpreter writes to the
page of whatever it uses, since it counts references: its start would wait for all of them.
The first use of code is also the slowest. So the supervisor that waits works through a job in a folder that it removes:
one that is stopped before its ranks are made, and the files, messages and records of a start. It executes nothing,
creates no process, and enters no cgroup. The nursery does so, too, before it forks the first one (nursery.py).
"""

import contextlib
import fcntl
import gc
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from muster.probes.kernel import open_files, process
from muster.supervisors.job.gang import RankGang
from muster.supervisors.launch import spawning
from muster.supervisors.launch.child import Account
from muster.supervisors.launch.creation import program_start
from muster.supervisors.launch.creation.start_steps import StartSteps
from muster.supervisors.model import journal, rank_ends, verdict
from muster.supervisors.model.journal import Contents, Record, Writer
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.replay import replay
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind, StopCause
from muster.supervisors.output.job_output import Output
from muster.supervisors.paths import JobPaths, Root
from muster.supervisors.system import lock
from muster.supervisors.system.loop import Loop
from muster.supervisors.wire import messages
from muster.supervisors.wire.link import pair

_RANKS = 2
#: Seconds after which the job is given up: it waits for nothing, unless the disk takes no record.
_MOST_S = 0.5
#: For which a gang has handlers.
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)


def rehearse(folder: Path) -> str:
    """Works in `folder`, which is made and removed. Returns why not all could be done, a sentence, or nothing: a job
    only starts more slowly then. Descriptors and signal handlers are as before."""
    try:
        opened = _open()
    except OSError as error:
        return f"no rehearsal of a job: {error}"
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    trouble = ""
    # A full collection would have Python count so few objects that it makes another one whenever there are some more,
    # and a start of hundreds of ranks makes many. So all that is made here is to be in the youngest generation.
    gc.disable()
    try:
        shutil.rmtree(folder, ignore_errors=True)  # left by one that was killed here
        root = Root(folder / "run", folder / "state", folder / "log")
        for path in (folder, root.run, root.state, root.log, root.jobs):
            path.mkdir(mode=0o700)
        _start(root, "started")
        _stop_early(root, "stopped")
    except Exception as error:  # whatever it is, the job to come is not to pay for it
        trouble = f"the rehearsal of a job failed: {type(error).__name__}: {error}"
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        gc.collect(0)  # loops and what they call refer to each other, and own descriptors
        gc.enable()
        with contextlib.suppress(OSError):
            for fd in _open() - opened:
                os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)
    return trouble


def _open() -> set[int]:
    """Descriptors, without that of the listing."""
    found = set[int]()
    for fd in open_files.numbers():
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_GETFD)  # asks no file system
            found.add(fd)
    return found


def _start(root: Root, job_id: str) -> None:
    """From the spec to the message for muster-spawn, and from the ranks' FIFOs to their files and their ends."""
    paths, spec = _accept(root, job_id)
    ledger = Ledger(paths, journal.read(paths.journal), lambda *_: None)
    job, account, ours = ledger.job, Account.of(""), os.getpid()
    ledger.commit({"kind": Kind.TAKEN, "pid": ours, "takeover": False}, sync=False)
    ledger.commit({"kind": Kind.PREPARING, "attempt": 0, "cgroup": "", "oom_kills": 0}, sync=False)
    builder = spawning.ProcessBuilder(root, spec, job, account)
    builder.make_folders()
    specs, _ = builder.gang({})
    steps = StartSteps()
    program_start.encode([(one.rank, steps.of(one)) for one in specs], 0, 0)
    output = Output(root, job_id, Loop(lambda _: None), ledger, lambda _: None, lambda: None)
    owner = account.uid, account.gid
    output.open_job(owner)
    output.make_fifos(job.ranks, owner)
    output.open(job.ranks, owner, fresh=True)
    spawned = [[rank.rank, *process.identity(ours)] for rank in job.ranks]
    ledger.commit({"kind": Kind.SPAWNED, "ranks": spawned, "boot": process.boot_id()}, sync=False)
    ledger.commit({"kind": Kind.RUNNING, "up": process.uptime()}, sync=False)
    for rank in job.ranks:
        outcome = rank_ends.outcome(job, rank.rank, 0, unborn=False)
        end: Record = {"kind": Kind.EXITED, "rank": rank.rank, "outcome": outcome, "status": 0, "detail": ""}
        end["usage"] = process.usage(ours)
        ledger.commit(end, sync=False)
        messages.decode(messages.encode({"op": "journal", "records": [end]}))
    output.say("rehearsal")
    output.drain(last=True)
    verdict.reach(job, rank_ends.first_failure(job), (), "")
    output.close()
    ledger.writer.close()


def _stop_early(root: Root, job_id: str) -> None:
    """A whole supervisor."""
    paths, spec = _accept(root, job_id)
    asked = {"cause": StopCause.REQUESTED, "by": "", "reason": "", "steps": [0.0], "up": process.uptime()}
    _append(paths, [{"kind": Kind.STOPPING} | asked])
    held = lock.take(paths.lock, paths.folder)
    ours, theirs = pair()
    try:
        contents = journal.read(paths.journal)
        gang = RankGang(root, spec, contents, replay(contents.records), theirs, False)
        gang.loop.later(_MOST_S, gang.loop.stop)
        gang.loop.run()
    finally:
        held.close()
        ours.close()
        theirs.close()


def _accept(root: Root, job_id: str) -> tuple[JobPaths, JobSpec]:
    """A job as the daemon gives it to a supervisor."""
    paths = root.job(job_id)
    paths.folder.mkdir(mode=0o700)
    paths.spec.write_text(JobSpec(job_id=job_id, command=("true",), ranks=_RANKS).to_json())
    paths.spec.chmod(0o600)
    _append(paths, list(_accepted()))
    return paths, JobSpec.read(paths.spec, job_id)


def _accepted() -> Iterator[Record]:
    yield {
        "kind": Kind.ACCEPTED, "format": journal.FORMAT, "digest": "", "boot": process.boot_id(),
        "up": process.uptime(), "card_kind": "slot", "doubts": [], "master_addr": "127.0.0.1", "master_port": 1,
        "by": "", "first_rank": 0, "devices": list(range(_RANKS)), "cards": [], "node_rank": 0, "node_count": 1,
        "node_name": "", "local_ranks": _RANKS, "world_size": _RANKS, "hardening": {},
    }  # fmt: skip
    yield {"kind": Kind.CHECKING}
    yield {"kind": Kind.CHECKED, "ok": True, "results": [], "skipped": ""}


def _append(paths: JobPaths, records: list[Record]) -> None:
    """Without its synchronization, which would keep the disk from those who need it."""
    there = journal.read(paths.journal) if paths.journal.exists() else Contents([], 0, torn=False)
    writer = Writer(paths.journal, there)
    writer.append([{"t": time.time()} | record for record in records], sync=False)
    writer.close()
