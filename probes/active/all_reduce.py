"""The test of all cards together: one process for each, which sum over all of them with the vendor's library."""

import socket
from collections.abc import Mapping
from dataclasses import replace

import anyio

from muster.probes.active import active_programs, program_run
from muster.probes.active.active_settings import ALLREDUCE, ActiveSettings
from muster.probes.active.program_run import Begun, Measured
from muster.probes.cards.accelerator import Card

#: On a host without cards: so many processes, so that the way is tried all the same.
CPU_RANKS = 2


async def of_cards(
    cards: Mapping[int, Card], visible: Mapping[int, str], settings: ActiveSettings, begun: Begun
) -> dict[int, Measured]:
    """What it came to for each card. Settings and topology break it more often than a card does, so what fails or does
    not end says nothing about the cards."""
    if any(card.mig for card in cards.values()):
        return dict.fromkeys(cards, Measured({}, trouble="a card is split into MIG instances"))
    if len(cards) < 2:
        return dict.fromkeys(cards, Measured({}, trouble="there is no other free card", absent=True))
    return await _together({i: card.kind for i, card in cards.items()}, visible, settings, begun)


async def of_cpu(settings: ActiveSettings, begun: Begun) -> Measured:
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
        found[index] = replace(measured, late=False, code=0)
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
