"""`muster check explain`, `clear`, `inject`: about findings, instead of looking for them."""

from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.fitness import drills
from muster.agent.cli.printing import as_dict, emit, emit_json, format_option
from muster.agent.text import span, table

if TYPE_CHECKING:
    from muster.v1 import node_pb2


@click.command()
@click.argument("code", metavar="CODE")
@format_option
def explain(code: str, as_json: bool) -> None:
    """Explain a finding: what it means, how it clears, and what to do.

    CODE is a code from `muster check`, `muster node` or the events: GPU_LOST, DISK_SPACE_LOW, ...
    """
    from muster.probes.checks import codes

    try:
        known, found = codes.explain(code)
    except ValueError as error:
        raise CommandFailed(str(error), Exit.USAGE) from None
    age = f"{span(found.age_s)} after the last sighting" if found.age_s else ""
    clears = {
        codes.Clears.READING: "when the next look finds it normal",
        codes.Clears.REBOOT: "with a reboot, or by `muster check clear`",
        codes.Clears.OPERATOR: "by `muster check clear`",
        codes.Clears.AGE: f"{age}, or by `muster check clear`",
    }
    facts = [
        ("code", str(known)),
        ("means", found.what),
        ("status", str(found.status)),
        ("is", "a condition of the node: it stays until it clears" if found.condition else "an event only"),
        ("goes", clears[found.clears] if found.condition else ""),
        ("action", str(found.action)),
        ("remedy", found.remedy),
    ]
    if found.presence:
        facts[4] = ("goes", "when the cards match the remembered ones again, or by `muster node accept`")
    if as_json:
        emit_json({name: value for name, value in facts if value} | {"clears": str(found.clears)})
    else:
        emit("".join(f"{name:<8}{value}\n" for name, value in facts if value))


@click.command()
@pass_address
@click.argument("code", metavar="CODE")
@click.argument("device", required=False, default="", metavar="[DEVICE]")
@format_option
def clear(address: Address, code: str, device: str, as_json: bool) -> None:
    """Clear conditions with this code, of one device ("card 3") or of all.

    The next look reports again what still applies.
    """
    from muster.agent.cli.client.calls import connect, utf8
    from muster.v1 import probe_pb2

    request = probe_pb2.ClearConditionsRequest(code=utf8(code, "CODE"), device=utf8(device, "DEVICE"))
    with connect(address) as connection:
        print_conditions(list(connection.call(connection.probes.ClearConditions, request).conditions), as_json)


@click.command()
@pass_address
@click.argument("code", metavar="CODE")
@click.option("--card", type=click.IntRange(min=0), help="Card of the condition; default: the node.")
@click.option("--reason", default="", metavar="TEXT", help="Text of the condition. [default: that it is a drill]")
@format_option
def inject(address: Address, code: str, card: int | None, reason: str, as_json: bool) -> None:
    """Inject a condition for a drill: it acts like a real one, and every output marks it as injected.

    A CRITICAL condition refuses jobs. `muster check clear` removes it; it expires after an hour (health.inject_s).
    """
    from muster.agent.cli.client.calls import connect, utf8
    from muster.v1 import probe_pb2

    request = probe_pb2.InjectConditionRequest(code=utf8(code, "CODE"), card=card, reason=utf8(reason, "--reason"))
    with connect(address) as connection:
        print_conditions([connection.call(connection.probes.InjectCondition, request).condition], as_json)


def print_conditions(conditions: "list[node_pb2.Condition]", as_json: bool) -> None:
    """A table, or JSON."""
    if as_json:
        emit_json({"conditions": [as_dict(condition) for condition in conditions]})
        return
    rows = [[c.device or "node", c.status, c.code, drills.reason(c)] for c in conditions]
    emit(table(["WHERE", "STATUS", "CODE", "REASON"], rows))
