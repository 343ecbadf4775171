"""`muster check --active`: the active tests of this node's cards, and what they measured before."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from muster.agent import threads
from muster.agent.errors import StartupError
from muster.agent.host import state_file
from muster.probes.active import active_check, active_settings
from muster.probes.active.active_settings import ActiveSettings
from muster.probes.cards import visible
from muster.probes.cards.driver import Driver, What
from muster.probes.checks.card_checks import CardsWanted
from muster.probes.checks.result import CheckResult

#: Results of a card that are kept.
KEPT = 20
_VERSION = 1
#: Held while the file is changed.
_FILE = threading.Lock()


class _Figures(msgspec.Struct):
    """By a card's UUID and what was measured, the newest last."""

    cards: dict[str, dict[str, list[float]]] = {}
    version: int = _VERSION


async def look(
    driver: Driver,
    wanted: CardsWanted,
    settings: ActiveSettings,
    path: Path,
    tests: Sequence[str] = tuple(active_settings.TESTS),
    tell: Callable[[str], object] = str,
    taken: active_check.Taken | None = None,
) -> tuple[list[CheckResult], str]:
    """Runs `tests` on the wanted cards, one after the other, and adds what was measured to the file `path`. The
    sentence says why that could not be read or kept; it is empty where all is well. The driver is open. Raises OSError
    and BadLimits for the settings' file of limits. `tell` takes how far they are, for people; `taken` says why a card
    is not to be tested now."""
    known, trouble = _read(path)
    whole = driver.view.whole
    chosen = wanted.indices or (tuple(whole)[: wanted.count] if wanted.count else tuple(whole))
    known_cards = {**driver.view.cards, **whole}  # an instance of a split card is one that somebody may name
    cards = {index: known_cards[index] for index in chosen if index in known_cards}

    async def holders(index: int) -> Sequence[int] | None:
        seen = (await driver.refresh(What.HOLDERS, [index])).holders.get(index)
        return [holder.pid for holder in seen.value] if seen is not None else None

    asked = active_check.ActiveRequest(
        cards=cards,
        visible=visible.words(list(cards.values()), whole.values(), driver.view.sick, {}) if cards else {},
        holders=holders,
        settings=settings,
        past=known.cards,
        tests=tests,
        taken=taken,
        tell=tell,
    )
    results, figures = await active_check.check(asked)
    if figures:
        try:
            trouble = await threads.run(_add, path, figures) or trouble
        except OSError as error:
            trouble = f"{path}: cannot be written: {error.strerror or error}: later tests do not know of this one"
    return results, trouble


def _add(path: Path, figures: Mapping[str, Mapping[str, float]]) -> str:
    """Adds them to what the file has by now: other tests may have ended meanwhile. A damaged one is set aside, and the
    past of the cards begins anew. Blocks. Raises OSError."""
    with _FILE:
        known, trouble = _read(path)
        aside = ""
        if trouble and _is_damaged(path):
            aside = f"{trouble}: it was set aside as {state_file.set_aside(path).name}, and their past begins anew"
        elif trouble:
            return f"{trouble}, and this is not kept"
        for uuid, measured in figures.items():
            for name in measured.keys() - active_check.COUNTS:
                past = known.cards.setdefault(uuid, {}).setdefault(name, [])
                past.append(round(measured[name], 3))
                del past[:-KEPT]
        state_file.write(path, known)
    return aside


def forget(path: Path, uuids: Collection[str]) -> None:
    """Forgets what was measured on these cards: they are compared with it no longer. Blocks. Raises OSError."""
    with _FILE:
        known, trouble = _read(path)
        if not trouble and known.cards.keys() & set(uuids):
            known.cards = {uuid: figures for uuid, figures in known.cards.items() if uuid not in uuids}
            state_file.write(path, known)


def _read(path: Path) -> tuple[_Figures, str]:
    try:
        return state_file.read(path, _Figures, _VERSION), ""
    except FileNotFoundError:
        return _Figures(), ""
    except (OSError, state_file.Damaged, StartupError) as error:
        return _Figures(), f"{path}: {error}: the cards are not compared with their own past"


def _is_damaged(path: Path) -> bool:
    """Whether nobody can ever read the file: not one of a newer musterd, or that the disk does not give now."""
    try:
        state_file.read(path, _Figures, _VERSION)
    except state_file.Damaged:
        return True
    except (OSError, StartupError):
        return path.is_dir() or path.is_fifo() or path.is_symlink()
    return False
