"""The daemons of a job of several nodes, as `--hosts` and `--hosts-file` name them."""

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from muster.agent.cli.client.address import Address, named
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.spec import caller
from muster.agent.cli.spec.job_spec import Draft, new_id
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.spec import JobSpec

#: The port of a daemon that is named without one.
PORT = 7443
#: Nodes that one command starts. Beyond that a scheduler is the answer (docs/guides/several-nodes.md).
MOST = 256


@dataclass(frozen=True, slots=True)
class GangHost:
    """A daemon. `label` names it among the others, for people; `name` is where ranks of other nodes reach its own;
    `written`: as it was named."""

    label: str
    name: str
    address: Address
    written: str = ""


def read(context: click.Context, text: str | None, file: str | None) -> list[GangHost]:
    """The hosts in the order of their node ranks. Raises UsageError, CommandFailed."""
    if text is not None and file is not None:
        raise click.UsageError("--hosts and --hosts-file: give only one of them")
    words = [word.strip() for word in (text or "").split(",")]
    if file is not None:
        try:
            lines = Path(file).read_text("utf-8-sig").splitlines()
        except OSError as error:
            raise CommandFailed(f"--hosts-file: cannot read {file}: {error.strerror}", Exit.USAGE) from None
        except ValueError:
            raise CommandFailed(f"--hosts-file: cannot read {file}: it is not UTF-8 text", Exit.USAGE) from None
        words = [line.partition("#")[0].strip() for line in lines]
    words = [word for word in words if word]
    if not words:
        raise click.UsageError("--hosts: names no host: give HOST[:PORT] of each, with commas between them")
    if len(words) > MOST:
        raise click.UsageError(f"--hosts: {len(words)} hosts: at most {MOST}; beyond that use a scheduler")
    if twice := next((word for word, count in Counter(words).items() if count > 1), ""):
        raise click.UsageError(f"--hosts: {twice!r} is named twice: a daemon has one part of a job")
    found = [_host(context, word) for word in words]
    local = all(address.path is not None for _, address in found)
    hosts = [(name or _reached_at(address, local), name, address) for name, address in found]
    names = Counter(reached for reached, _, _ in hosts)
    made = [
        GangHost(name or _label(reached, address, number, alone=names[reached] == 1), reached, address, words[number])
        for number, (reached, name, address) in enumerate(hosts)
    ]
    for what, counts in (
        ("name", Counter(host.label for host in made)),
        ("daemon", Counter(str(host.address) for host in made)),
    ):
        if twice := next((one for one, count in counts.items() if count > 1), ""):
            raise click.UsageError(f"--hosts: the {what} {twice!r} is given twice: a daemon has one part of a job")
    return made


def spec_of(draft: Draft, hosts: Sequence[GangHost]) -> JobSpec:
    """The spec of the first node; those of the others differ in their node rank alone. Raises BadSpec, CommandFailed,
    UsageError."""
    for field in ("nodes", "node_rank", "node_count"):
        if field in draft.written:
            raise click.UsageError(f"{draft.written[field]}: --hosts already names the nodes: leave it out")
    if all(host.address.path is not None for host in hosts):  # on this node, so that this folder is there, too
        caller.fill(draft)
    names = tuple(host.name for host in hosts)
    several = len(hosts) > 1
    asked = replace(draft.asked, node_rank=0, node_count=len(hosts))
    if asked.command:
        asked = replace(asked, job_id=asked.job_id or new_id(asked.command))  # one for all
    if several and len(set(names)) == len(names):
        asked = replace(asked, nodes=names)
    if several:
        # Another one is chosen for each try, unless it is given; the rules want to see one.
        asked = replace(asked, master_addr=asked.master_addr or names[0], master_port=asked.master_port or PORT + 1)
    draft.asked = asked
    draft.written["node_rank"] = "--hosts"
    return draft.spec()


def _host(context: click.Context, word: str) -> tuple[str, Address]:
    """Of `[NAME@]ADDRESS`. Raises UsageError."""
    name, at, where = word.rpartition("@")
    if at and not name:
        raise click.UsageError(f"--hosts: {word!r}: the name before @ is empty: give NAME@ADDRESS or ADDRESS")
    has_port = where.rpartition(":")[2].isdigit() and not where.endswith("]")
    if not where.startswith("unix:") and "/" not in where and not has_port:
        where = f"{where}:{PORT}"
    try:
        return name, named(context, where)
    except ValueError as error:
        raise click.UsageError(f"--hosts: {error}") from None


def _reached_at(address: Address, local: bool) -> str:
    """`local`: all hosts are sockets of this node."""
    if address.path is None:
        return address.host
    return "127.0.0.1" if local else socket.gethostname()


def _label(reached: str, address: Address, number: int, *, alone: bool) -> str:
    if alone and address.path is None:
        return reached
    return str(address) if address.path is None else f"node{number}"
