"""`muster hang replay`: the verdicts of the hang rule on recorded telemetry."""

import contextlib
import functools
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, cast

import click

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.parameters import Parsed, pair
from muster.agent.cli.printing import emit, emit_json, format_option, note
from muster.agent.text import clean, local, numbers, size, span

if TYPE_CHECKING:
    from muster.probes.hang import Change
    from muster.probes.hang.slow import SlowChange

#: Before the name of a setting of the rule of slow ranks.
_SLOW = "slow."
_GZIP = b"\x1f\x8b"


@click.group()
def hang() -> None:
    """Try the hang rule on recorded telemetry."""


@hang.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--set",
    "changes",
    metavar="KEY=VALUE",
    type=Parsed("setting", pair),
    multiple=True,
    help="Change a setting of the rule, as in --set hung_s=900; of the rule of slow ranks as in --set slow.factor=2. "
    "Repeatable. docs/reference/settings.md lists them.",
)
@click.option("--rule", type=click.Choice(["full", "plain"]), help="plain: only ModelArts' two stages.")
@format_option
def replay(files: tuple[str, ...], changes: tuple[tuple[str, str], ...], rule: str | None, as_json: bool) -> None:
    """Run the hang rule over the telemetry in FILE and print each change of verdict, with its evidence.

    FILE is telemetry recorded by `musterd`: one JSON object per line, of one or several jobs; - is standard input. FILE
    may be compressed with gzip. The command needs no daemon.

    For a job on several nodes, give the file of each node: the rule judges the records of all nodes together, so that
    it finds the odd rank on any node. The nodes' clocks should agree within about a second.

    It also prints SLOW when a rank becomes so slow that its peers wait for it, and EVEN when that ends.

    Exit code: 0, or 1 if some lines were no records; the command names these on stderr and skips them.
    """
    from muster.probes.hang import HangSettings
    from muster.probes.hang.hang_replay import records_of
    from muster.probes.hang.hang_replay import replay as run
    from muster.probes.hang.slow import SlowChange, SlowSettings

    of_slow = {key.removeprefix(_SLOW): value for key, value in changes if key.startswith(_SLOW)}
    of_hang = {key: value for key, value in changes if not key.startswith(_SLOW)}
    try:
        settings = HangSettings().with_written(of_hang | ({"rule": rule} if rule else {}))
    except ValueError as error:
        raise CommandFailed(f"--set {error}", Exit.USAGE) from None
    try:
        slow_settings = SlowSettings().with_written(of_slow)
    except ValueError as error:
        raise CommandFailed(f"--set slow: {error}", Exit.USAGE) from None
    if files.count("-") > 1:
        raise CommandFailed("-: give standard input only once", Exit.USAGE)
    bad = dict.fromkeys(files, 0)

    def name(file: str, number: int, why: str) -> None:
        bad[file] += 1
        note(f"{file}: line {number}: {why}; skipped")

    records = records_of([(_lines(file), functools.partial(name, file)) for file in files])
    for change in run(records, settings, slow_settings):
        if as_json:
            emit_json(change.as_dict(), line=True)
        elif isinstance(change, SlowChange):
            emit(_slow_text(change))
        else:
            emit(_text(change))
    for file in [file for file in bad if bad[file]]:
        wrong = "1 line that is not a telemetry record"
        if bad[file] > 1:
            wrong = f"{bad[file]} lines that are not telemetry records"
        note(f"{file}: skipped {wrong}")
    if any(bad.values()):
        raise click.exceptions.Exit(Exit.FAILURE)


def _lines(file: str) -> Iterator[bytes]:
    """One line after the other; of an overlong line only the beginning, so that any file is read in constant memory.
    Raises CommandFailed."""
    from muster.probes.hang.hang_replay import MAX_LINE

    try:
        with _opened(file) as stream:
            while line := stream.readline(MAX_LINE + 1):
                yield line
                while len(line) > MAX_LINE and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CommandFailed(f"{file}: the gzip data is damaged or truncated: {error}") from None
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror or error}") from None


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    with io.BufferedReader(io.FileIO(0 if file == "-" else file, closefd=file != "-")) as stream:
        # Looked at, not read: what comes through a pipe cannot be set back.
        if stream.peek(2)[:2] != _GZIP:
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as unpacked:
            yield cast("IO[bytes]", unpacked)


# --- for people -------------------------------------------------------------------------------------------------------


def _text(change: "Change") -> str:
    e = change.evidence
    kind = f" {change.kind}" if change.kind else ""
    ranks = f"  ranks {numbers(change.ranks)}" if change.ranks else ""
    head = f"{_moment(change.t)}  {clean(change.job)}  {change.verdict}{kind}{ranks}  confidence {change.confidence:g}"
    lines = [str(e["rule"])]
    silence = f"since {_moment(e['since'])}, silent for {span(e['silent_s'])}"
    if e.get("limit_s"):
        silence += f", limit {span(e['limit_s'])} ({e['limit']})"
    lines.append(silence)
    if "recovered" in e and "silence_s" in e["recovered"]:
        lines.append(f"recovered from {e['recovered']['from']} after {span(e['recovered']['silence_s'])}")
    lines += [f"rank {rank}: {words}" for rank, words in e.get("odd_ranks", {}).items()]
    if isinstance(e["cards"], list):
        lines += [_card(card) for card in e["cards"]]
    lines += [_rank(rank, did) for rank, did in e.get("processes", {}).items()]
    if e["missing"]:
        lines.append(f"missing: {', '.join(e['missing'])}")
    if e["would_clear"]:
        lines.append(f"would clear it: {'; '.join(e['would_clear'])}")
    return "\n    ".join([head, *(clean(line) for line in lines)]) + "\n"


def _slow_text(change: "SlowChange") -> str:
    from muster.agent.hang.slow_sentence import sentence

    ranks = f"  ranks {numbers(change.ranks)}  confidence {change.confidence:g}" if change.ranks else ""
    head = f"{_moment(change.t)}  {clean(change.job)}  {change.verdict}{ranks}"
    return f"{head}\n    {clean(sentence(change))}\n"


def _moment(t: float) -> str:
    try:
        return local(t) if t > 0 else f"{t:g}"
    except (ValueError, OverflowError, OSError):  # of no calendar
        return f"{t:g}"


def _card(card: Mapping[str, Any]) -> str:
    def told(value: float | None, unit: str) -> str:
        return "unknown" if value is None else f"{value:g}{unit}"

    words = f"card {card['index']}: {card['state']}, {card['why']}; utilization {told(card['util_median'], ' %')}"
    words += f", power {told(card['power_w_median'], ' W')}"
    if card["power_w_active"] is not None:
        words += f" of {card['power_w_active']:g} W active"
    words += f", memory {told(card['mem_util_median'], ' %')}"
    if card["fabric_bytes_per_min"] is not None:
        words += f", fabric {size(int(card['fabric_bytes_per_min']))}/min"
    return words


def _rank(rank: str, did: Mapping[str, Any]) -> str:
    def told(name: str) -> str:
        return "unknown" if did[name] is None else size(did[name])

    cpu = "unknown" if did["cpu_s_per_min"] is None else f"{did['cpu_s_per_min']:g} s"
    who = "processes outside the ranks" if rank == "-1" else f"rank {rank}"
    words = f"{who}: a minute: written {told('write_bytes_per_min')}, read {told('read_bytes_per_min')}, CPU {cpu}"
    return f"{words}, log {told('log_bytes_per_min')}"
