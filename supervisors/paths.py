"""Where everything lies. The one place that knows file names."""

import functools
import os
import re
import sys
import zlib
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass

#: Names a folder for all of them, as `--root`.
ROOT_VARIABLE = "MUSTER_ROOT"
#: Bytes that the path of a unix socket may have (sun_path less its NUL).
MAX_SOCKET = 107


@functools.cache
def code() -> str:
    """Which code of supervisors it is that runs, as it was when this was asked first, and in which environment: eight
    hexadecimal digits. An environment is removed once its last job has ended, and what supervisors that were started
    from it execute (programs of a boot mode, say) with it."""
    here = Path(__file__).parent
    crc = zlib.crc32(f"{os.path.realpath(sys.prefix)} {sys.version}".encode())
    for folder in (here, here.parent / "probes/kernel"):
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("muster-spawn")]):
            crc = zlib.crc32(path.read_bytes(), crc)
    return f"{crc:08x}"


@functools.lru_cache(maxsize=512)
def _within(folder: Path, name: str) -> Path:
    """Of what is asked for several times for each rank of a job: to join a path costs ten times as much."""
    return folder / name


@dataclass(frozen=True, slots=True)
class JobPaths:
    """Files of one job, in `<state>/jobs/<id>/` (mode 0700, owned by the daemon's user)."""

    folder: Path
    #: The node's run folder.
    run: Path | None = None

    @property
    def spec(self) -> Path:
        """The spec as JSON, environment values included; mode 0600."""
        return self.folder / "spec.json"

    @property
    def journal(self) -> Path:
        """What happened, a record a line; see `journal.py`."""
        return self.folder / "journal"

    @property
    def lock(self) -> Path:
        """The process that holds a POSIX lock on this file is the job's supervisor."""
        return self.folder / "lock"

    @property
    def control(self) -> Path:
        """Unix socket of the supervisor."""
        return self.folder / "control"

    @property
    def controls(self) -> tuple[Path, ...]:
        """Where that socket may be: in the run folder, if it cannot be made in this one (read-only, full)."""
        return (self.control, self.run / "controls" / self.folder.name) if self.run is not None else (self.control,)

    @property
    def seccomp(self) -> Path:
        """The filter of its system calls, as the kernel takes it."""
        return self.folder / "seccomp"

    @property
    def unborn(self) -> Path:
        """Lines of children that never became a rank: the gate closed before them, or their command did not execute."""
        return self.folder / "unborn"

    @property
    def lost(self) -> Path:
        """Bytes of output that could not be written, per rank; see `gaps.Counts`."""
        return self.folder / "lost"

    @property
    def ends(self) -> Path:
        """Where the output of each rank ends; see `gaps.Counts`."""
        return self.folder / "ends"

    @property
    def spare_counts(self) -> tuple[Path, Path] | None:
        """In the place of `lost` and `ends`, while these cannot be written; see `gaps.Counts`."""
        if self.run is None:
            return None
        folder, name = self.run / "counts", self.folder.name
        return folder / f"{name}.lost", folder / f"{name}.ends"

    @property
    def sinks(self) -> Path | None:
        """A folder of files that take the output which nothing else takes; see `gaps.GapSink`."""
        return self.run / "counts" / f"{self.folder.name}.gaps" if self.run is not None else None

    @property
    def workspace(self) -> Path:
        """Holds one working folder per rank, unless the spec names another."""
        return self.folder / "workspace"

    @property
    def rank_table(self) -> Path:
        """The rank table as HCCL reads it (template 1); readable for the job's user."""
        return self.folder / "rank_table.json"

    @property
    def packages(self) -> Path:
        """Where the job's requirements are installed."""
        return self.folder / "packages"

    @property
    def sshd(self) -> Path:
        """Host key and configuration of the sshd that muster starts for an MPI job; belongs to the job's user."""
        return self.folder / "sshd"

    @property
    def staging_order(self) -> Path:
        """What the step that copies inputs or outputs is to copy; belongs to the job's user, mode 0600."""
        return self.folder / "staging.order"

    @property
    def staging_progress(self) -> Path:
        """How far it is; belongs to the job's user, who writes it. See `StagingProgress`."""
        return self.folder / "staging.progress"

    @property
    def explained(self) -> Path:
        """The explained verdict of an ended job; the daemon writes it."""
        return self.folder / "explained.json"

    @property
    def hang(self) -> Path:
        """What the hang rule remembers; see agent/hang/hang_state.py."""
        return self.folder / "hang.json"

    @property
    def exports(self) -> Path:
        """The environment that pre_start left, each variable ended by NUL; belongs to the job's user, mode 0600."""
        return self.folder / "exports"

    @property
    def cards_now(self) -> Path:
        """What the driver says of the job's cards now, where that is other than the journal says; see `CardsNow`."""
        return self.folder / "cards.json"

    @property
    def cards_free(self) -> Path:
        """There once the cards of the ended job were seen to be free: the next daemon need not look again."""
        return self.folder / "cards_free"

    @property
    def worker(self) -> Path:
        """How far the worker log goes; see agent/logs/log_worker.py."""
        return self.folder / "worker.json"

    @property
    def lines_written(self) -> Path:
        """Exists once the logs of the ended job have the lines of the gaps in which it ended."""
        return self.folder / "gap_lines_written"

    @property
    def uploaded(self) -> Path:
        """Which log files a program of the operator's has taken; see agent/logs/log_upload.py."""
        return self.folder / "uploaded"

    @property
    def job_fifo(self) -> Path:
        """What is to stand in the job's log: lines of the supervisor, output of the steps."""
        return self.folder / "job.fifo"

    def fifo(self, rank: int) -> Path:
        """stdout and stderr of a rank."""
        return _within(self.folder, f"rank-{rank}.fifo")

    def service_fifo(self, index: int) -> Path:
        """stdout and stderr of a service."""
        return self.folder / f"service-{index}.fifo"


