"""`muster node`: the daemon, its node, and whether the node takes jobs."""

from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.fitness import drills
from muster.agent.cli.parameters import DURATION, Parsed
from muster.agent.cli.printing import as_dict, coloured, columns, emit, emit_json, folded, format_option, note, wide
from muster.agent.text import clean, local, size, table

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.v1 import node_pb2

_COLOURS = {"CRITICAL": "red", "UNKNOWN": "magenta", "WARN": "yellow", "OK": "green"}


def _card_names(written: str) -> list[str]:
    from muster.agent.cli.spec.spec_values import card_names

    return card_names(written)


@click.group(invoke_without_command=True)
@pass_address
@click.option(
    "--fit", is_flag=True, help="Only say whether the node is fit, and exit with 0 fit, 1 not fit, 2 unknown."
)
@format_option
@click.pass_context
def node(context: click.Context, address: Address, fit: bool, as_json: bool) -> None:
    """Show the node: daemon, conditions, cards; or take it out of service.

    A CRITICAL condition of the node, or of a card, refuses new jobs there. `muster check explain CODE` prints what it
    means and how it clears.
    """
    if context.invoked_subcommand is not None:
        if fit:
            raise click.UsageError("--fit runs nothing: leave out the command")
        return
    if fit:
        from muster.agent.cli.fitness import gate

        gate.answer(address, "json" if as_json else "line")
    from muster.agent.cli.client.calls import connect
    from muster.v1 import node_pb2

    with connect(address) as connection:
        print_node(connection.call(connection.nodes.GetNode, node_pb2.GetNodeRequest()).node, as_json)


@node.command()
@pass_address
@click.argument("reason", nargs=-1, required=True, metavar="REASON")
@format_option
def drain(address: Address, reason: tuple[str, ...], as_json: bool) -> None:
    """Take the node out of service: it refuses new jobs; running jobs continue.

    REASON is shown to the users of the node. The node stays drained over restarts and reboots.
    """
    from muster.agent.cli.client.calls import connect, utf8
    from muster.v1 import node_pb2

    with connect(address) as connection:
        request = node_pb2.DrainRequest(reason=utf8(" ".join(reason), "REASON"))
        print_node(connection.call(connection.nodes.Drain, request).node, as_json)


@node.command()
@pass_address
@format_option
def undrain(address: Address, as_json: bool) -> None:
    """Return the node to service. Its conditions stay."""
    from muster.agent.cli.client.calls import connect
    from muster.v1 import node_pb2

    with connect(address) as connection:
        print_node(connection.call(connection.nodes.Undrain, node_pb2.UndrainRequest()).node, as_json)


@node.command()
@pass_address
@click.argument("cards", nargs=-1, metavar="[CARD]...", type=Parsed("card", _card_names))
@click.option("--all", "everything", is_flag=True, help="Accept all cards that differ from the remembered ones.")
@format_option
def accept(address: Address, cards: tuple[list[str], ...], everything: bool, as_json: bool) -> None:
    """Accept the node's present cards as the expected ones.

    The daemon remembers the cards over restarts and reboots. A card that is missing, new, replaced, in another place,
    or visible only on the PCI bus is a condition until you accept it here. CARD is a number, several (`0-3,7`), a UUID,
    a serial number or a bus id.
    """
    from muster.agent.cli.client.calls import connect, utf8
    from muster.v1 import node_pb2

    if bool(cards) is everything:
        raise click.UsageError("name the cards, or give --all; `muster node` shows what differs")
    with connect(address) as connection:
        named = [utf8(card, "CARD") for word in cards for card in word]
        request = node_pb2.AcceptCardsRequest(cards=named, all=everything)
        answer = connection.call(connection.nodes.AcceptCards, request)
    if as_json:
        emit_json({"accepted": [as_dict(one) for one in answer.accepted]})
        return
    rows = [[one.device or "node", one.code, one.reason] for one in answer.accepted]
    if not rows:
        note("nothing to accept: muster sees no card that is missing, new, replaced or moved")
    else:
        emit(table(["WHERE", "CODE", "REASON"], rows))


