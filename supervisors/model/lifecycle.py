"""A job as the sum of its records. No code sets its state: replay.py defines what each record changes."""

from dataclasses import field
from typing import Any

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import SLOT
from muster.supervisors.model.hardening import Hardening
from muster.supervisors.model.states import SERVICE, STEP, Outcome, State, StopCause, service_number
from muster.supervisors.supervision_errors import IllegalTransition

#: Roles of the processes that start the ranks, in boot modes other than "ranks": a launcher; on each node of an MPI job
#: the program of launch/mpi/.
LAUNCHER, MPI_LEAD, MPI_WAIT = "launcher", "mpi-lead", "mpi-wait"


@dataclass(slots=True)
class Usage:
    """What a process used, with the descendants that it waited for; times in seconds, the rest in bytes.
    None: it could not be read."""

    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    max_rss: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    rchar: int | None = None
    wchar: int | None = None


@dataclass(slots=True)
class Rank:
    """One process of the gang, a step, or a service. `status` is as wait(2) gives it; None: not ended, or unknown.

    `argv` is empty where it is the spec's command. `serves`: it never ends by itself, and ends with the others.
    """

    rank: int
    local_rank: int
    device: int
    pid: int = 0
    start: int = 0
    started_at: float = 0.0
    outcome: Outcome | None = None
    status: int | None = None
    ended_at: float = 0.0
    detail: str = ""
    usage: Usage = field(default_factory=Usage)
    #: Output that could not be written, and why, the last time.
    lost_bytes: int = 0
    lost_why: str = ""
    argv: tuple[str, ...] = ()
    role: str = "rank"
    serves: bool = False
    #: CPUs that it is bound to, as in "0-15,32-47"; empty: to none.
    cpus: str = ""
    #: Pid of the supervisor that took the job over and found it ended: the order among these is not known. 0: known.
    found_by: int = 0
    #: The job's memory limit in bytes, where the kernel killed a process below this one because the job had reached it;
    #: `detail` names the process. 0: it did not.
    memory_limit: int = 0

    @property
    def of_mpi(self) -> bool:
        """It is the program of a node of an MPI job."""
        return self.role in (MPI_LEAD, MPI_WAIT)

    @property
    def launches(self) -> bool:
        """It is no rank, but starts them."""
        return self.role == LAUNCHER or self.of_mpi


