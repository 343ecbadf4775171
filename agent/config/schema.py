"""Every setting of musterd by its table in the configuration file. Settings that belong to a probe are declared there;
the table of this file derives from them. What a declaration says: probes/settings.py.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, cast, get_type_hints

from muster.agent.config import rules
from muster.agent.config.access_settings import AccessTable, SocketTable, TlsTable
from muster.agent.config.hardening_settings import HardeningTable
from muster.agent.config.notify_settings import NotifyTable
from muster.agent.config.reset_settings import ResetTable
from muster.probes.active.active_settings import ActiveSettings
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.cards.sampler import SamplerSettings
from muster.probes.checks.check_settings import CheckSettings
from muster.probes.hang import HangSettings
from muster.probes.hang.slow import SlowSettings
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.node_settings import NodeSettings
from muster.probes.settings import Settings, optional_path, percent, setting, settings_of, unknown
from muster.supervisors.model.spec import DEFAULT_GRACE_STEPS, MAX_GRACE_S, MAX_RANKS
from muster.supervisors.system.settings_file import LogSettings


@dataclass(frozen=True, slots=True)
class DaemonTable(Settings):
    """The daemon itself."""

    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The lowest level that musterd logs.")
    log_format: Literal["auto", "json", "console"] = setting(
        "auto",
        "`json`: one line per event. `console`: for reading. `auto`: console on a terminal, entries with fields in "
        "systemd's journal, JSON elsewhere. musterd logs to stderr.",
        restart=True,
    )
    stop_jobs: Literal["auto", "always", "never"] = setting(
        "auto",
        "Whether SIGTERM to musterd stops its jobs, with their grace, before musterd exits. `never`: the jobs run "
        "on, and the next musterd finds them. `auto`: only where musterd is PID 1, because the end of PID 1 ends "
        "every process of the container ([musterd in a container](guides/containers.md)).",
    )


@dataclass(frozen=True, slots=True)
class JobsTable(Settings):
    """Jobs and their records."""

    max_jobs: int = rules.count(256, "Jobs that have not ended, at most. musterd refuses one more with TOO_MANY_JOBS.")
    max_ranks: int = setting(MAX_RANKS, "Ranks of one job on this node, at most.", least=1, most=MAX_RANKS)
    grace_steps: tuple[float, ...] = setting(
        DEFAULT_GRACE_STEPS,
        "The steps of a stop, for jobs without their own: SIGTERM, a look after each of these times, then "
        "SIGKILL. It applies before a restart as well. A job keeps the steps that were in force when it was accepted.",
        what=f"1 to 64 numbers (seconds), together at most {MAX_GRACE_S:.0f}",
        rule=rules.grace_steps,
    )
    mpi_sshd: Literal["auto", "always", "never"] = setting(
        "auto",
        "Whether muster starts an sshd for each MPI job of several nodes, as a service of the job "
        "([An MPI job: sshd](guides/mpi.md#sshd)); auto: for a job with the variables of a ModelArts container.",
    )
    keep_ended: int = setting(
        1000,
        "Records of ended jobs, at most. 0: no limit. muster removes the record of the job that ended first, writes an "
        "event `job.collected`, and keeps only the job's logs and events ([The life of a job: records of ended "
        "jobs](concepts/jobs.md#records-of-ended-jobs)).",
        most=rules.MAX_COUNT,
    )
    keep_ended_days: float = setting(
        30.0, "How long muster keeps the record of an ended job. 0: no limit.", most=rules.MAX_DAYS
    )
    keep_events_bytes: int = setting(
        8 << 20, "Disk space of the history of events. The oldest go first.", least=64 << 10, most=1 << 40
    )
    spawn_program: bool = setting(
        True,
        "Whether the program `muster-spawn` creates the processes of jobs ([How processes are "
        "created](concepts/creation.md)). "
        "If not, and wherever the program cannot be used, their supervisor forks them, which takes longer.",
    )


#: So many connections a listener takes at least, whatever `max_connections` says and however few descriptors there are.
LEAST_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class LimitsTable(Settings):
    """Each listener (the operators' socket, the readers' socket, TCP) has these slots for itself, so readers take none
    from operators. musterd refuses one more call with TOO_MANY_STREAMS
    ([Security: limits](concepts/security.md#limits)). muster's own commands wait for a slot, print a note after a
    second, and continue by themselves."""

    max_followers: int = rules.count(256, "Readers of logs at the same time, per listener.")
    max_watchers: int = rules.count(
        256, "Watchers of events at the same time, per listener; as many again read records of telemetry."
    )
    client_percent: int = setting(
        50,
        "Share of the slots of each kind that one client may have. A client is a certificate, or on a unix socket a "
        "user of the node other than root and musterd's own, if it sends its token.",
        least=1,
        most=100,
    )
    reserved_percent: int = setting(
        25,
        "Share of the slots of each kind that readers leave to operators, on the listener that they share (TCP).",
        most=90,
    )
    max_connections: int = rules.count(
        256,
        "Connections of the readers' socket, and of TCP; the operators' socket takes four times as many. Together they "
        "take at most half of the daemon's descriptors (`LimitNOFILE=`; musterd raises its soft limit to the hard one, "
        "and needs 64). musterd closes one more at once, and one without a call after a minute.",
        restart=True,
    )
    # Below the least gRPC could not even carry an error; a message above the most would not fit into memory.
    max_message_bytes: int = setting(
        4 << 20, "The largest request that musterd takes.", least=64 << 10, most=1 << 30, restart=True
    )


@dataclass(frozen=True, slots=True)
class ExecTable(Settings):
    """Commands in jobs ([Commands in a job](guides/exec.md))."""

    max_sessions: int = setting(64, "Sessions of one job that have not ended, at most. 0 allows none.", most=1000)
    max_streams: int = rules.count(
        256,
        "Clients of sessions, and commands of schedulers, at the same time, per listener. `client_percent` and "
        "`reserved_percent` of `[limits]` apply here, too. musterd refuses one more with TOO_MANY.",
    )
    abandoned_s: float = rules.seconds(
        600.0,
        "muster ends a session after this time without a client, unless its client detached on purpose. It keeps the "
        "end of a session for as long.",
    )
    grace_s: float = setting(5.0, "From SIGHUP or SIGTERM to SIGKILL when muster ends a session.", most=600)


@dataclass(frozen=True, slots=True)
class LogsTable(Settings):
    """Logs of jobs. [Retention of log files](guides/logs-keeping.md) describes what becomes of the files."""

    max_file_bytes: int = setting(
        LogSettings().max_file_bytes, "muster rotates a rank's file that is larger. 0: no limit.", most=1 << 50
    )
    max_job_bytes: int = setting(
        LogSettings().max_job_bytes,
        "A running job whose files take more loses its oldest segments. 0: no limit.",
        most=1 << 60,
    )
    max_node_bytes: int = setting(
        0,
        "Size of all logs of the node. Above it muster removes files of ended jobs, oldest first. 0: no limit.",
        most=1 << 60,
    )
    keep_days: float = setting(
        30.0, "muster removes the files of a job this long after its end. 0: never.", most=rules.MAX_DAYS
    )
    min_free_percent: float = setting(
        5.0,
        "muster removes files of ended jobs, oldest first, while the log folder's file system has less room. 0: never.",
        most=99,
    )
    compress: Literal["gzip", "off"] = setting("gzip", "How muster compresses rotated segments.")
    worker_log: Literal["auto", "off", "plain", "labelled"] = setting(
        "auto",
        "Whether each job has one more file, with the lines of all ranks. `labelled`: with the rank in each line. "
        "`auto`: `plain` for jobs with ModelArts' variables in their environment or `--boot command`, unless the "
        "platform has that file in its container; other jobs have none.",
    )
    upload: tuple[str, ...] = rules.command(
        (),
        "Program that gets the files of ended jobs and rotated segments. muster removes a file only after that.",
    )
    upload_timeout_s: float = setting(
        3600.0, "musterd kills that program after this time, and tries again.", above=0, most=rules.DAY_S
    )


@dataclass(frozen=True, slots=True)
class CardsTable(DriverSettings):
    """The cards of the node."""

    bind_cpus: Literal["affinity", "none"] = setting(
        "affinity", "`affinity`: ranks run on the CPUs near their card, as its driver reports. `none`: on any."
    )
    release_timeout_s: float = rules.seconds(
        30.0,
        "How long musterd waits, when a job has ended, until no process of the job is left on its cards. After that it "
        "reports who holds them.",
    )
    release_memory_mb: float = setting(
        100.0,
        "A card whose memory in use grew by more than this during the job, and whose driver names no process, is not "
        "free.",
        most=rules.MAX_COUNT,
    )


@dataclass(frozen=True, slots=True)
class ChecksTable(CheckSettings):
    """The checks before a start. [What the checks measure](concepts/check-measurements.md) describes each.

    A job skips them with `skip_check` in its spec, or with `MA_SKIP_IMAGE_DETECT=0` in its environment; its record says
    so. It skips no condition of the node: what `muster node` shows as CRITICAL refuses the job all the same (`policy`
    in `[health]`)."""

    policy: Literal["enforce", "warn", "off"] = setting(
        "enforce",
        "`enforce`: a CRITICAL finding ends the job as FAILED with RETRY_ELSEWHERE before anything starts; with "
        "`--max-restarts` muster checks the node again first, so many times. `warn`: muster records findings and "
        "starts the job. `off`: no checks.",
    )


@dataclass(frozen=True, slots=True)
class HealthTable(NodeSettings):
    """The checks of the node, which run all the time. [What the checks measure](concepts/check-measurements.md)
    describes each. Lists are text with commas; an empty list switches its rule off."""

    policy: Literal["enforce", "warn", "off"] = setting(
        "enforce",
        "`enforce`: a CRITICAL condition refuses new jobs on the node, or on its card (NODE_UNHEALTHY); one about all "
        "cards refuses jobs that want cards. `warn`: muster reports it and refuses nothing. `off`: no checks.",
    )
    clear_looks: int = setting(
        2, "Looks in a row that must find nothing before a condition is cleared.", least=1, most=1000
    )
    inject_s: float = rules.seconds(3600.0, "A drill (`muster check inject`) ends by itself after this time.")


@dataclass(frozen=True, slots=True)
class HangTable(HangSettings):
    """Whether a job hangs. [Is a job hung?](concepts/hang.md) describes the rule, with the reason of each number. What
    is "per minute" is counted over `period_s`. A job may have its own values (`hang` in its spec), except of
    `enabled` and `action`."""

    enabled: bool = setting(True, "Whether the rule runs. It needs `telemetry.enabled`.")
    action: Literal["notify", "stop", "restart"] = setting(
        "notify",
        "What muster does about a job that is HUNG and has no `on_hang` of its own. `notify`: it reports the hang. "
        "`stop`: it ends the job as failed. `restart`: it ends the job and starts it again, within its restarts.",
    )
    library: bool = setting(
        True,
        "Whether muster asks the communication library of a job that is SUSPECT where its ranks wait: PyTorch's flight "
        "recorder where the job has a pipe for that, HCCL's detector in the log of CANN, NCCL's RAS from 2.29.2 on.",
    )
    flight_recorder: bool = setting(
        False,
        "Whether muster gives ranks that start the variables with which PyTorch's flight recorder answers in a second. "
        "Variables that the job sets stay. The dumps are in the folder of the job's further logs.",
    )


@dataclass(frozen=True, slots=True)
class SlowTable(SlowSettings):
    """Whether a rank of a running job is SLOW. [Is a rank slow?](concepts/slow-rank.md) describes the rule, with the
    reason of each number. Nothing acts on it."""

    enabled: bool = setting(True, "Whether the rule runs. It needs `telemetry.enabled`, and `hang.enabled`.")


@dataclass(frozen=True, slots=True)
class WhyTable(Settings):
    """Why a job ended ([Find out why a job ended](guides/why.md))."""

    signatures_dir: str = setting(
        "/etc/muster/signatures.d", "Folder with error signatures of your own, `*.toml`. Empty: none."
    )
    report_dir: str = optional_path(
        "", "musterd writes the report of each failed job into this folder, as `muster report` does. Empty: none."
    )
    reports_kept: int = setting(
        200, "The newest reports that stay in `report_dir`; musterd removes older ones.", least=1, most=100_000
    )


@dataclass(frozen=True, slots=True)
class TelemetryTable(SamplerSettings):
    """What musterd samples, and what it keeps. [Telemetry](concepts/telemetry.md) describes the records."""

    history_days: float = setting(3.0, "How far back the history goes.", above=0, most=366)
    history_bytes: int = setting(
        256 << 20,
        "Disk space of the history. musterd removes the history of the jobs that ended first.",
        least=1 << 20,
        most=1 << 40,
    )
    underused_percent: float = percent(
        50.0, "muster reports a job whose cards have less utilization than this on average."
    )
    underused_after_s: float = rules.seconds(1800.0, "The least time over which that average is taken.")
    record: str = setting("", "Append telemetry records to this file (`musterd --record FILE`). Empty: none.")


@dataclass(frozen=True, slots=True)
class MetricsTable(Settings):
    """Metrics for Prometheus. [Metrics](reference/metrics.md) has their names."""

    listen: str = setting(
        "",
        "Where musterd serves the metrics: `127.0.0.1:9835` (127.x, [::1] or localhost, with a port) or "
        "`unix:/run/muster/metrics.sock`. Empty: nowhere.",
        what="a loopback address with a port, unix:/PATH, or empty",
        rule=rules.listen,
    )
    textfile: str = setting(
        "",
        "musterd writes the metrics to this file, for node_exporter's textfile collector. Empty: to none.",
        what="an absolute path that ends in .prom, or empty",
        rule=rules.textfile,
    )
    textfile_s: float = rules.period(15.0, "Between two writes of that file.")
    job_info: bool = setting(
        True, "Show in `muster_card_job_info` which job holds each card. Local users can then read the ids of jobs."
    )
    dcgm_names: bool = setting(False, "Also show readings of NVIDIA cards under the names and labels of dcgm-exporter.")
    npu_names: bool = setting(False, "Also show readings of Ascend cards under the names and labels of npu-exporter.")


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file, a field per table. A table or key that is missing has its default."""

    daemon: DaemonTable = DaemonTable()
    jobs: JobsTable = JobsTable()
    hardening: HardeningTable = HardeningTable()
    limits: LimitsTable = LimitsTable()
    exec: ExecTable = ExecTable()
    logs: LogsTable = LogsTable()
    cards: CardsTable = CardsTable()
    checks: ChecksTable = ChecksTable()
    health: HealthTable = HealthTable()
    active: ActiveSettings = ActiveSettings()
    reset: ResetTable = ResetTable()
    hang: HangTable = HangTable()
    slow: SlowTable = SlowTable()
    telemetry: TelemetryTable = TelemetryTable()
    metrics: MetricsTable = MetricsTable()
    notify: NotifyTable = NotifyTable()
    why: WhyTable = WhyTable()
    access: AccessTable = AccessTable()
    socket: SocketTable = SocketTable()
    tls: TlsTable = TlsTable()

    def with_written(self, texts: Mapping[str, str]) -> "Config":
        """With other settings of the checks ([checks], [health]), as they are written on a command line. A name that
        both have is meant for both. Raises ValueError with one sentence."""
        known: dict[str, type[Settings]] = {"checks": CheckSettings, "health": NodeSettings}
        names = [name for kind in known.values() for name in settings_of(kind)]
        for name in texts:
            if name not in names:
                raise ValueError(unknown(name, names))
        changed: dict[str, Any] = {
            table: getattr(self, table).with_written({n: text for n, text in texts.items() if n in settings_of(kind)})
            for table, kind in known.items()
        }
        return replace(self, **changed)


#: The class of each table, by its name in the file.
TABLES: Mapping[str, type[Settings]] = cast("Any", get_type_hints(Config))


def restart_needed(old: Config, new: Config) -> list[str]:
    """Settings whose new value takes effect when the daemon is started again."""
    return [
        f"{table.name}.{name}"
        for table in fields(Config)
        for name, declared in settings_of(TABLES[table.name]).items()
        if declared.restart and getattr(getattr(old, table.name), name) != getattr(getattr(new, table.name), name)
    ]