@node.command()
@pass_address
@click.argument("card", metavar="CARD", required=False)
@click.option(
    "--wait",
    "wait_s",
    metavar="DURATION",
    type=DURATION,
    default="1h",
    show_default=True,
    help="How long to wait for the end of jobs that hold the card, also of those that --stop stops.",
)
@click.option("--stop", "stop_jobs", is_flag=True, help="Stop these jobs instead.")
@click.option(
    "--force",
    is_flag=True,
    help="Continue even if the driver says that a reset will not help, or if other processes have the card open.",
)
@click.option("--no-active", is_flag=True, help="Skip the active tests.")
@click.option("--cancel", is_flag=True, help="End a reset that still waits for jobs; without CARD.")
@format_option
def reset(
    address: Address,
    card: str | None,
    wait_s: float,
    stop_jobs: bool,
    force: bool,
    no_active: bool,
    cancel: bool,
    as_json: bool,
) -> None:
    """Reset a card: drain the node, reset and test the card, return the node to service.

    musterd waits for the card's jobs, closes the driver, runs `nvidia-smi --gpu-reset` or `npu-smi set -t reset`, and
    checks and tests the card. Cards that can only be reset together go together. CARD is a number, a UUID, a serial
    number or a bus id. Ctrl-C does not end the reset: it continues, and `muster events -f` shows it.

    Exit code: 0 the card is back; 1 it is not, and the last line says what to do; 5 refused, nothing was changed.
    """
    from muster.agent.cli.client.calls import connect, proto_duration, utf8
    from muster.v1 import node_pb2

    if cancel is (card is not None):
        raise click.UsageError("name the card, or give --cancel")
    with connect(address) as connection:
        if card is None:
            connection.call(connection.nodes.CancelReset, node_pb2.CancelResetRequest())
            note("musterd ends the reset; no card was changed")
            return
        request = node_pb2.ResetCardRequest(
            card=utf8(card, "CARD"), stop_jobs=stop_jobs, force=force, skip_active=no_active
        )
        request.wait.CopyFrom(proto_duration(wait_s))
        _follow_reset(connection, request, as_json)


def _follow_reset(connection: "DaemonConnection", request: "node_pb2.ResetCardRequest", as_json: bool) -> None:
    """Prints each step. Raises CommandFailed where the card is not back."""
    from muster.agent.cli.exits import CommandFailed

    last = None
    try:
        for last in connection.stream(connection.nodes.ResetCard, request):
            _show_step(last, as_json)
    except KeyboardInterrupt:
        note("the reset continues: `muster events -f` shows it; `--cancel` ends it while it waits for jobs")
        raise
    except CommandFailed:
        if last is not None:
            note(f"the daemon exited during the step {clean(last.step)}: `muster node` shows the state of the reset")
        raise
    if last is None or last.status != "completed":
        nothing = "the daemon reported no step: `muster node` shows the state of the reset"
        raise CommandFailed(clean(last.text) if last is not None else nothing)


def _show_step(told: "node_pb2.ResetCardResponse", as_json: bool) -> None:
    if as_json:
        emit_json(as_dict(told), line=True)
    elif told.status not in ("begun", "given up"):
        step = "" if told.status == "completed" else f"{told.step}: "
        status = "" if told.status in ("done", "completed") else f"{told.status}: "
        emit(f"{local(told.time.ToNanoseconds() / 1e9)} {clean(f'{step}{status}{told.text}')}\n")