@dataclass(slots=True)
class Attempt:
    """An attempt that is over. `log_ends`: bytes of output of each rank until then, of all ever, by rank."""

    number: int
    started_at: float
    ended_at: float
    exit_code: int
    summary: str
    first_failed: int | None = None
    log_ends: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Stop:
    """A stop under way: why, asked by whom, the steps of its grace in seconds, and when it began: seconds of
    CLOCK_BOOTTIME, which no one can set."""

    cause: StopCause
    by: str = ""
    reason: str = ""
    steps: tuple[float, ...] = ()
    at: float = 0.0
    up: float = 0.0
    #: Of a hang: the ranks that are to blame, by number (empty: all), and whether the job is to be started again.
    ranks: tuple[int, ...] = ()
    again: bool = False
    #: As `up`, which a later stop that shortens the grace replaces: when the ranks began to be ended.
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A stop that somebody asked for, also where the ranks were being ended already. `signal_up`: when the supervisor
    itself got SIGTERM, if that was near; 0: it did not. Times in seconds of CLOCK_BOOTTIME."""

    by: str
    reason: str
    up: float
    signal_up: float = 0.0
    #: Since when the job had hung by then, as the daemon knew (seconds since the epoch), and how; 0: it did not.
    hung_since: float = 0.0
    hung_how: str = ""

    @property
    def hang(self) -> str:
        """What was wrong with the job when it was stopped: that it hung. Empty: nothing is known."""
        return f"it hung: {self.hung_how}; then it was stopped by {self.by or 'somebody'}" if self.hung_since else ""


@dataclass(slots=True)
class Verdict:
    """Why a job ended; see proto/muster/v1/job.proto."""

    exit_code: int
    summary: str
    first_failed: int | None = None
    last_lines: tuple[str, ...] = ()
    victims: tuple[int, ...] = ()
    recommendation: str = "NONE"
    recommendation_reason: str = ""
    stopped_by: str = ""


@dataclass(slots=True)
class OpenGap:
    """Output of a rank that is being lost: bytes so far, since when (seconds since the epoch), and why. `due`: when the
    next record of it may come, in seconds of CLOCK_BOOTTIME; 0 where that is not known."""

    bytes: int
    since: float
    error: str
    due: float = 0.0


@dataclass(slots=True)
class Job:
    """What the records so far add up to."""

    state: State = State.ACCEPTED
    digest: str = ""
    boot_id: str = ""
    card_kind: str = SLOT
    master_addr: str = ""
    master_port: int = 0
    node_rank: int = 0
    node_count: int = 1
    #: Ranks of this node and of all nodes, by muster or a launcher; cards that the job holds, by index.
    local_ranks: int = 0
    world_size: int = 0
    cards: tuple[int, ...] = ()
    #: By card: its device node (None: the journal is of an earlier version and does not tell), and the bytes of its
    #: memory that were in use before the job; what CUDA or CANN calls it, where that is not its index; of which card it
    #: is a MIG instance, if it is one.
    card_nodes: dict[int, str] | None = None
    card_used: dict[int, int] = field(default_factory=dict)
    #: UUIDs of its cards, by which the daemon knows them again after the driver counted anew.
    card_uuids: dict[int, str] = field(default_factory=dict)
    card_visible: dict[int, str] = field(default_factory=dict)
    card_parents: dict[int, int] = field(default_factory=dict)
    #: Name of this node in the job, where it is known; the rank table as HCCL reads it: the one that was given, or
    #: `JobPaths.rank_table`; empty for none.
    node_name: str = ""
    table: str = ""
    planned: bool = False
    accepted_by: str = ""
    accepted_at: float = 0.0
    #: In seconds of CLOCK_BOOTTIME; 0 in journals of an earlier version.
    accepted_up: float = 0.0
    started_at: float = 0.0
    started_up: float = 0.0
    #: Seconds that the attempts before this one ran.
    ran_s: float = 0.0
    ended_at: float = 0.0
    attempt: int = 0
    takeovers: int = 0
    supervisor_pid: int = 0
    cgroup: str = ""
    #: Folders of cgroup v1 that its processes are in for their limits, by controller.
    v1_cgroups: dict[str, str] = field(default_factory=dict)
    oom_kills: int = 0
    #: The count of the cgroup around a job without one; None where it was not taken down.
    oom_kills_around: int | None = None
    #: What its processes may not do; and how many of them there can be, as its cgroup says: 0 for any number.
    hardening: Hardening = Hardening()
    max_pids: int = 0
    spawned: bool = False
    ranks: list[Rank] = field(default_factory=list)
    #: Numbers of the ranks that have ended, in the order in which the kernel reported it.
    ends: list[int] = field(default_factory=list)
    #: The step that is run, or was run last, with its name; names of those that are done.
    step: Rank | None = None
    step_name: str = ""
    step_up: float = 0.0
    #: Why muster ends it, where it does, and when SIGKILL comes (seconds of CLOCK_BOOTTIME).
    step_ending: str = ""
    step_kill_up: float = 0.0
    steps_done: set[str] = field(default_factory=set)
    #: What lies beside the boot file, where the spec asks for that: paths by the field of the spec that uses them.
    beside: dict[str, str] = field(default_factory=dict)
    #: What runs beside the ranks of each attempt; when the present ones were made (seconds of CLOCK_BOOTTIME; 0: they
    #: were not), and whether they were told to end, as they are once the ranks have ended.
    services: list[Rank] = field(default_factory=list)
    services_up: float = 0.0
    services_told: bool = False
    #: How often a step was started, by name.
    step_counts: dict[str, int] = field(default_factory=dict)
    past: list[Attempt] = field(default_factory=list)
    #: How many of the attempts before this one hung.
    hang_restarts: int = 0
    #: While RESTARTING: when the next attempt begins, in seconds of CLOCK_BOOTTIME and since the epoch.
    restart_up: float = 0.0
    restart_at: float = 0.0
    checks: list[dict[str, Any]] = field(default_factory=list)
    #: Why it has no pre-check.
    unchecked: str = ""
    warnings: list[str] = field(default_factory=list)
    #: Sentences about what the job gets and might not expect, as cards that are not as good as others; each becomes a
    #: warning before the job begins.
    doubts: list[str] = field(default_factory=list)
    #: By rank (JOB: the job's own log): the gap that is open; and the lines of gaps in which the job ended, which could
    #: not be written into the log.
    gaps: dict[int, OpenGap] = field(default_factory=dict)
    missing_lines: dict[int, str] = field(default_factory=dict)
    #: Bytes of the job's own log that could not be written; and where each log ended with the job, by rank.
    lost_bytes: int = 0
    log_ends: dict[int, int] = field(default_factory=dict)
    stop: Stop | None = None
    #: A person has asked for the end: there is no other attempt.
    halted: bool = False
    #: How that was, the first time; of the present attempt.
    asked: Asked | None = None
    terminated: bool = False
    killed: bool = False
    #: How it will end, once the steps after the ranks are through, and which of them are left, the first of them being
    #: the next or the one that runs; and how it has ended.
    concluded: tuple[State, Verdict] | None = None
    after: tuple[str, ...] = ()
    #: Outputs that were to be copied, and could not: its folder is not to be removed by itself.
    outputs_kept: bool = False
    verdict: Verdict | None = None
    last_time: float = 0.0
    #: Seconds by which the node's clock went back between two records, all together, at least.
    clock_back: float = 0.0

    def rank(self, number: int) -> Rank:
        """The rank with this number over all nodes, the step for STEP, or a service. Raises IllegalTransition for a
        rank that the job does not have."""
        if number == STEP and self.step is not None:
            return self.step
        if number <= SERVICE and service_number(number) < len(self.services):
            return self.services[service_number(number)]
        # Numbers follow one another, but for what a rank table may say.
        index = number - self.ranks[0].rank if self.ranks else -1
        if 0 <= index < len(self.ranks) and self.ranks[index].rank == number:
            return self.ranks[index]
        for rank in self.ranks:
            if rank.rank == number:
                return rank
        raise IllegalTransition(f"the job has no rank {number}")

    @property
    def hardware(self) -> tuple[int, ...]:
        """The job's cards, and those of which they are MIG instances: what is wrong with these is the job's trouble."""
        parents = {self.card_parents[card] for card in self.cards if card in self.card_parents}
        return (*self.cards, *sorted(parents))

    @property
    def in_step(self) -> bool:
        """Whether a step is run at this moment."""
        return self.step is not None and self.step.outcome is None

    @property
    def has_services(self) -> bool:
        """Whether the services of the present attempt were made, and may run."""
        return self.services_up > 0

    @property
    def was_taken(self) -> bool:
        """Whether a supervisor has it, or had it before it died."""
        return bool(self.supervisor_pid)

    @property
    def has_run(self) -> bool:
        """Whether anything of it ever existed: a rank or a step, in this attempt or before."""
        return self.spawned or self.has_services or self.step is not None or bool(self.past)

    @property
    def memory_cgroup(self) -> str:
        """Where the kernel counts the job's memory; empty for nowhere."""
        return self.v1_cgroups.get("memory", self.cgroup)

    @property
    def has_table(self) -> bool:
        """Whether the ranks are given a rank table."""
        return bool(self.table)

    def processes(self) -> list[Rank]:
        """What runs or ran of this attempt: the ranks and the services, or the step before or after them."""
        if self.step is not None and self.in_step:
            return [self.step]
        return [*(self.ranks if self.spawned else ()), *(self.services if self.has_services else ())]

    def made_last(self) -> list[Rank]:
        """Those of them that were made last, behind one gate."""
        if self.in_step or self.spawned:
            return [process for process in self.processes() if process.rank > SERVICE]
        return self.processes()
