"""The options of `run` and `start` that make a spec."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from muster.agent import text
from muster.agent.cli.spec.job_spec import Draft, cards, events, limit, nice, notify_secret, read_file, umask, webhook
from muster.supervisors.model.notify_rules import JOB_EVENTS
from muster.supervisors.model.spec import Boot, OnHang, TrainingMode

F = TypeVar("F", bound=Callable[..., Any])


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """An option's type from a function that raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Events(Parsed):
    """Events that a job can tell, with commas between them; a shell completes the last one."""

    def __init__(self) -> None:
        super().__init__("events", events)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, begun = incomplete.rpartition(",")
        left = [name for name in JOB_EVENTS if name not in before.split(",")]
        return [CompletionItem(before + comma + name) for name in left if name.startswith(begun)]


DURATION = Parsed("duration", text.duration)


def label_pair(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals:
        raise ValueError(f"{written!r}: must be NAME=VALUE")
    return name, value


def _variable(written: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME for the caller's own value."""
    if "=" in written:
        return label_pair(written)
    if written not in os.environ:
        raise ValueError(f"{written!r} is not set here: give NAME=VALUE, or set it")
    return written, os.environ[written]


def _names(written: str) -> list[str]:
    names = [name.strip() for name in written.split(",")]
    if not all(names):
        raise ValueError(f"{written!r}: must be the names of all nodes, as in a,b")
    return names


def _whole(written: str) -> int:
    if not (written.isascii() and written.isdigit() and int(written[:11]) < 1 << 32):
        raise ValueError(f"{written!r}: must be a whole number from 0")
    return int(written)


WHOLE = Parsed("number", _whole)


def _limit(written: str) -> tuple[str, float]:
    name, value = label_pair(written)
    return name, limit(value)


_OPTIONS = [
    click.option(
        "-f", "--file", "file", metavar="FILE", help="Read the spec from a TOML file (- is stdin); options win."
    ),
    click.option("--job-id", metavar="ID", help="Name of the job; the same id and spec again is the same job."),
    click.option(
        "--cards",
        metavar="N|I,J",
        type=Parsed("cards", cards),
        help="One rank per card: so many free cards, or just these (3, is card 3 alone).",
    ),
    click.option("--ranks", metavar="N", type=WHOLE, help="So many ranks on a host without cards; default 1."),
    click.option(
        "--env",
        metavar="NAME[=VALUE]",
        type=Parsed("variable", _variable),
        multiple=True,
        help="Set a variable for the ranks; without =VALUE to what it is here. Repeatable.",
    ),
    click.option("--workdir", metavar="DIR", help="Working folder; default: a new one for each rank."),
    click.option("--user", metavar="NAME", help="Run as this user; default: the daemon's."),
    click.option(
        "--nodes",
        metavar="A,B",
        type=Parsed("nodes", _names),
        help="Names of all nodes of the job; the first is where the ranks meet.",
    ),
    click.option("--node-rank", metavar="I", type=WHOLE, help="Which of the nodes this is, from 0."),
    click.option("--master-addr", metavar="ADDR", help="Where the ranks meet, if not at the first node."),
    click.option("--master-port", metavar="PORT", type=WHOLE, help="Port for that; default: a free one."),
    click.option(
        "--skip-check",
        is_flag=True,
        default=None,
        help="Leave out the pre-checks. What `muster node` shows as CRITICAL still refuses the job.",
    ),
    click.option(
        "--max-runtime", metavar="DURATION", type=DURATION, help="Stop the job when its ranks have run this long."
    ),
    click.option(
        "--grace",
        metavar="DURATION",
        type=DURATION,
        help="Time from SIGTERM to SIGKILL when the job is stopped; default 15s in steps.",
    ),
    click.option(
        "--boot",
        metavar="MODE",
        type=click.Choice([mode.value for mode in Boot]),
        help="Who makes the ranks: ranks (muster; default), torchrun, msrun, pytorch, tensorflow or mpi.",
    ),
    click.option(
        "--rank-table", metavar="FILE", help="Ascend's rank table, or its folder; waits until it is completed."
    ),
    click.option(
        "--ready-timeout",
        metavar="DURATION",
        type=DURATION,
        help="Longest wait for the rank table, or for MPI's nodes; default 10m.",
    ),
    click.option(
        "--max-restarts", metavar="N", type=WHOLE, help="Start all ranks again after a failure, at most so often."
    ),
    click.option(
        "--restart-backoff",
        metavar="DURATION",
        type=DURATION,
        help="Pause before the first restart, then doubled up to 60s; default 1s.",
    ),
    click.option(
        "--pre-start", metavar="SCRIPT", help="Run this before the ranks of each attempt; what it exports is theirs."
    ),
    click.option("--requirements", metavar="FILE", help="Install this with pip before the ranks, for this job alone."),
    click.option("--epilog", metavar="SCRIPT", help="Run this once after the end, whatever the end was."),
    click.option(
        "--limit",
        metavar="NAME=VALUE",
        type=Parsed("limit", _limit),
        multiple=True,
        help="Of each rank nofile, memlock, stack, core, nproc (64g, unlimited); of the job memory, cpus. Repeatable.",
    ),
    click.option(
        "--umask", metavar="MASK", type=Parsed("mask", umask), help="File mode mask of ranks and scripts; default 022."
    ),
    click.option(
        "--nice", metavar="N", type=Parsed("number", nice), help="Scheduling priority of the ranks, -20 to 19."
    ),
    click.option(
        "--training-mode",
        metavar="MODE",
        type=click.Choice([mode.value for mode in TrainingMode]),
        help="MindSpore's environment: normal, high_performance or diagnosis.",
    ),
    click.option(
        "--on-hang",
        metavar="ACTION",
        type=click.Choice([action.value for action in OnHang]),
        help="When the ranks do not get on any more: notify (the default), stop or restart.",
    ),
    click.option(
        "--notify-webhook",
        metavar="URL|@FILE",
        type=Parsed("webhook", webhook),
        help="Post this job's events there; @FILE holds the URL, which all may read in a command line.",
    ),
    click.option(
        "--notify-events",
        metavar="A,B",
        type=_Events(),
        help=f"Which ones, of {', '.join(JOB_EVENTS)}; default: all.",
    ),
    click.option(
        "--notify-secret",
        metavar="@FILE",
        type=Parsed("notify_secret", notify_secret),
        help="Sign what is posted with the secret in FILE.",
    ),
    click.option(
        "--label",
        metavar="KEY=VALUE",
        type=Parsed("label", label_pair),
        multiple=True,
        help="A free label. Repeatable.",
    ),
]


def spec_options(command: F) -> F:
    """The options and the words of the command; the command gets one `draft` for all of them."""

    @functools.wraps(command)
    def with_draft(
        *args: Any,
        file: str | None,
        words: tuple[str, ...],
        env: tuple[tuple[str, str], ...],
        label: tuple[tuple[str, str], ...],
        grace: float | None,
        limit: tuple[tuple[str, float], ...],
        **others: Any,
    ) -> Any:
        options = Draft(
            command=list(words) or None,
            env=dict(env),
            labels=dict(label),
            limits=dict(limit),
            grace=None if grace is None else [grace],
            **{name: others.pop(name) for name in _PLAIN},
        )
        draft = read_file(file) if file is not None else Draft()
        draft.override(options)
        return command(*args, draft=draft, **others)

    wrapped = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")(with_draft)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # takes `draft`'s parts in its place


_PLAIN = (
    "job_id",
    "cards",
    "ranks",
    "workdir",
    "user",
    "nodes",
    "node_rank",
    "master_addr",
    "master_port",
    "skip_check",
    "max_runtime",
    "boot",
    "rank_table",
    "ready_timeout",
    "max_restarts",
    "restart_backoff",
    "pre_start",
    "requirements",
    "epilog",
    "umask",
    "nice",
    "training_mode",
    "on_hang",
    "notify_webhook",
    "notify_events",
    "notify_secret",
)
