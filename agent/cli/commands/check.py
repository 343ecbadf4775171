"""`muster check`: is this node fit? The checks before a start and those of the node, run here and now."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.agent.cli.client.address import Address, named_root, pass_address
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.fitness import check_words, gate
from muster.agent.cli.parameters import DURATION, Parsed, pair
from muster.agent.cli.printing import emit, emit_json, format_option, note
from muster.agent.cli.spec import spec_values
from muster.agent.text import table
from muster.probes.kernel.dataclass import dataclass

if TYPE_CHECKING:
    from muster.agent.config.schema import Config
    from muster.probes.checks.precheck import CardsWanted
    from muster.probes.checks.result import CheckResult
    from muster.probes.node.node_checks import Inventory
    from muster.supervisors.paths import Root

#: Seconds after which the checks run without a daemon that does not answer, and a note says so.
_ANSWER_S = 5.0
#: Exit codes with --gate where the checks run here.
_GATE = {"CRITICAL": gate.NOT_FIT, "UNKNOWN": gate.UNKNOWN}


def _names(written: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in written.split(",") if name.strip())


class _Words(click.Group):
    """Takes any word that is no command for the name of a check."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["run", *args]
        return super().parse_args(context, args)


@click.group(cls=_Words, options_metavar="[OPTIONS]", subcommand_metavar="[ITEM]... | COMMAND")
def check() -> None:
    """Check this node, with or without a daemon.

    `muster check [ITEM]...` runs all checks, or the named ones; `muster check run --help` lists the options.
    """


@check.command()
@pass_address
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("--list", "only_list", is_flag=True, help="List all checks.")
@click.option("--all", "everything", is_flag=True, help="Also show checks that do not apply to this node.")
@click.option("--config", "file", metavar="FILE", help="Take the thresholds from this file instead of musterd's own.")
@click.option(
    "--set",
    "changes",
    metavar="KEY=VALUE",
    type=Parsed("setting", pair),
    multiple=True,
    help="Try another setting of [checks] or [health], as in --set root_min_gb=1. Repeatable.",
)
@click.option(
    "--hosts",
    "--nodes",
    metavar="A,B",
    type=Parsed("names", _names),
    default=(),
    help="Names that must resolve, in addition to those of the .host files.",
)
@click.option(
    "--cards",
    metavar="N|I,J-K|all",
    type=Parsed("cards", spec_values.cards),
    help="Check N cards, or the cards with these numbers (`0-3,7`; `3,` means card 3 alone); default: all cards.",
)
@click.option(
    "--gate",
    "gated",
    is_flag=True,
    help="Say whether the node is fit, by the exit code: 0 fit, 1 not fit, 2 unknown. The daemon answers at once, from "
    "what its checks found last; with --now, or an option or ITEM that says what to check, the checks run first.",
)
@click.option("--now", is_flag=True, help="With --gate: run the checks here, with or without a daemon.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["line", "nhc", "npd", "prolog", "json"]),
    help="With --gate: form of the answer. nhc: only if not fit, as a reason for the scheduler. npd: in 80 bytes, for "
    "node-problem-detector. prolog: on stderr, and exit code 0 if unknown.  [default: line]",
)
@click.option(
    "--within",
    metavar="DURATION",
    type=DURATION,
    default=f"{gate.WITHIN_S:g}s",
    show_default=True,
    help="With --gate: report unknown if the daemon does not answer within this time.",
)
@click.option(
    "--active",
    is_flag=True,
    help="Also run the active tests: free cards compute for some seconds, and their results and speeds are compared.",
)
@click.option("--user", metavar="NAME", default="", help="User of the ranks; default: the daemon's user.")
@format_option
@click.pass_context
def run(
    context: click.Context,
    address: Address,
    items: tuple[str, ...],
    only_list: bool,
    everything: bool,
    file: str | None,
    changes: tuple[tuple[str, str], ...],
    hosts: tuple[str, ...],
    cards: int | list[int] | None,
    active: bool,
    user: str,
    gated: bool,
    now: bool,
    form: str | None,
    within: float,
    as_json: bool,
) -> None:
    """Check this node, with or without a daemon: `muster check [ITEM]...`.

    The limits checked are those that the daemon's ranks get; without a daemon, those of this shell. Only a daemon finds
    what a check must see several times in a row, such as a flapping port or a throttled clock.

    Exit code: 0 OK, 1 WARN, 2 CRITICAL, 3 UNKNOWN; the worst of several, in the order CRITICAL, UNKNOWN, WARN, OK.
    Wrong usage also exits with 2, with a line on stderr that begins with `muster:`. With --gate, for a scheduler's
    health check: 0 fit (OK, WARN), 1 not fit (CRITICAL, or drained), 2 unknown or wrong usage.
    """
    chosen = bool(items or only_list or file or changes or hosts or active or user) or cards is not None
    if form is not None and (not gated or now or chosen):
        raise click.UsageError("--format is for the daemon's answer: give it with --gate alone")
    if within < gate.LEAST_S:
        raise click.UsageError(f"--within: {within:g}s is too short for an answer: give 100ms or more")
    if gated and not now and not chosen:
        gate.answer(address, form or ("json" if as_json else "line"), within)
    import anyio

    from muster.agent.cli.fitness import crash_guard
    from muster.agent.cli.live.at_terminal import working
    from muster.agent.config import loading
    from muster.agent.config.schema import Config
    from muster.agent.errors import StartupError
    from muster.agent.node import all_checks
    from muster.probes.checks import result
    from muster.probes.node import node_checks

    path = Path(file) if file is not None else named_root(context.find_root()).config
    try:
        settings = loading.load(path) if file is not None or path.exists() else Config()
        settings = settings.with_written(dict(changes))
    except StartupError as error:
        raise CommandFailed(str(error), Exit.USAGE) from None
    except ValueError as error:
        raise CommandFailed(f"--set {error}", Exit.USAGE) from None
    if only_list:
        _list(settings, as_json)
        return
    if user:
        _refuse_unknown(user)
    try:
        all_checks.chosen(items, [check.item for check in node_checks.catalogue(settings.health)])
    except node_checks.UnknownItem as error:
        raise CommandFailed(str(error), Exit.USAGE) from None
    crash = crash_guard.fork()
    daemon, nursery = _parents(address) if _has_ulimit(items) else (0, 0)
    root = named_root(context.find_root())
    here = address if active and address.path is not None else None
    asked = _Asked(items, cards, active, hosts, user, daemon, nursery, _remembered(root), root.active_figures, here)
    try:
        with working("checking the node") as say:
            results = anyio.run(_checked, settings, asked, say, crash)
    except node_checks.UnknownItem as error:
        raise CommandFailed(str(error), Exit.USAGE) from None
    if here is not None:
        _report(here, results)
    worst = result.worst(results)
    if as_json:
        emit_json({"status": worst, "checks": [{name: getattr(r, name) for name in r.__slots__} for r in results]})
    else:
        shown = [r for r in node_checks.folded(results) if everything or r.status is not result.Status.NOT_APPLICABLE]
        rows = [[r.item, r.device, r.status, r.code, f"{r.seconds:.3f}s", r.reason] for r in shown]
        emit(table(["ITEM", "WHERE", "STATUS", "CODE", "TOOK", "REASON"], rows))
        left_out = sum(r.status is result.Status.NOT_APPLICABLE for r in results)
        if left_out and not everything:
            note(f"{left_out} checks do not apply to this node: show the reasons with --all")
    raise click.exceptions.Exit(_GATE.get(worst, 0) if gated else worst.exit_code)


