"""Which cards the caller may use: those that CUDA_VISIBLE_DEVICES names, or ASCEND_RT_VISIBLE_DEVICES.

Slurm sets it to the cards that it gave to the job, which need not be the first ones of the node, and people set it
where they share a node. A program started by torchrun keeps to it, and so does a standalone run that asks for all cards
or for some number of them. Who writes numbers (`--cards 4-7`) has chosen.
"""

from collections.abc import Mapping
from dataclasses import replace

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import note
from muster.agent.cli.spec.job_spec import HOW_MANY, Draft
from muster.supervisors.model.spec import FIELDS

VARIABLES = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
#: How a name of a card begins that is no number: a UUID of a card or of a MIG instance.
_NAMES = ("GPU-", "MIG-")


def keep_to(draft: Draft, env: Mapping[str, str]) -> None:
    """Replaces a number of cards, or all of them, by the first ones that the environment names. Raises CommandFailed
    where it names fewer."""
    wanted = draft.asked.card_count
    said = {name: env[name] for name in VARIABLES if name in env}
    if not said or not (wanted or draft.asked.all_cards):
        return
    # Images for one kind of cards hide those of the other.
    shown = {name: value for name, value in said.items() if _numbers(value) or value.strip().startswith(_NAMES)} or said
    variable = next(iter(shown))
    if len(set(shown.values())) > 1 and shown is not said:
        both = " and ".join(f"{name}={value}" for name, value in shown.items())
        raise CommandFailed(f"{both} name different cards: unset one of them, or give --cards with numbers", Exit.USAGE)
    if env[variable].strip().startswith(_NAMES):
        note(f"{variable} names cards by UUID and does not choose this job's cards: give --cards with their numbers")
        return
    named = _numbers(env[variable])
    if len(named) < (wanted or 1):
        what = f"{len(named)} card{'' if len(named) == 1 else 's'}" if named else "no card"
        raise CommandFailed(
            f"{variable}: {env[variable]!r} names {what}, and --cards asks for {wanted or 'all'}: unset the variable, "
            "or give --cards with numbers, as in `--cards 0-3`",
            Exit.USAGE,
        )
    for name in HOW_MANY:
        if name != "ranks":
            draft.written.pop(name, None)
            draft.asked = replace(draft.asked, **{name: FIELDS[name].default})
    draft.say(FIELDS["card_count"], named[:wanted] if wanted else named, variable)


def _numbers(text: str) -> tuple[int, ...]:
    """Up to what is no number, or is the second of one kind: there CUDA ends the list, too."""
    found: list[int] = []
    for word in text.split(","):
        word = word.strip()
        if not (word.isascii() and word.isdigit()) or int(word) in found:
            break
        found.append(int(word))
    return tuple(found)
