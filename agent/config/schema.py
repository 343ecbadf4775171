"""The configuration: every key with its default, and what is said about a file that is wrong.

What the keys mean for an operator is told in docs/configuration.md.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from muster.agent.config import listen_address, notify_settings
from muster.agent.config.notify_settings import NotifyTable
from muster.agent.errors import StartupError
from muster.agent.host.ownership import refuse_others
from muster.probes import hang
from muster.probes.checks import precheck
from muster.probes.checks.ulimits import When
from muster.probes.kernel.trees import HELPERS
from muster.probes.node.node_settings import NodeSettings
from muster.supervisors.model.spec import DEFAULT_GRACE_STEPS, MAX_GRACE_S, MAX_RANKS

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
#: Below this gRPC could not even carry an error, above it a message would not fit into memory in any sensible way.
MessageBytes = Annotated[int, msgspec.Meta(ge=64 << 10, le=1 << 30)]
#: How long something may take, in seconds; and how often something is done.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Period = Annotated[float, msgspec.Meta(ge=0.05, le=86_400)]


class Mode(int):
    """Permission bits of a file."""


class DaemonTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[daemon]"""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    stop_jobs: Literal["auto", "always", "never"] = "auto"


class JobsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[jobs]"""

    max_jobs: Count = 256
    max_ranks: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] = MAX_RANKS
    grace_steps: Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=64)] = DEFAULT_GRACE_STEPS
    keep_events_bytes: Annotated[int, msgspec.Meta(ge=64 << 10, le=1 << 40)] = 8 << 20
    #: Records of ended jobs: how many, and for how many days; 0 is no limit.
    keep_ended: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1000
    keep_ended_days: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 30.0


class LimitsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[limits]: of each listener; what one client may have, and what readers leave to operators, in percent."""

    max_followers: Count = 256
    max_watchers: Count = 256
    max_connections: Count = 256
    client_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 50
    reserved_percent: Annotated[int, msgspec.Meta(ge=0, le=90)] = 25
    max_message_bytes: MessageBytes = 4 << 20


class ExecTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[exec]: sessions in a job and streams of a listener, at once; times in seconds."""

    max_sessions: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 64
    max_streams: Count = 256
    abandoned_s: Seconds = 600.0
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 5.0


class LogsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[logs]: what a file, a job and the node may have, in bytes (0: no limit), and for how long."""

    max_file_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 1 << 30
    max_job_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] = 0
    max_node_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 60)] = 0
    keep_days: Annotated[float, msgspec.Meta(ge=0, le=3660)] = 30.0
    min_free_percent: Annotated[float, msgspec.Meta(ge=0, le=99)] = 5.0
    compress: Literal["gzip", "off"] = "gzip"
    worker_log: Literal["off", "plain", "labelled"] = "off"
    upload: tuple[str, ...] = ()
    upload_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0


class CardsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[cards]"""

    slots: Annotated[int, msgspec.Meta(ge=0, le=MAX_RANKS)] = 0
    driver_deadline_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    bind_cpus: Literal["affinity", "none"] = "affinity"
    release_timeout_s: Seconds = 30.0
    release_memory_mb: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 100.0


class TelemetryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[telemetry]: periods in seconds; what is kept, in days and bytes."""

    enabled: bool = True
    readings_s: Period = 1.0
    health_s: Period = 15.0
    holders_s: Period = 60.0
    processes_s: Period = 15.0
    history_days: Annotated[float, msgspec.Meta(gt=0, le=366)] = 3.0
    history_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 256 << 20
    underused_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 50.0
    underused_after_s: Seconds = 1800.0
    record: str = ""
    helpers: tuple[str, ...] = HELPERS


@dataclass(frozen=True, slots=True)
class HealthTable(NodeSettings):
    """[health]: what to do with a condition, and the settings of probes/node/node_checks.py by their names there."""

    policy: Literal["enforce", "warn", "off"] = "enforce"
    #: Looks in a row that must find nothing before a condition goes.
    clear_looks: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    #: Seconds after which a drill ends by itself.
    inject_s: Seconds = 3600.0

    def settings(self) -> NodeSettings:
        """For the probes."""
        return self


@dataclass(frozen=True, slots=True)
class HangTable(hang.HangSettings):
    """[hang]: whether the rule runs, what is done about a hang, and probes/hang's settings by their names there."""

    enabled: bool = True
    action: Literal["notify", "stop", "restart"] = "notify"


class WhyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[why]"""

    signatures_dir: str = "/etc/muster/signatures.d"


class MetricsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[metrics]"""

    listen: str = ""
    textfile: str = ""
    textfile_s: Period = 15.0
    dcgm_names: bool = False
    npu_names: bool = False


class ChecksTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[checks]: what to do with a finding, and the settings of probes/checks/precheck.py by their names there."""

    policy: Literal["enforce", "warn", "off"] = "enforce"
    deadline_s: float = 10.0
    root_path: str = "/"
    root_min_gb: float = 32.0
    root_required: bool = False
    shm_path: str = "/dev/shm"
    shm_min_gb: float = 1.0
    shm_required: bool = False
    cache_path: str = "/cache"
    cache_min_gb: float = 32.0
    cache_required: bool = False
    disk_free_percent: float = 10.0
    host_files: str = "/etc/volcano"
    ulimits: When = "infiniband"
    infiniband_path: str = "/sys/class/infiniband"
    memlock_min_kb: int = 16_000
    nofile_min: int = 1_000_000
    stack_min_kb: int = 8_000
    nproc_min: int = 1_000_000
    custom_dir: str = ""

    def settings(self) -> precheck.CheckSettings:
        """For the probes. Raises ValueError for a value that cannot be meant."""
        return precheck.CheckSettings(**{f.name: getattr(self, f.name) for f in fields(precheck.CheckSettings)})


#: How a setting of each type is read from a command line, and what it must be.
_WRITTEN: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "text"),
}


class SocketTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[socket]"""

    mode: Mode = Mode(0o660)
    group: str = "muster"
    #: A second socket, reader.sock, for those who may look and do nothing.
    reader: bool = True
    reader_mode: Mode = Mode(0o660)
    reader_group: str = "muster-readers"


class TlsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[tls]: the TCP listener, off by default. Names are those of clients' certificates (SAN or CN)."""

    listen: str = ""
    certificate: str = ""
    key: str = ""
    client_authority: str = ""
    operators: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; a table or key that is missing has its default."""

    daemon: DaemonTable = DaemonTable()
    jobs: JobsTable = JobsTable()
    limits: LimitsTable = LimitsTable()
    exec: ExecTable = ExecTable()
    logs: LogsTable = LogsTable()
    cards: CardsTable = CardsTable()
    checks: ChecksTable = ChecksTable()
    health: HealthTable = HealthTable()
    hang: HangTable = HangTable()
    telemetry: TelemetryTable = TelemetryTable()
    metrics: MetricsTable = MetricsTable()
    notify: NotifyTable = NotifyTable()
    why: WhyTable = WhyTable()
    socket: SocketTable = SocketTable()
    tls: TlsTable = TlsTable()

    def with_written(self, changes: Mapping[str, str]) -> "Config":
        """With other thresholds of checks ([checks], [health]), as they are written on a command line.

        Raises ValueError with one sentence.
        """
        of_start, of_node = ([f.name for f in fields(kind)] for kind in (precheck.CheckSettings, NodeSettings))
        values: dict[str, Any] = {}
        for name, text in changes.items():
            if name not in of_start and name not in of_node:
                known = [*of_start, *of_node]
                raise ValueError(_unknown(name, difflib.get_close_matches(name, known, 1), known))
            read, allowed = _WRITTEN[type(getattr(self.checks if name in of_start else self.health, name))]
            try:
                values[name] = read(text)
            except (KeyError, ValueError):
                raise ValueError(f"{name}: {text!r}: must be {allowed}") from None
        # A name that both have is meant for both.
        start = {name: value for name, value in values.items() if name in of_start}
        node = {name: value for name, value in values.items() if name in of_node}
        checks = msgspec.structs.replace(self.checks, **start)
        changed = msgspec.structs.replace(self, checks=checks, health=replace(self.health, **node))
        changed.checks.settings()
        return changed


#: Keys that are read once; a change of them is said, and takes effect with the next start of the daemon.
NEEDS_RESTART = (
    ("daemon", "log_format"),
    ("limits", "max_message_bytes"),
    ("socket", "mode"),
    ("socket", "group"),
    ("socket", "reader"),
    ("socket", "reader_mode"),
    ("socket", "reader_group"),
    ("tls", "listen"),
    ("tls", "certificate"),
    ("tls", "key"),
    ("tls", "client_authority"),
)


def load(path: Path, *, own: bool = False) -> Config:
    """Reads a file. `own`: to do what it says, programs that it names included, so it must be nobody else's. Raises
    StartupError that names file, key, value and what is allowed."""
    try:
        if own:
            refuse_others(path)
        with path.open(encoding="utf-8", newline="") as file:
            raw = tomllib.loads(file.read())
    except OSError as error:
        raise StartupError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StartupError(f"{path}: is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise StartupError(f"{path}: is not TOML: {error}") from error
    try:
        return parse(raw)
    except ValueError as error:
        raise StartupError(f"{path}: {error}") from error


def parse(raw: dict[str, Any]) -> Config:
    """From what a file holds. Raises ValueError with one sentence."""
    _refuse_unknown(raw)
    try:
        config = msgspec.convert(raw, Config, dec_hook=_mode)
    except msgspec.ValidationError as error:
        raise ValueError(_plain(str(error))) from error
    if any(not 0 <= step <= MAX_GRACE_S for step in config.jobs.grace_steps):
        raise ValueError(f"jobs.grace_steps: {list(config.jobs.grace_steps)}: each step is 0 to {MAX_GRACE_S:.0f} s")
    if sum(config.jobs.grace_steps) > MAX_GRACE_S:
        raise ValueError(f"jobs.grace_steps: together they are over {MAX_GRACE_S:.0f} s")
    for table, check in (
        ("checks", config.checks.settings),
        ("logs", lambda: notify_settings.check_command("upload", config.logs.upload)),
        ("metrics", lambda: _check_metrics(config.metrics)),
        ("notify", lambda: notify_settings.check(config.notify)),
        ("tls", lambda: _check_tls(config.tls)),
    ):
        try:
            check()
        except ValueError as error:
            raise ValueError(f"{table}.{error}") from error
    return config


def _check_metrics(table: MetricsTable) -> None:
    listen_address.check_listen(table.listen)
    listen_address.check_textfile(table.textfile)


def _check_tls(table: TlsTable) -> None:
    if not table.listen:
        return
    host, _, port = table.listen.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"listen: {table.listen!r}: is HOST:PORT, as in 0.0.0.0:7443")
    for key in ("certificate", "key", "client_authority"):
        if not Path(getattr(table, key)).is_absolute():
            raise ValueError(f"{key}: {getattr(table, key)!r}: TCP is served with mutual TLS only, so this is a path")
    if not table.operators and not table.readers:
        raise ValueError("operators, tls.readers: both are empty: nobody could do anything over TCP")
    if both := sorted(set(table.operators) & set(table.readers)):
        raise ValueError(f"readers: {both[0]!r} is among the operators, too")


def restart_needed(old: Config, new: Config) -> list[str]:
    """Keys whose new value is not used before the daemon is started again."""
    return [
        f"{table}.{key}"
        for table, key in NEEDS_RESTART
        if getattr(getattr(old, table), key) != getattr(getattr(new, table), key)
    ]


def _refuse_unknown(raw: dict[str, Any]) -> None:
    tables = {name: list(get_type_hints(kind)) for name, kind in get_type_hints(Config).items()}
    for name, table in raw.items():
        if name not in tables:
            homes = [f"{home}.{name}" for home, keys in tables.items() if name in keys]
            raise ValueError(_unknown(name, homes or difflib.get_close_matches(name, tables, 1), list(tables)))
        if not isinstance(table, dict):
            raise ValueError(f"{name}: is a table, written as [{name}]")
        for key in table:
            if key not in tables[name]:
                # In this table first: a slip of the key is likelier than one of the table.
                for home in (name, *tables):
                    if near := difflib.get_close_matches(key, tables[home], 1):
                        raise ValueError(_unknown(f"{name}.{key}", [f"{home}.{near[0]}"], []))
                raise ValueError(_unknown(f"{name}.{key}", [], tables[name]))


def _unknown(name: str, near: list[str], known: list[str]) -> str:
    return f"unknown key {name!r}: " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")


def _mode(kind: type, value: object) -> Mode:
    """A mode may be written as "0660" or as 0o660."""
    number = -1
    if isinstance(value, str) and re.fullmatch("[0-7]{3,4}", value):
        number = int(value, 8)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if not 0 <= number <= 0o777 or number & 0o600 != 0o600:
        raise ValueError(f'{value!r}: a mode is text like "0660", and lets at least the owner read and write')
    return Mode(number)


def _plain(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.jobs.max_jobs`" with the key in front."""
    text, _, where = message.partition(" - at `$")
    return f"{where.strip('`.')}: {text[0].lower()}{text[1:]}" if where else message