for _word in (check_words.explain, check_words.clear, check_words.inject):
    check.add_command(_word)


@dataclass(frozen=True, slots=True)
class _Asked:
    items: tuple[str, ...]
    cards: int | list[int] | None
    active: bool
    hosts: tuple[str, ...]
    user: str
    daemon: int
    nursery: int
    #: The cards that the node had, as far as that may be read.
    inventory: "Inventory"
    #: What the active tests of the cards came to.
    figures: Path
    #: Of this node's daemon, which knows the cards that must not be tested.
    address: Address | None


def _list(settings: "Config", as_json: bool) -> None:
    from muster.probes.active import active_check
    from muster.probes.checks import precheck
    from muster.probes.node import node_checks

    rows = [(e.item, "before a job", e.checks, list(e.codes)) for e in precheck.catalogue()]
    rows += [(e.item, "with --active", e.checks, list(e.codes)) for e in active_check.catalogue()]
    for c in node_checks.catalogue(settings.health):
        when = f"every {c.interval_s:g} s" if c.interval_s else "by events"
        rows.append((c.item, when, c.looks_at, [str(code) for code in c.codes]))
    if as_json:
        names = ("item", "when", "checks", "codes")
        emit_json({"checks": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        emit(table(["ITEM", "WHEN", "CHECKS"], [row[:3] for row in rows]))


async def _checked(settings: "Config", asked: _Asked, say: Callable[[str], None], crash: str) -> "list[CheckResult]":
    """All of them side by side, with the driver open for as long as that takes, and the active tests after them. `say`
    takes how far they are; where there was a `crash` the driver stays closed for it. Raises UnknownItem, and
    CommandFailed for a file of limits that cannot be used."""
    import anyio

    from muster.agent.node import all_checks
    from muster.probes.cards.driver import Driver
    from muster.probes.cards.driver_settings import DriverSettings
    from muster.probes.checks import precheck
    from muster.probes.node import node_checks

    deadline_s = min(settings.cards.driver_deadline_s, settings.checks.deadline_s)
    driver = Driver(lambda: DriverSettings(deadline_s, settings.cards.slots), closed=crash)
    looker = node_checks.Looker(lambda: settings.health, driver, inventory=asked.inventory)
    request = precheck.CheckRequest(
        cards=_wanted(asked.cards),
        driver=driver,
        hosts=asked.hosts,
        user=asked.user,
        daemon=asked.daemon,
        nursery=asked.nursery,
    )
    of_node = [check.item for check in node_checks.catalogue(settings.health)]
    try:
        if not crash:
            await driver.open()
        results = await all_checks.run(settings.checks, request, looker.look, of_node, asked.items)
        if asked.active and not crash:
            results += await _tested(driver, settings, asked, request.cards, say)
        return results
    finally:
        with anyio.CancelScope(shield=True):
            await driver.close()


async def _tested(
    driver: Any, settings: "Config", asked: _Asked, wanted: "CardsWanted", say: Callable[[str], None]
) -> "list[CheckResult]":
    from muster.agent.node import active_look
    from muster.probes.active.card_limits import BadLimits

    taken = None
    if asked.address is not None:
        from muster.agent.cli.card_jobs import CardJobs

        taken = CardJobs(asked.address).taken
    try:
        results, trouble = await active_look.look(driver, wanted, settings.active, asked.figures, tell=say, taken=taken)
    except (OSError, BadLimits) as error:
        raise CommandFailed(f"limits_file of [active]: {error}", Exit.USAGE) from None
    if trouble:
        note(trouble)
    return results


def _report(address: Address, results: "list[CheckResult]") -> None:
    """Tells the daemon of this node what active tests found: it refuses jobs for a card that failed. Where no daemon
    takes it, a note says so if that matters."""
    from muster.agent.cli.client.calls import connect
    from muster.probes.active import active_settings
    from muster.probes.checks.result import Status
    from muster.v1 import job_pb2, probe_pb2

    tests = [r for r in results if r.item.partition(" ")[0] == active_settings.ITEM]
    of_cards = [r for r in tests if r.device and r.status is not Status.NOT_APPLICABLE]
    if not of_cards:
        return
    request = probe_pb2.ReportResultsRequest()
    for r in of_cards:
        told = job_pb2.CheckResult(item=r.item, code=r.code, reason=r.reason, observed=r.observed, device=r.device)
        request.results.append(told)
    try:
        with connect(address) as connection:
            connection.call(connection.probes.ReportResults, request, timeout=_ANSWER_S)
    except CommandFailed as failure:
        bad = sorted({r.device for r in of_cards if r.status is Status.CRITICAL})
        if bad:
            note(f"no daemon knows that {', '.join(bad)} failed ({failure.message}): give this node no jobs")


def _remembered(root: "Root") -> "Inventory":
    """The cards that the daemon of this root has recorded; none without a readable record."""
    from muster.agent.node.node_file import read_inventory
    from muster.probes.node.node_checks import Inventory

    path = root.node
    try:
        return Inventory(read_inventory(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        note(f"cannot read {path}: {why}: missing cards are not checked")
        return Inventory()


def _refuse_unknown(user: str) -> None:
    from muster.supervisors.launch.child import Account
    from muster.supervisors.supervision_errors import NotStartable

    try:
        Account.of(user)
    except NotStartable as error:
        raise CommandFailed(f"--user: {error}", Exit.USAGE) from None


def _wanted(cards: int | list[int] | None) -> "CardsWanted":
    from muster.probes.checks.precheck import CardsWanted

    if cards is None or cards is True:
        return CardsWanted(every=True)
    return CardsWanted(count=cards) if isinstance(cards, int) else CardsWanted(indices=tuple(dict.fromkeys(cards)))


def _has_ulimit(items: tuple[str, ...]) -> bool:
    from muster.probes.checks import ulimits

    return not items or ulimits.ITEM in items


def _parents(address: Address) -> tuple[int, int]:
    """The pids of daemon and nursery, from which ranks inherit their limits; 0 where there is none, or none to see.

    A user who named an address expects that daemon, and gets a note if it does not answer.
    """
    from muster.agent.cli.client.calls import connect
    from muster.v1 import node_pb2

    if address.path is None:
        note(f"{address} is another node: using the limits of this shell")
        return 0, 0
    try:
        pid = address.listener(_ANSWER_S)
    except OSError as error:
        if address.explicit or not isinstance(error, FileNotFoundError):
            note(f"no daemon at {address} ({error.strerror or error}): using the limits of this shell")
        return 0, 0
    try:
        with connect(address) as connection:
            node: Any = connection.call(connection.nodes.GetNode, node_pb2.GetNodeRequest(), timeout=_ANSWER_S).node
    except CommandFailed as failure:
        note(f"{failure.message}: using the limits of this shell")
        return 0, 0
    # From another PID namespace its numbers mean nothing here.
    if node.daemon_pid != pid:
        note("the daemon runs in another PID namespace: using the limits of this shell")
        return 0, 0
    return node.daemon_pid, node.nursery_pid
