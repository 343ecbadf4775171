"""Is this node fit for jobs? The daemon's answer, from what its checks found last, as a line and an exit code for the
health check of a scheduler."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from muster.agent.cli.client.address import Address
from muster.agent.cli.exits import CommandFailed, NoDaemon, Why
from muster.agent.cli.fitness import drills
from muster.agent.cli.printing import as_dict, emit, emit_json, note
from muster.agent.text import clean, cut
from muster.probes.kernel.dataclass import dataclass

if TYPE_CHECKING:
    from muster.v1 import node_pb2

#: Exit codes: as node-problem-detector reads them.
FIT, NOT_FIT, UNKNOWN = 0, 1, 2
#: Seconds for the daemon's answer, unless the caller gives another limit.
WITHIN_S = 2.0
#: The least that a caller may give: an answer takes some milliseconds, on a busy node more.
LEAST_S = 0.1
#: Seconds between two tries where a daemon has exited: it may restart.
_AGAIN_S = 0.1
#: node-problem-detector cuts a message behind so many bytes (`max_output_length`), unless its configuration says more.
_NPD_BYTES = 80
#: So many checks without a result are named.
_NAMED = 3
#: Schedulers' reasons and log lines stay readable up to so many characters.
_MAX_REASON = 400


@dataclass(frozen=True, slots=True)
class Fitness:
    """`code`: one of the three above. `why`: what is not in order, the gravest first; empty if the node is fit."""

    code: int
    why: tuple[str, ...] = ()
    node: "node_pb2.Node | None" = None

    @property
    def word(self) -> str:
        """For people."""
        return ("fit", "not fit", "unknown")[self.code]

    @property
    def reason(self) -> str:
        """One line."""
        return cut("; ".join(self.why), _MAX_REASON)


def ask(address: Address, within_s: float = WITHIN_S) -> Fitness:
    """Without an answer within that time it is unknown. Never raises CommandFailed."""
    from muster.agent.cli.client.calls import connect
    from muster.v1 import node_pb2

    until = time.monotonic() + within_s
    while True:
        left = max(until - time.monotonic(), LEAST_S)
        try:
            with connect(address) as connection:
                return of_node(connection.call(connection.nodes.GetNode, node_pb2.GetNodeRequest(), timeout=left).node)
        except CommandFailed as failure:
            restarts = isinstance(failure, NoDaemon) and failure.why is Why.REFUSED
            if not restarts or time.monotonic() + _AGAIN_S > until:
                return Fitness(UNKNOWN, (" ".join(clean(failure.message).split()),))
        time.sleep(_AGAIN_S)


def of_node(node: "node_pb2.Node") -> Fitness:
    """The rule: a drain or a CRITICAL condition, of the node or any card, makes it not fit, WARN does not. What could
    not be examined makes it unknown."""
    bad = [f"drained by {clean(node.drain.by)}: {clean(node.drain.reason)}"] if node.HasField("drain") else []
    bad = [*_conditions(node, "CRITICAL"), *bad]
    if bad:
        return Fitness(NOT_FIT, tuple(bad), node)
    doubts = _conditions(node, "UNKNOWN")
    silent = [str(card.index) for card in node.cards if card.health == "UNKNOWN"]
    doubts += [f"unknown health of cards {','.join(silent)}"] if silent and not doubts else []
    if node.pending_checks:
        more = ", ..." if len(node.pending_checks) > _NAMED else ""
        doubts.append(f"checks without a result: {', '.join(map(clean, node.pending_checks[:_NAMED]))}{more}")
    return Fitness(UNKNOWN, tuple(doubts), node) if doubts else Fitness(FIT, (), node)


def _conditions(node: "node_pb2.Node", status: str) -> list[str]:
    found = [condition for condition in node.conditions if condition.status == status]
    return [f"{c.code}{f' ({clean(c.device)})' if c.device else ''}: {clean(drills.reason(c))}" for c in found]


def _line(found: Fitness) -> int:
    emit(f"{found.word}: {found.reason}\n" if found.why else f"{found.word}\n")
    return found.code


def _nhc(found: Fitness) -> int:
    if found.why:
        emit(f"muster: {found.reason}\n")
    return found.code


def _npd(found: Fitness) -> int:
    text = f"{found.word}: {found.reason}" if found.why else found.word
    emit(text.encode("ascii", "replace").decode()[: _NPD_BYTES - 1] + "\n")
    return found.code


def _prolog(found: Fitness) -> int:
    if found.why:
        note(f"{found.word}: {found.reason}")
    return NOT_FIT if found.code == NOT_FIT else FIT


def _json(found: Fitness) -> int:
    known = as_dict(found.node) if found.node is not None else {}
    said: dict[str, Any] = {"fit": (True, False, None)[found.code], "status": found.word, "why": list(found.why)}
    names = ("hostname", "conditions", "drain", "pendingChecks")
    emit_json(said | {name: known[name] for name in names if name in known})
    return found.code


FORMATS: dict[str, Callable[[Fitness], int]] = {
    "line": _line,
    "nhc": _nhc,
    "npd": _npd,
    "prolog": _prolog,
    "json": _json,
}


def answer(address: Address, form: str = "line", within_s: float = WITHIN_S) -> None:
    """Prints it and exits with its code."""
    raise click.exceptions.Exit(FORMATS[form](ask(address, within_s)))
