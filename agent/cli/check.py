"""`muster check`: is this node fit?"""

import functools
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.cli.address import Address, named_root, pass_address
from agent.cli.errors import Exit, Failure
from agent.cli.output import emit, emit_json, format_option, note
from agent.cli.spec import cards as parse_cards
from agent.cli.spec_options import Parsed, label_pair
from agent.cli.text import table

if TYPE_CHECKING:
    from probes.precheck import Wanted

#: A daemon that does not answer by then (in seconds) is told of, and done without.
_ANSWER_S = 5.0
_UCRED = struct.Struct("iII")


def _names(written: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in written.split(",") if name.strip())


@click.command()
@pass_address
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("--list", "only_list", is_flag=True, help="Show which checks there are.")
@click.option("--config", "file", metavar="FILE", help="Take the thresholds from this file instead of musterd's own.")
@click.option(
    "--set",
    "changes",
    metavar="KEY=VALUE",
    type=Parsed("setting", label_pair),
    multiple=True,
    help="Try another setting of [checks], as in --set root_min_gb=1. Repeatable.",
)
@click.option(
    "--hosts",
    "--nodes",
    metavar="A,B",
    type=Parsed("names", _names),
    default=(),
    help="Names that must resolve, over those of the .host files.",
)
@click.option(
    "--cards",
    metavar="N|I,J",
    type=Parsed("cards", parse_cards),
    help="Ask for so many cards, or just these (3, is card 3 alone); default: all that there are.",
)
@click.option("--user", metavar="NAME", default="", help="Whom the ranks would run as; default: the daemon's user.")
@format_option
@click.pass_context
def check(
    context: click.Context,
    address: Address,
    items: tuple[str, ...],
    only_list: bool,
    file: str | None,
    changes: tuple[tuple[str, str], ...],
    hosts: tuple[str, ...],
    cards: int | list[int] | None,
    user: str,
    as_json: bool,
) -> None:
    """Check this node, with or without a daemon.

    Limits are those that ranks of the daemon get; where there is none, those that this shell would give them.

    Exit code: 0 OK, 1 WARN, 2 CRITICAL, 3 UNKNOWN, of several the gravest in the order CRITICAL, UNKNOWN, WARN, OK.
    (Wrong usage is 2 too, with a line on stderr that begins with `Error:` or `muster:`.)
    """
    import anyio

    from agent import cards as node_cards
    from agent import config
    from agent.errors import StartupError
    from probes import precheck, result

    if only_list:
        entries = precheck.catalogue()
        if as_json:
            emit_json({"checks": [{"item": e.item, "checks": e.checks, "codes": list(e.codes)} for e in entries]})
        else:
            emit(table(["ITEM", "CHECKS"], [[e.item, e.checks] for e in entries]))
        return
    path = Path(file) if file is not None else config.default_file(named_root(context))
    try:
        settings = config.load(path) if file is not None or path.exists() else config.Config()
        checks = settings.checks.with_written(dict(changes))
    except StartupError as error:
        raise Failure(str(error), Exit.USAGE) from None
    except ValueError as error:
        raise Failure(f"--set {error}", Exit.USAGE) from None
    if user:
        _refuse_unknown(user)
    found = node_cards.find(settings.cards.slots)
    daemon, nursery = _parents(address) if _has_ulimit(items) else (0, 0)
    request = precheck.Request(
        cards=_wanted(cards, found), cards_found=found, hosts=hosts, user=user, daemon=daemon, nursery=nursery
    )
    try:
        results = anyio.run(functools.partial(precheck.run, checks.settings(), request, items))
    except precheck.UnknownItem as error:
        raise Failure(str(error), Exit.USAGE) from None
    worst = result.worst(results)
    if as_json:
        emit_json({"status": worst, "checks": [{name: getattr(r, name) for name in r.__slots__} for r in results]})
    else:
        rows = [[r.item, r.status, r.code, f"{r.seconds:.3f}s", r.reason] for r in results]
        emit(table(["ITEM", "STATUS", "CODE", "TOOK", "REASON"], rows))
    raise click.exceptions.Exit(worst.exit_code)


def _refuse_unknown(user: str) -> None:
    from supervisors.child import Account
    from supervisors.errors import NotStartable

    try:
        Account.of(user)
    except NotStartable as error:
        raise Failure(f"--user: {error}", Exit.USAGE) from None


def _wanted(cards: int | list[int] | None, found: dict[int, str]) -> "Wanted":
    from probes.precheck import Wanted

    if isinstance(cards, int):
        return Wanted(count=cards)
    return Wanted(indices=tuple(dict.fromkeys(found if cards is None else cards)))


def _has_ulimit(items: tuple[str, ...]) -> bool:
    from probes import ulimits

    return not items or ulimits.ITEM in items


def _parents(address: Address) -> tuple[int, int]:
    """The pids of daemon and nursery, from which ranks inherit their limits; 0 where there is none, or none to see.

    Who named an address wants the daemon there to count, and hears so when there is none.
    """
    from agent.cli.connection import connect
    from muster.v1 import node_pb2

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_ANSWER_S)
            sock.connect(os.fspath(address.path))
            pid, _, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    except OSError as error:
        if address.explicit or not isinstance(error, FileNotFoundError):
            note(f"no daemon at {address} ({error.strerror or error}): limits are those of this shell")
        return 0, 0
    try:
        with connect(address) as connection:
            node: Any = connection.call(connection.nodes.GetNode, node_pb2.GetNodeRequest(), timeout=_ANSWER_S).node
    except Failure as failure:
        note(f"{failure.message}: limits are those of this shell")
        return 0, 0
    # From another PID namespace its numbers mean nothing here.
    if node.daemon_pid != pid:
        note("the daemon runs in another PID namespace: limits are those of this shell")
        return 0, 0
    return node.daemon_pid, node.nursery_pid
