"""Active checks of cards: each test in a process of its own, and what its figures say of the card.

A wrong result is never fine. A slow or missing one may be chance, or somebody else's work on the card: the test is
repeated once, and where a process is on the card, or came onto it meanwhile, it says nothing. A card is compared with
its model's limit, with the other cards of the node and with its own past, whichever it falls below first.
"""

import os
import socket
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field, replace

import anyio

from muster.probes.active import active_programs, program_run
from muster.probes.active.active_settings import ALLREDUCE, ITEM, PEERS, TESTS, TRANSFER, ActiveSettings
from muster.probes.active.card_limits import limits_of
from muster.probes.active.cuda import MISMATCH, NO_DEVICE, NOT_READY, OUT_OF_MEMORY
from muster.probes.active.program_run import Begun, Measured
from muster.probes.cards.accelerator import Card
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.precheck import CheckEntry
from muster.probes.checks.result import CheckResult, Code, Status, one_line
from muster.probes.kernel.dataclass import dataclass

#: Results of its own past that a card needs before it is compared with them; cards of a model, before with each other.
LEAST_PAST, LEAST_CARDS = 3, 3
#: How much was tested, and how many ways there are, is no figure that can be low.
COUNTS = frozenset({"tested_gb", "peers"})
#: One card after the other: the cards share the way to the host's memory, and the switches between them.
_ALONE = frozenset({TRANSFER, PEERS})
#: Of several cards: one that has failed before is left out, as the others would be blamed for it.
_TOGETHER = frozenset({PEERS, ALLREDUCE})
_LEFT_OUT = Measured({}, trouble="it has failed another test", absent=True)
#: No fault of the card: nothing says so, or its memory is somebody else's.
_NO_VERDICT = frozenset({0, OUT_OF_MEMORY})
_WHOLE_NODE = {
    NO_DEVICE: "CUDA does not see the card that NVML lists",
    NOT_READY: "is the fabric manager running?",
    MISMATCH: "the kernel module is of another version than the libraries: reload it, or reboot",
}
#: On a host without cards: so many processes, so that the way is tried all the same.
CPU_RANKS = 2

#: Who is on a card now, by pid; None: the driver does not tell.
Holders = Callable[[int], Awaitable[Sequence[int] | None]]
#: Why a card is not to be tested now, although no process may be on it; empty: it may be tested.
Taken = Callable[[Card], Awaitable[str]]
#: Figures of earlier runs by a card's UUID and what was measured, the newest last.
Past = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRequest:
    """`cards` are tested, and nobody else should use them meanwhile; `visible`: what a process calls each; `tests`:
    which, all by default."""

    cards: Mapping[int, Card]
    visible: Mapping[int, str]
    holders: Holders
    settings: ActiveSettings
    past: Past
    tests: Sequence[str] = tuple(TESTS)
    taken: Taken | None = None
    #: Takes how far the tests are, for people.
    tell: Callable[[str], object] = str
    #: Pids of the tests themselves: a card may need a moment to forget them.
    own: set[int] = field(default_factory=set)


def catalogue() -> list[CheckEntry]:
    """All active checks, in the order in which results are given."""
    codes = tuple(code for code in Code if code.startswith("ACTIVE_"))
    return [CheckEntry(f"{ITEM} {test}", looks_at, codes) for test, looks_at in TESTS.items()]


async def check(asked: ActiveRequest) -> tuple[list[CheckResult], dict[str, dict[str, float]]]:
    """Tests the cards. Results in the order of the tests and cards, and the figures of those that were in order, by
    UUID. Raises OSError and BadLimits for the settings' file of limits."""
    cards, settings = asked.cards, asked.settings
    if not cards:
        return await _without_cards(asked), {}
    limits = {index: limits_of(card.model, settings.limits_file) for index, card in cards.items()}
    results: list[CheckResult] = []
    figures: dict[str, dict[str, float]] = {}
    failed: set[int] = set()
    for number, test in enumerate(asked.tests):
        asked.tell(place := f"test {number + 1} of {len(asked.tests)}: {test}")
        measured = await _measure(test, asked, failed if test in _TOGETHER else (), place)

        def slow(index: int, found: dict[int, Measured]) -> str:
            model = cards[index].model
            twins = [found[i] for i, other in cards.items() if other.model == model and i != index]
            return _slow(cards[index], found[index], limits[index], asked, twins)

        behind = [index for index in cards if measured[index].figures and slow(index, measured)]
        if behind and test == ALLREDUCE:
            measured = await _of_all(asked, failed)
        elif behind:
            asked.tell(f"{place}, again on the slow cards: {', '.join(map(str, behind))}")
            again = {index: await _measured(test, cards[index], asked) for index in behind}
            measured = measured | again
        for index, card in cards.items():
            results.append(result := _judge(test, f"card {index}", index, measured[index], slow(index, measured)))
            if result.status is Status.CRITICAL:
                failed.add(index)
            if result.code is Code.ACTIVE_OK:  # a slow card must not become its own measure
                figures.setdefault(card.uuid, {}).update(measured[index].figures)
    return results, figures