def print_node(found: "node_pb2.Node", as_json: bool) -> None:
    """Words, or JSON."""
    if as_json:
        emit_json(as_dict(found))
        return
    from muster.agent.cli import show

    drained = ""
    if found.HasField("drain"):
        by = f"by {clean(found.drain.by)}, since {show.when(found.drain.since)}"
        drained = f"drained {by}: {clean(found.drain.reason)}"
    driver = f"{found.accelerator} {found.driver_version}".strip() if found.accelerator != "slot" else ""
    version = f"muster {found.version} ({found.build})" if found.build else f"muster {found.version}"
    facts = [
        ("node", found.hostname),
        ("service", drained or "takes jobs"),
        ("boot id", found.boot_id),
        ("daemon", f"{version}, pid {found.daemon_pid}, since {show.when(found.daemon_started_at)}"),
        ("nursery", f"pid {found.nursery_pid}" if found.nursery_pid else ""),
        ("contract", found.api_version),
        ("driver", driver),
        ("jobs", f"{found.active_jobs} that have not ended"),
        ("ends by", found.containment),
        ("state in", found.state_dir),
        ("logs in", found.log_dir),
        *(("log work", text) for text in found.log_work),
        *(("warning", text) for text in found.warnings),
    ]
    text = "".join(folded(f"{name:<9} {clean(value)}", 10) + "\n" for name, value in facts if value)
    if found.conditions:
        shown = _conditions(found)
        text += "\n" + (_coloured(shown) if coloured() else shown)
    cards = [card for card in found.cards if card.kind != "slot" or card.job_id]
    if cards:
        health = [drills.health(card, found.conditions) for card in cards]
        rows = [_card(card, word) for card, word in zip(cards, health, strict=True)]
        head = [name for name in rows[0] if name != "NPU/CHIP" or any(row[name] for row in rows)]
        text += "\n" + table(head, [[row[name] for name in head] for row in rows])
        text += drills.FOOT if any(word.endswith(drills.STAR) for word in health) else ""
        for card in cards:
            text += "".join(f"card {card.index}: {clean(why)}\n" for why in (card.held_by, card.reserved) if why)
    emit(text)


def _conditions(found: "node_pb2.Node") -> str:
    """A row for each, with what was found behind it, or below it where that is too long for the terminal."""
    from muster.agent.cli import show

    head = ["WHERE", "STATUS", "CODE", "SINCE", "ACTION", "CLEARS BY"]
    rows = [[c.device or "node", c.status, c.code, show.when(c.since), c.action, c.clears] for c in found.conditions]
    reasons = [drills.reason(c) for c in found.conditions]
    whole = table([*head, "REASON"], [[*row, reason] for row, reason in zip(rows, reasons, strict=True)])
    width = columns()
    if width is None or max(map(len, whole.splitlines())) <= width:
        return whole
    first, *lines = table(head, rows).splitlines()
    below = (f"{line}\n{folded('  ' + clean(reason), 2)}\n" for line, reason in zip(lines, reasons, strict=True))
    return f"{first}\n" + "".join(below)


def _card(card: "node_pb2.Card", health: str) -> dict[str, str]:
    """Its cells, by the column."""
    now = card.reading
    used = size(now.memory_used_bytes) if now.HasField("memory_used_bytes") else ""
    total = size(card.memory_bytes) if card.HasField("memory_bytes") else ""
    row = {"CARD": str(card.index)}
    if wide():
        row["KIND"] = card.kind + (" (MIG)" if card.mig else "")
        row["DEVICE"] = card.device_node.removeprefix("/dev/")
        row["NPU/CHIP"] = f"{card.card_id}/{card.chip_id}" if card.HasField("card_id") else ""
        row["VISIBLE"] = card.visible_as
    row["MODEL"] = (card.model or card.kind) + (" (MIG)" if card.mig and not wide() else "")
    if wide():
        row["BUS"] = card.bus_id
        row["NUMA"] = str(card.numa_node) if card.HasField("numa_node") else ""
    row["UTIL"] = f"{now.utilization:.0f}%" if now.HasField("utilization") else ""
    row["MEMORY"] = "/".join(filter(None, (used, total)))
    row["HEALTH"], row["JOB"] = health, card.job_id or ("-" if card.mig or card.reserved else "free")
    return row


def _coloured(text: str) -> str:
    for word, colour in _COLOURS.items():
        text = text.replace(f" {word} ", f" {click.style(word, fg=colour)} ")
    return text