def rank_log_name(job_id: str, rank: int, device: int) -> str:
    """Name of the file for the output of a rank, as ModelArts' launcher calls it."""
    return f"{job_id}-proc-rank-{rank}-device-{device}.txt"


def index_of(log: Path) -> Path:
    """The time index beside a log; see `time_index.py`."""
    return log.with_suffix(".idx")


#: Suffix of the folder that a job gets if the usual one belongs to another user.
OWN_LOGS = ".logs"
#: What muster calls files and folders among the logs. The folder of a job's further logs has the job's name, and what
#: lies beside it a name that begins with it.
_RESERVED = re.compile(
    r"(?:audit|nursery|musterd)\.log.*|.+\.(?:idx|removed|new|part|logs)|"
    r".+-proc-rank-\d+-device-\d+\..*|.+-(?:(?:muster|worker)-\d+|service-\d+-\d+)\.(?:log|idx|html).*"
)


def is_reserved(name: str) -> bool:
    """Whether muster may call a file of its own so: then it cannot be a job's name."""
    return _RESERVED.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Root:
    """The three folders of a node. `--root DIR` puts them below one; the system's defaults are absolute."""

    run: Path
    state: Path
    log: Path

    @classmethod
    def under(cls, folder: Path) -> "Root":
        """The layout of `--root`."""
        return cls(run=folder / "run", state=folder / "state", log=folder / "log")

    @classmethod
    def system(cls) -> "Root":
        """The layout of a service."""
        return cls(run=Path("/run/muster"), state=Path("/var/lib/muster"), log=Path("/var/log/muster"))

    @property
    def config(self) -> Path:
        """The daemon's configuration, where no other file is named; it need not exist."""
        return Path("/etc/muster/musterd.toml") if self == Root.system() else self.run.parent / "musterd.toml"

    @property
    def socket(self) -> Path:
        """The daemon's gRPC socket."""
        return self.run / "muster.sock"

    @property
    def reader_socket(self) -> Path:
        """The daemon's second gRPC socket, for users who may read only."""
        return self.run / "reader.sock"

    @property
    def identity_socket(self) -> Path:
        """Gives a process the token that says who it is; see agent/api/identity.py."""
        return self.run / "identity.sock"

    @property
    def audit_log(self) -> Path:
        """Who changed what, a JSON object a line; see agent/api/audit.py."""
        return self.log / "audit.log"

    @property
    def daemon_lock(self) -> Path:
        """Held by the daemon: one per run folder."""
        return self.run / "musterd.lock"

    @property
    def crash_stack(self) -> Path:
        """The stack with which the daemon crashed; see agent/node/driver_crashes.py."""
        return self.run / "crash.stack"

    @property
    def driver_crashes(self) -> Path:
        """How often the daemon crashed in a driver's library."""
        return self.run / "driver_crashes.json"

    @property
    def state_lock(self) -> Path:
        """Held by the daemon, too: one per state folder, also where its run folder was removed under it."""
        return self.state / "musterd.lock"

    @property
    def nursery_name(self) -> str:
        """Of the nursery for this code. That of another release stays with the jobs that it has."""
        return f"nursery-{code()}"

    @property
    def nursery_socket(self) -> Path:
        """Where the nursery for this code listens."""
        return self.run / f"{self.nursery_name}.sock"

    @property
    def nursery_lock(self) -> Path:
        """Held by the nursery for this code: one per root."""
        return self.run / f"{self.nursery_name}.lock"

    def nursery_lock_aside(self, pid: int) -> Path:
        """The lock of a nursery that does not answer, once another one is to have its name."""
        return self.run / f"{self.nursery_name}.{pid}.lock"

    @property
    def rehearsal(self) -> Path:
        """Where nursery and supervisors of this code rehearse a job; see supervisors/nursery/rehearsal.py."""
        return self.run / f"{self.nursery_name}.rehearsal"

    @property
    def nursery_log(self) -> Path:
        """What nursery and supervisors have to say that is in no journal (a defect's traceback, say)."""
        return self.log / "nursery.log"

    @property
    def faults(self) -> Path:
        """What is wrong with the node and its cards, as the daemon saw it last; see `hardware.py`."""
        return self.state / "faults.json"

    @property
    def settings(self) -> Path:
        """What of the daemon's configuration supervisors go by; see `settings_file.py`."""
        return self.state / "settings.json"

    def stop_order(self, job_id: str) -> Path:
        """A stop that no supervisor took; see `stop_order.py`."""
        return self.run / "stops" / job_id

    @property
    def collected_logs(self) -> Path:
        """Whose the log files are of jobs whose records were collected; see agent/jobs/ended/collected_logs.py."""
        return self.state / "collected_logs"

    @property
    def removing(self) -> Path:
        """Log files that are being removed; see agent/logs/log_keeping.py."""
        return self.state / "removing.json"

    @property
    def version(self) -> Path:
        """One line: the format of the state folder."""
        return self.state / "version"

    @property
    def node(self) -> Path:
        """The conditions of the node, its counts and its cards; see agent/node/node_file.py."""
        return self.state / "node.json"

    @property
    def active_figures(self) -> Path:
        """What active tests came to; see agent/node/active_look.py."""
        return self.state / "active.json"

    @property
    def reset(self) -> Path:
        """A reset that is under way; see agent/reset/reset_file.py."""
        return self.state / "reset.json"

    @property
    def outbox(self) -> Path:
        """Notifications that nobody has taken yet; see agent/notify/backlog.py."""
        return self.state / "notify.json"

    @property
    def telemetry(self) -> Path:
        """The history of readings; see agent/telemetry/history/."""
        return self.state / "telemetry.db"

    @property
    def jobs(self) -> Path:
        """A folder for each job."""
        return self.state / "jobs"

    @property
    def events(self) -> Path:
        """The history of events."""
        return self.state / "events"

    def job(self, job_id: str) -> JobPaths:
        """The files of a job."""
        return JobPaths(self.jobs / job_id, self.run)

    def rank_log(self, job_id: str, rank: int, device: int) -> Path:
        """The file that a rank's output goes to."""
        return self.log / rank_log_name(job_id, rank, device)

    def job_log(self, job_id: str, node_rank: int) -> Path:
        """What muster did for the job on this node. Not `-worker-N.log`: on ModelArts that is the platform's own."""
        return self.log / f"{job_id}-muster-{node_rank}.log"

    def report(self, job_id: str, node_rank: int) -> Path:
        """The report of a standalone run that has failed."""
        return self.log / f"{job_id}-muster-{node_rank}.html"

    def worker_log(self, job_id: str, node_rank: int) -> Path:
        """The lines of all ranks in one file, where a setting wants it; the name is ModelArts' for a node's log."""
        return self.log / f"{job_id}-worker-{node_rank}.log"

    def service_log(self, job_id: str, node_rank: int, index: int) -> Path:
        """The file that the output of a service goes to."""
        return self.log / f"{job_id}-service-{node_rank}-{index}.log"

    def job_index(self, job_id: str, node_rank: int) -> Path:
        """When which part of the job's own log was written."""
        return index_of(self.job_log(job_id, node_rank))

    def job_logs(self, job_id: str) -> Path:
        """Folder of further logs of a job (plog of CANN, launchers' own); it belongs to the job's user."""
        return self.log / job_id

    def own_job_logs(self, job_id: str) -> Path:
        """In its place, where that belongs to another user: two jobs may have the same name (MA_VJ_NAME)."""
        return self.log / f"{job_id}{OWN_LOGS}"

    def rank_index(self, job_id: str, rank: int, device: int) -> Path:
        """The time index beside it."""
        return index_of(self.rank_log(job_id, rank, device))
