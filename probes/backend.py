"""What a card's driver says: the one shape in which every vendor's module answers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import anyio

from probes import watched
from probes.result import Code


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one card. `text` tells which piece of hardware it is where `code` is CARDS_OK, else what is wrong."""

    code: Code
    text: str


async def ask_each(what: str, indices: Iterable[int], ask: Callable[[int], Answer], answers: dict[int, Answer]) -> None:
    """Calls `ask` for every card side by side, each in a thread of its own, and writes what it says to `answers`.

    Cards without an answer are left out when the caller is cancelled: a card that hangs hides no other. `what` names
    the call (see watched.call).
    """

    async def one(index: int) -> None:
        try:
            answers[index] = await watched.call(f"{what} {index}", lambda: ask(index))
        except watched.StillHanging as error:
            answers[index] = Answer(Code.PROBE_TIMED_OUT, str(error))
        except OSError as error:  # no thread to be had
            answers[index] = Answer(Code.CARDS_NOT_TOLD, f"could not be asked: {error.strerror or error}")

    async with anyio.create_task_group() as group:
        for index in indices:
            group.start_soon(one, index)