async def _measure(test: str, asked: ActiveRequest, failed: Collection[int], place: str) -> dict[int, Measured]:
    """`failed`: cards that are left out; `place`: which test this is, for people."""
    found = {index: _LEFT_OUT for index in asked.cards if index in failed}
    whole = {index: card for index, card in asked.cards.items() if index not in failed}

    async def one(card: Card) -> None:
        found[card.index] = await _measured(test, card, asked, failed)
        if found[card.index].late:
            found[card.index] = await _measured(test, card, asked, failed)
        asked.tell(f"{place}, {sum(index in found for index in whole)} of {len(whole)} cards")

    if test == ALLREDUCE:
        return await _of_all(asked, failed)
    if test in _ALONE:
        for card in whole.values():
            await one(card)
    else:
        async with anyio.create_task_group() as tasks:
            for card in whole.values():
                tasks.start_soon(one, card)
    return _blamed(found, asked.cards) if test == PEERS else found


def _blamed(found: Mapping[int, Measured], cards: Mapping[int, Card]) -> dict[int, Measured]:
    """What arrived wrong may be the sender's fault or the receiver's: that of the card that most of it has to do
    with."""
    ways = [(cards[i].bus_id, other) for i, one in found.items() for other in one.wrong_at]
    count = Counter(bus for way in ways for bus in way)
    most = max(count.values(), default=0)
    wrong = {i: count[card.bus_id] for i, card in cards.items()}
    return {i: replace(one, wrong=wrong[i] if wrong[i] == most else 0, wrong_at=()) for i, one in found.items()}


async def _measured(test: str, card: Card, asked: ActiveRequest, failed: Collection[int] = ()) -> Measured:
    """Runs a test once, unless somebody uses the card. `failed`: other cards that are left out."""
    if why := await _in_use(card, asked):
        return Measured({}, trouble=why)
    others: list[Card] = []
    if test == PEERS:
        known = [
            one for i, one in asked.cards.items() if one is not card and not one.has_to_do_with_mig and i not in failed
        ]
        others = [one for one in known if one.kind == card.kind and not await _in_use(one, asked)]
    program = active_programs.of_card(test, card, others, asked.visible.get(card.index, ""), asked.settings)
    if program.trouble:
        return Measured({}, trouble=program.trouble, absent=program.absent)
    what, limit = f"test {test} of card {card.index}", asked.settings.deadline_s
    measured = await program_run.run(what, program.arguments, limit, program.env, asked.own.add)
    if not measured.wrong and (why := await _in_use(card, asked)):
        return Measured({}, trouble=f"by the end of the test {why}")
    return measured


async def _of_all(asked: ActiveRequest, failed: Collection[int]) -> dict[int, Measured]:
    """Of the cards that nobody uses, without those that failed."""
    if not asked.settings.python:
        return dict.fromkeys(asked.cards, Measured({}, trouble=active_programs.NEEDS_TORCH, absent=True))
    whole = {index: card for index, card in asked.cards.items() if index not in failed}
    taken = {index: why for index, card in whole.items() if (why := await _in_use(card, asked))}
    free = {index: card for index, card in whole.items() if index not in taken}
    found = await _all_reduce(free, asked.visible, asked.settings, asked.own.add)
    came = [f"card {i}: {why}" for i, card in free.items() if (why := await _in_use(card, asked))]
    if came and not any(one.wrong for one in found.values()):
        found = dict.fromkeys(free, Measured({}, trouble=f"by the end of the test {came[0]}"))
    used = {index: Measured({}, trouble=why) for index, why in taken.items()}
    return {index: (found | used).get(index, _LEFT_OUT) for index in asked.cards}


async def _in_use(card: Card, asked: ActiveRequest) -> str:
    """Why the card cannot be tested now; empty: it is free. A card whose driver does not say who is on it may be a
    job's, which a test of its memory would end."""
    if asked.taken is not None and (why := await asked.taken(card)):
        return why
    pids = await asked.holders(card.index)
    if pids is None:
        return "the driver does not say whether a process is on it"
    strangers = [str(pid) for pid in pids if not _of_test(pid, asked.own)]
    return f"pid {', '.join(strangers)} is on it" if strangers else ""


def _of_test(pid: int, own: Collection[int]) -> bool:
    """A test, or what it has started."""
    try:
        return pid in own or os.getsid(pid) in own
    except OSError:  # it has ended, or is of another PID namespace
        return False


async def _without_cards(asked: ActiveRequest) -> list[CheckResult]:
    """Of a host without cards: the way of the all-reduce, where there is an interpreter for it."""
    if asked.settings.python and ALLREDUCE in asked.tests:
        measured = await _all_reduce_on_cpu(asked.settings, asked.own.add)
        return [_judge(ALLREDUCE, "", None, measured, "")]
    code = Code.NODE_NOT_APPLICABLE
    return [CheckResult(ITEM, EXPLANATIONS[code].status, code, "there are no cards to test")]


