"""`muster node`: the daemon and its node."""

import click

from agent.cli.address import Address, pass_address
from agent.cli.output import as_dict, emit, emit_json, format_option
from agent.cli.text import clean, table


@click.command()
@pass_address
@format_option
def node(address: Address, as_json: bool) -> None:
    """Show the node: daemon, cards, warnings."""
    from agent.cli.connection import connect
    from muster.v1 import node_pb2

    with connect(address) as connection:
        found = connection.call(connection.nodes.GetNode, node_pb2.GetNodeRequest()).node
    if as_json:
        emit_json(as_dict(found))
        return
    from agent.cli import show

    facts = [
        ("node", found.hostname),
        ("boot id", found.boot_id),
        ("daemon", f"muster {found.version}, pid {found.daemon_pid}, since {show.when(found.daemon_started_at)}"),
        ("nursery", f"pid {found.nursery_pid}" if found.nursery_pid else ""),
        ("contract", found.api_version),
        ("jobs", f"{found.active_jobs} that have not ended"),
        ("ends by", found.containment),
        ("state in", found.state_dir),
        ("logs in", found.log_dir),
        *(("warning", text) for text in found.warnings),
    ]
    text = "".join(f"{name:<9} {clean(value)}\n" for name, value in facts if value)
    cards = [card for card in found.cards if card.kind != "slot" or card.job_id]
    if cards:
        text += "\n" + table(["CARD", "KIND", "JOB"], [[str(c.index), c.kind, c.job_id or "free"] for c in cards])
    emit(text)
