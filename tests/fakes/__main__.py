"""Fake cards by hand: `python -m tests.fakes up DIR`, then `set DIR 3 util=40` and so on, while a daemon has them.

docs/guides/fake-cards.md is the whole story.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from muster.supervisors.paths import Root
from tests.fakes.build import NoCompiler
from tests.fakes.card import FakeCard
from tests.fakes.cards import STATE, FakeCards
from tests.fakes.models import MODELS

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_GIB = 1 << 30
#: Not to be set: what a card is, and not how it does.
_FIXED = {"model", "util_types", "board", "chip", "cards", "raw"}


def value(text: str) -> Any:
    """A number, also with a unit of bytes ("20GiB"), a list of numbers ("0,1,2"), or the text itself."""
    if match := re.fullmatch(r"([0-9.]+)([KMG]iB)", text):
        return int(float(match[1]) * _UNITS[match[2]])
    if "," in text:
        return [int(part, 0) for part in text.split(",") if part]
    for kind in (lambda it: int(it, 0), float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def chosen(cards: FakeCards, which: str) -> list[FakeCard]:
    """A card by its number, several ("0,2"), or "all"."""
    return list(cards) if which == "all" else [cards[int(number)] for number in which.split(",")]


def settable() -> list[str]:
    """Names that `set` knows."""
    names = {
        name
        for name, it in vars(FakeCard).items()
        if not name.startswith("_") and (it.fset if isinstance(it, property) else hasattr(it, "__set__"))
    }
    return sorted(names - _FIXED - {"processes"})


def up(args: argparse.Namespace) -> None:
    if (args.dir / STATE).exists():
        raise ValueError(
            f"{args.dir} has cards already: a daemon may have them open. Take another folder, or remove it"
        )
    with FakeCards.make(args.dir, args.kind, args.cards, args.model) as cards:
        names = sorted(cards.env)
        print(f"# {len(cards)} x {cards[0].model if len(cards) else 'nothing'}. In the shell that starts musterd:")
        for name in names:
            print(f"export {name}={shlex.quote(cards.env[name])}")


def change(args: argparse.Namespace, cards: FakeCards) -> None:
    for card in chosen(cards, args.card):
        for pair in args.values:
            name, equals, text = pair.partition("=")
            if not equals or name not in settable():
                raise ValueError(f"{pair!r}: wanted is NAME=VALUE, with one of these names: {', '.join(settable())}")
            before, new = getattr(card, name), value(text)
            if isinstance(before, str):
                new = text
            elif isinstance(before, tuple) and not isinstance(new, list):
                new = [new]
            try:
                setattr(card, name, new)
            except (TypeError, IndexError) as error:
                raise ValueError(f"{pair!r}: {error}") from error


def curve(args: argparse.Namespace, cards: FakeCards) -> None:
    points = [(float(at), float(it)) for at, it in (pair.split(":") for pair in args.points)]
    for card in chosen(cards, args.card):
        card.curve(points, args.of)


def hold(args: argparse.Namespace, cards: FakeCards) -> None:
    for card in chosen(cards, args.card):
        card.hold(args.pid, value(args.size), lives=not args.stays)


def fault(args: argparse.Namespace, cards: FakeCards) -> None:
    targets: Iterable[FakeCard | FakeCards] = [cards] if args.card == "driver" else chosen(cards, args.card)
    for target in targets:
        match args.command:
            case "hang":
                target.hang(args.function)
            case "fail":
                target.fail(args.function, args.code)
            case _:
                target.clear(None if args.function == "*" else args.function)


def show(args: argparse.Namespace, cards: FakeCards) -> None:
    print(f"{'card':>4}  {'util':>4}  {'memory GiB':>13}  {'watts':>5}  {'C':>3}  {'calls':>8}  what else")
    for card in cards:
        used = (card.mem_used + card.mem_reserved + sum(it.bytes for it in card.processes)) / _GIB
        print(
            f"{card.place:>4}  {card.util:>3.0f}%  {used:>5.1f} / {card.mem_total / _GIB:>5.1f}  {card.power_w:>5.0f}"
            f"  {card.temp_c:>3.0f}  {card.calls:>8}  {'; '.join(remarks(card))}".rstrip()
        )
    for function in cards.waits_in():
        print(f"calls of {function} wait, whatever the card")


def remarks(card: FakeCard) -> list[str]:
    """What is out of the ordinary with a card."""
    found = [f"pids {' '.join(str(it.pid) for it in card.processes)}"] if card.processes else []
    if not card.raw.present:
        found.append("not there")
    if card.raw.lost:
        found.append(f"lost ({card.raw.lost})")
    if card.npu_health:
        found.append(f"health {card.npu_health}")
    if card.errors:
        found.append("error codes " + " ".join(f"0x{code:08X}" for code in card.errors))
    for it in card.raw.faults:
        if it.used:
            what = f"hangs, {it.waiting} waiting" if it.hang else f"gives {it.code}"
            found.append(f"{it.function.decode()} {what}")
    return found


def play(args: argparse.Namespace, cards: FakeCards) -> None:
    from tests.fakes.play import Follower, busy

    if args.root is None:
        for card in cards:
            busy(card)
        return
    try:
        Follower(cards, Root.under(args.root)).run()
    except KeyboardInterrupt:
        pass


Command = Callable[[argparse.Namespace, FakeCards], None]


def commands() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m tests.fakes", description=__doc__)
    all_commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Command | None, text: str, *, card: str = "") -> argparse.ArgumentParser:
        command = all_commands.add_parser(name, help=text, description=text)
        command.add_argument("dir", type=Path, help="folder of the cards")
        if card:
            command.add_argument("card", help=card)
        command.set_defaults(run=run)
        return command

    one = "number of a card, several (0,2), or all"
    command = add("up", None, "make the folder, and say what to export")
    command.add_argument("--kind", choices=["nvidia", "ascend"], default="nvidia")
    command.add_argument("--cards", type=int, default=8)
    command.add_argument("--model", default="", choices=["", *MODELS])
    add("show", show, "what the cards say now")
    command = add("set", change, "readings stand still at a value", card=one)
    command.add_argument("values", nargs="+", metavar="NAME=VALUE", help=", ".join(settable()))
    command = add("curve", curve, "a reading follows points, over and over again", card=one)
    command.add_argument("of", choices=["util", "mem_util", "power_w", "temp_c"])
    command.add_argument("points", nargs="+", metavar="SECONDS:VALUE")
    command = add("play", play, "cards that look busy; with --root those alone that have a rank of a daemon's job")
    command.add_argument("--root", type=Path, help="folder that musterd was given; runs until Ctrl-C")
    command = add("hold", hold, "put a process on a card", card=one)
    command.add_argument("pid", type=int)
    command.add_argument("size", help="bytes, or 20GiB")
    command.add_argument("--stays", action="store_true", help="on the card even when it has ended")
    command = add("release", lambda a, cards: _each(cards, a, lambda it: it.release(a.pid)), "take it off", card=one)
    command.add_argument("pid", type=int)
    for name, text, act in (
        ("lose", "it falls off the bus", FakeCard.lose),
        ("reset-required", "it wants a reset", FakeCard.require_reset),
        ("back", "it works again", FakeCard.back),
        ("remove", "it is no longer listed", FakeCard.remove),
        ("insert", "it is listed again", FakeCard.insert),
        ("restore", "as it was made", FakeCard.restore),
    ):
        add(name, lambda args, cards, act=act: _each(cards, args, act), text, card=one)  # type: ignore[misc]
    command = add("xid", lambda a, cards: _each(cards, a, lambda it: cards.xid(it.place, a.number)), "an Xid", card=one)
    command.add_argument("number", type=int)
    for name, text in (("error", "raise an error code (Ascend)"), ("recover", "take it back (Ascend)")):
        command = add(name, lambda a, cards: _each(cards, a, _coded(a)), text, card=one)
        command.add_argument("code", type=lambda text: int(text, 0))
    target = "number of a card, several (0,2), all, or driver: whatever the card"
    for name, text in (("hang", "calls wait"), ("fail", "calls return a code"), ("clear", "neither any more")):
        command = add(name, fault, text, card=target)
        command.add_argument("function", nargs="?" if name != "fail" else None, default="*", help="name, or * for all")
        if name == "fail":
            command.add_argument("code", type=int)
    command = add("unload", lambda args, cards: cards.unload(args.code), "the kernel module goes")
    command.add_argument("--code", type=int, default=9, help="what initializing gives: 9 not loaded, 18 mismatch")
    add("load", lambda args, cards: cards.load(), "the kernel module is back")
    return parser


def _each(cards: FakeCards, args: argparse.Namespace, act: Callable[[FakeCard], Any]) -> None:
    for card in chosen(cards, args.card):
        act(card)


def _coded(args: argparse.Namespace) -> Callable[[FakeCard], Any]:
    return lambda card: (card.error if args.command == "error" else card.recover)(args.code)


def main(arguments: list[str] | None = None) -> int:
    """Gives the exit code: 0, 1 for what cannot be done, 2 for a command line that is not understood."""
    args = commands().parse_args(arguments)
    try:
        if args.command == "up":
            up(args)
        else:
            with FakeCards.open(args.dir) as cards:
                args.run(args, cards)
    except FileNotFoundError as error:
        print(f"{error.filename}: no cards there; `python -m tests.fakes up {args.dir}` makes some", file=sys.stderr)
        return 1
    except (ValueError, IndexError, NoCompiler) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