def _slow(
    card: Card, measured: Measured, limits: Mapping[str, float], asked: ActiveRequest, twins: Sequence[Measured]
) -> str:
    """What is below what was expected, and below what; empty where all is well."""
    ratio = asked.settings.slow_ratio
    for name, value in measured.figures.items():
        others = [twin.figures[name] for twin in twins if name in twin.figures]
        earlier = asked.past.get(card.uuid, {}).get(name, ())
        floors = [(limits[name], f"the limit of a {card.model}")] if name in limits else []
        if name not in COUNTS:
            if len(others) + 1 >= LEAST_CARDS:
                middle = statistics.median([*others, value])
                floors.append((ratio * middle, f"{ratio:g} of the node's median"))
            if len(earlier) >= LEAST_PAST:
                middle = statistics.median(earlier)
                floors.append((ratio * middle, f"{ratio:g} of its own median before"))
        for floor, what in floors:
            if value < floor:
                return f"{name} {value:.4g} is below {floor:.4g}, {what}"
    return ""


def _judge(test: str, device: str, card: int | None, measured: Measured, slow: str) -> CheckResult:
    observed = ", ".join(f"{name} {value:.4g}" for name, value in measured.figures.items())
    if measured.wrong:
        code, reason = Code.ACTIVE_WRONG_RESULT, f"{measured.wrong} results of the {test} test are wrong"
    elif measured.late:
        code, reason = Code.ACTIVE_NO_END, f"the {test} test has twice not ended: {measured.trouble}"
    elif measured.absent:
        code, reason = Code.NODE_NOT_APPLICABLE, measured.trouble
    elif measured.trouble:
        failed = measured.code not in _NO_VERDICT or measured.crashed
        code = Code.ACTIVE_FAILED if failed else Code.ACTIVE_NOT_RUN
        reason = f"the {test} test {'failed' if failed else 'was not run'}: {measured.trouble}"
        if measured.code in _WHOLE_NODE:
            reason += f": {_WHOLE_NODE[measured.code]}"
    elif slow:
        code, reason = Code.ACTIVE_SLOW, f"slow, twice: {slow}"
    else:
        code, reason = Code.ACTIVE_OK, f"right and fast enough: {observed}"
    told = EXPLANATIONS[code]
    return CheckResult(
        f"{ITEM} {test}",
        told.status,
        code,
        one_line(reason),
        observed,
        action=told.action,
        device=device,
        card=card,
    )


async def _all_reduce(
    cards: Mapping[int, Card], visible: Mapping[int, str], settings: ActiveSettings, begun: Begun
) -> dict[int, Measured]:
    """The test of all cards together: one process for each, which sum over all of them with the vendor's library. What
    it came to for each card. Settings and topology break it more often than a card does, so what fails or does not end
    says nothing about the cards."""
    if any(card.has_to_do_with_mig for card in cards.values()):
        return dict.fromkeys(cards, Measured({}, trouble="a card is split into MIG instances"))
    if len(cards) < 2:
        return dict.fromkeys(cards, Measured({}, trouble="there is no other free card", absent=True))
    return await _together({i: card.kind for i, card in cards.items()}, visible, settings, begun)


async def _all_reduce_on_cpu(settings: ActiveSettings, begun: Begun) -> Measured:
    """The same with gloo, on the CPU."""
    found = await _together(dict.fromkeys(range(CPU_RANKS), "cpu"), {}, settings, begun)
    return next((one for one in found.values() if one.trouble or one.wrong), found[0])


async def _together(
    kinds: Mapping[int, str], visible: Mapping[int, str], settings: ActiveSettings, begun: Begun
) -> dict[int, Measured]:
    port, found = _free_port(), dict[int, Measured]()

    async def one(rank: int, index: int, tasks: anyio.CancelScope) -> None:
        word = visible.get(index, "")
        program = active_programs.of_rank(kinds[index], rank, len(kinds), port, word, settings)
        if program.trouble:
            found[index] = Measured({}, trouble=program.trouble, absent=program.absent)
            return
        what = f"test {ALLREDUCE} of card {index}"
        measured = await program_run.run(what, program.arguments, settings.deadline_s, program.env, begun)
        found[index] = replace(measured, late=False, code=0, crashed=False)
        if measured.trouble:  # the others wait for it
            tasks.cancel()

    async with anyio.create_task_group() as tasks:
        for rank, index in enumerate(kinds):
            tasks.start_soon(one, rank, index, tasks.cancel_scope)
    first = next((f"card {index}: {one.trouble}" for index, one in found.items() if one.trouble), "")
    return {index: found.get(index) or Measured({}, trouble=first) for index in kinds}


def _free_port() -> int:
    """One that nobody has now. Somebody may take it before the processes meet there: the test then fails, and says
    nothing about the cards."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
