"""Which signs of a job are consequences of another rank's end. Pure."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from msgspec import structs

from muster.agent.why.causes import sign_words
from muster.agent.why.facts import Facts
from muster.agent.why.log_signs import Sign
from muster.supervisors.model.states import Outcome

#: Of a rank that was being set up while rank 0, which runs PyTorch's store, ended.
_STORE_GONE = re.compile(r"got error: .{0,60}(?:Connection reset|Broken pipe|[Ff]ailed to recv|Connection was closed)")
#: What a rank writes that waits in vain for another one, because its link or rendezvous failed or the other has ended.
_IN_VAIN = frozenset({"rendezvous-refused", "nccl-setup", "nccl-ib", "hccl-network"})
#: A port that could not be had, and what others write who try to reach it.
_PORT_TAKEN, _NO_ANSWER = "address-in-use", sign_words.OF_SERVICES | {"connection-refused"}
_PORT = re.compile(r"(?:port[ =:]|:|', )([1-9][0-9]{3,4})\b")
#: PyTorch's checkpoints.
_OF_RANKS = re.compile(r"CheckpointException ranks:dict_keys\(\[([0-9]{1,6}(?:, [0-9]{1,6}){0,999})\]\)")


def named(signs: Sequence[Sign], facts: Facts) -> list[Sign]:
    """The signs without those that say what followed from an error of the same rank, and with those that follow from
    another rank's end as consequences."""
    return _consequences_named(_without_consequences(_of_lines(signs), facts), facts)


def _of_lines(signs: Sequence[Sign]) -> list[Sign]:
    """Without the causes that a line names by the way, which says with more weight that another rank has failed."""
    follow: dict[tuple[int | None, str, int, str], int] = {}
    for sign in signs:
        if sign.hit.signature.role == "follow":
            follow[_line(sign)] = max(sign.hit.signature.priority, follow.get(_line(sign), 0))
    return [one for one in signs if one.hit.signature.priority >= follow.get(_line(one), 0)]


def _line(sign: Sign) -> tuple[int | None, str, int, str]:
    """The line in which it stands."""
    return sign.rank, sign.file, sign.hit.at, sign.hit.line


def _without_consequences(signs: Sequence[Sign], facts: Facts) -> list[Sign]:
    """Without what a rank says of its peers after an error of the program, in the traceback of its end or behind it: it
    lost them because it ended, or on its way out."""
    bugs: dict[tuple[int | None, int | None], int] = {}
    for sign in signs:
        if sign_words.is_bug(sign) and sign.last and not sign.file:
            bugs[sign_words.who(sign, facts)] = min(sign.hit.at, bugs.get(sign_words.who(sign, facts), sign.hit.at))

    def follows(sign: Sign) -> bool:
        begin = bugs.get(sign_words.who(sign, facts))
        return sign.hit.signature.role == "follow" and begin is not None and sign.hit.at > begin and not sign.file

    return [sign for sign in signs if not follows(sign)]


def _consequences_named(signs: Sequence[Sign], facts: Facts) -> list[Sign]:
    """With errors of the network as consequences, where another rank had ended before without a word, or ended of an
    error of the program: its peers lose the connection to it; and with those of a port that another rank could not
    get, or of a link or rendezvous at which another was awaited that had ended with its own error."""
    led = sign_words.who_follow(signs, facts)
    before = [one for one in signs if _says_why(one, led, facts)]
    bugs = {sign_words.who(one, facts) for one in signs if sign_words.is_bug(one) and sign_words.ended_late(one, facts)}
    told = {sign_words.who(one, facts): _ranks_named(one) for one in signs if _ranks_named(one)}
    taken = {port: one.rank for one in signs if one.hit.signature.id == _PORT_TAKEN for port in _ports(one)}

    def awaited_another(sign: Sign) -> bool:
        return any(_came_before(one, sign, facts) for one in before)

    def of_another(sign: Sign) -> bool:
        if sign.rank is None or sign_words.who(sign, facts) in bugs:
            return False
        if _STORE_GONE.search(sign.hit.line) is not None:
            return True
        if sign.rank not in told.get(sign_words.who(sign, facts), (sign.rank,)):
            return True
        if sign.hit.signature.id in _IN_VAIN and awaited_another(sign):
            return True
        may_follow = sign.hit.signature.kind in sign_words.MAY_FOLLOW
        if may_follow and (bugs or (sign_words.who(sign, facts) in led and awaited_another(sign))):
            return True
        return sign.hit.signature.id in _NO_ANSWER and any(taken.get(p, sign.rank) != sign.rank for p in _ports(sign))

    # One line may match several signatures.
    follow = {_line(sign) for sign in signs if of_another(sign)}
    signs = [_as_consequence(sign) if _line(sign) in follow else sign for sign in signs]
    first = facts.first
    wrote = {sign.rank for sign in signs if sign.hit.signature.role != "hint"}
    if first is None or first.rank in wrote or first.outcome not in (Outcome.EXITED, Outcome.SIGNALLED):
        return list(signs)
    if sign_words.aborted(first):
        return list(signs)

    def follows(sign: Sign) -> bool:
        after = sign.at is not None and sign.at - facts.zero > sign_words.SAME_TIME_S
        return after and sign.rank is not None and sign.hit.signature.kind in sign_words.MAY_FOLLOW

    return [_as_consequence(sign) if follows(sign) else sign for sign in signs]


def _says_why(sign: Sign, followers: Collection[tuple[int | None, int | None]], facts: Facts) -> bool:
    """Whether it says why a rank ended, or hung on its way out: with an error that has a name, is one of the program,
    or is not about its peers and of the rank that ended first; in any case no error of reaching others."""
    reaches_out = sign.hit.signature.kind in sign_words.MAY_FOLLOW
    if sign.hit.signature.role != "root" or reaches_out or sign_words.is_survived(sign):
        return False
    if not sign.last or sign.file or sign.before_end:
        return False
    failed = any(rank.rank == sign.rank for rank in facts.failed)
    if sign_words.is_last_word(sign, facts) and sign_words.dies(sign):
        return True
    if not failed and not sign_words.is_last_word(sign, facts):
        return False
    if sign_words.is_named(sign) or sign_words.is_bug(sign):
        return True
    first = facts.first is not None and sign.rank == facts.first.rank
    own = sign_words.dies(sign) and sign_words.who(sign, facts) not in followers
    return first and own and not sign_words.OF_AN_END.search(sign.hit.line)


def _came_before(one: Sign, sign: Sign, facts: Facts) -> bool:
    """Whether another rank wrote it, and not later."""
    if sign_words.who(one, facts) == sign_words.who(sign, facts):
        return False
    return one.at is None or sign.at is None or one.at <= sign.at + sign_words.SAME_TIME_S


def _ranks_named(sign: Sign) -> list[int]:
    """The ranks that an exception names as those that failed: each rank raises it, with what the others reported."""
    told = _OF_RANKS.search(sign.hit.line) if sign.hit.signature.shows == "exception" else None
    return [int(number) for number in told[1].split(",")] if told else []


def _ports(sign: Sign) -> list[str]:
    return _PORT.findall(sign.hit.line)


def _as_consequence(sign: Sign) -> Sign:
    if sign.hit.signature.role != "root":
        return sign
    return replace(sign, hit=replace(sign.hit, signature=structs.replace(sign.hit.signature, role="follow")))
