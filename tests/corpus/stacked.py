"""Scenarios with stacks, recorded from real processes (record_stacks.py): what a rank waits for decides."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.corpus.physics import POLL, SLEEP, Act, Play, Spell, Stack
from tests.corpus.scenarios import MINUTE, Scenario, Setting, Told, asleep, go_over_to, spin, steady_work

#: By the name of a life: its dumps, 3 s apart.
RECORDED = {
    name: [Stack(**{**row, "frames": tuple(row["frames"])}) for row in rows]
    for name, rows in json.loads((Path(__file__).parent / "stacks.json").read_text()).items()
}


def at(act: Act, life: str) -> Act:
    """The same, with the stacks of this life."""
    return replace(act, stacks=tuple(RECORDED[life]))


def _odd(s: Setting, odd: Act, peers: Act, tail_min: float = 6.0) -> Told:
    """After work one rank does this, its peers that."""
    culprit = s.rng.randrange(s.ranks)
    ranks, until = steady_work(s)
    go_over_to(ranks, until, *[odd if rank == culprit else peers for rank in range(s.ranks)])
    return Told(Play(ranks, until + tail_min * MINUTE, kind=s.kind), until, culprit)


def _waits_on_card(s: Setting, life: str = "torch-reduce") -> Act:
    return at(spin(s), life)


def _logs(told: Told, log: float = 80.0) -> Told:
    """The same, with some lines in each record until then."""
    for spells in told.play.ranks:
        spells[:] = [replace(spell, act=replace(spell.act, log=log)) for spell in spells[:-1]] + spells[-1:]
    return told


def s1(s: Setting) -> Told:
    life = s.rng.choice(("torch-guilty_lock", "torch-queue", "mpi-guilty_lock"))
    peers = s.rng.choice(("torch-reduce", "torch-barrier", "torch-gather", "torch-backward"))
    return _odd(s, at(asleep(), life), _waits_on_card(s, peers))


def s2(s: Setting) -> Told:
    return _odd(s, at(asleep(SLEEP), "torch-guilty_sleep"), _waits_on_card(s))


def s3(s: Setting) -> Told:
    return _logs(_odd(s, at(asleep(), "torch-guilty_lock"), at(asleep(cpu=0.002), "torch-reduce")))


def s4(s: Setting) -> Told:
    stopped = replace(RECORDED["torch-guilty_lock"][0], state="T", wchan="do_signal_stop")
    return _odd(s, Act(state="T", wchan="do_signal_stop", stacks=(stopped,)), _waits_on_card(s))


def s5(s: Setting) -> Told:
    blocked = replace(RECORDED["torch-guilty_lock"][0], state="D", wchan="nvidia_ioctl")
    return _odd(s, Act(state="D", wchan="nvidia_ioctl", stacks=(blocked,)), _waits_on_card(s))


def s6(s: Setting) -> Told:
    """Peers in work.wait(), of which nothing but the program's line is seen; their cards tell."""
    return _odd(s, at(asleep(), "torch-guilty_lock"), _waits_on_card(s, "torch-async"))


def s7(s: Setting) -> Told:
    return _odd(s, at(Act(cpu=0.99, state="R"), "torch-one_big_call"), _waits_on_card(s))


def s32(s: Setting) -> Told:
    return _odd(s, at(Act(cpu=0.99, state="R"), "torch-one_big_call"), _waits_on_card(s), tail_min=85)


def s33(s: Setting) -> Told:
    """It sorts or shuffles what it has, in C, and comes back."""
    told = _odd(s, at(Act(cpu=0.99, state="R"), "torch-one_big_call"), _waits_on_card(s, "torch-barrier"))
    return replace(told, play=_again(told, s.rng.uniform(5, 40)))


def s34(s: Setting) -> Told:
    return _logs(_odd(s, at(asleep(SLEEP), "torch-guilty_sleep"), at(asleep(cpu=0.002), "torch-reduce")))


def s36(s: Setting) -> Told:
    """Its first thread waits for others of its own, which receive data."""
    receives = replace(asleep(cpu=0.02), net=s.rng.uniform(5e6, 300e6))
    told = _logs(_odd(s, at(receives, "torch-guilty_lock"), at(asleep(cpu=0.002), "torch-reduce")))
    assert told.onset is not None
    again = told.onset + s.rng.uniform(3, 25) * MINUTE
    for spells in told.play.ranks:
        spells.append(Spell(again, spells[-2].act))
    told.play.end = told.onset + 35 * MINUTE
    return Told(told.play)


def s30(s: Setting) -> Told:
    """Whether it touches memory is not known."""
    return _odd(s, at(Act(cpu=0.99, state="R"), "one_big_call-faults"), _waits_on_card(s), tail_min=26)


def s31(s: Setting) -> Told:
    return _logs(_odd(s, at(Act(cpu=0.99, state="R"), "torch-one_big_call"), at(asleep(cpu=0.002), "torch-reduce")))


def s38(s: Setting) -> Told:
    """It began to work a minute or two before."""
    return _logs(_young(s, at(Act(cpu=0.99, state="R"), "torch-one_big_call")))


def s39(s: Setting) -> Told:
    life = s.rng.choice(("tokenizes", "scores", "indexes", "torch-makes_a_list"))
    told = _logs(_young(s, at(Act(cpu=0.99, state="R"), life)))
    return Told(_again(told, s.rng.uniform(3, 15)))


def s40(s: Setting) -> Told:
    """No lines were there to have a rhythm."""
    return _young(s, at(Act(cpu=0.99, state="R"), "torch-one_big_call"), tail_min=12)


def s41(s: Setting) -> Told:
    life = s.rng.choice(("tokenizes", "scores", "indexes", "torch-makes_a_list"))
    return Told(_again(_young(s, at(Act(cpu=0.99, state="R"), life), least_min=0.1), s.rng.uniform(3, 15)))


def _young(s: Setting, odd: Act, *, tail_min: float = 6.0, least_min: float = 1.2) -> Told:
    culprit = s.rng.randrange(s.ranks)
    ranks, until = steady_work(s, least_min, 2.5)
    go_over_to(
        ranks, until, *[odd if rank == culprit else at(asleep(cpu=0.002), "torch-reduce") for rank in range(s.ranks)]
    )
    return Told(Play(ranks, until + tail_min * MINUTE, kind=s.kind), until, culprit)


def s24(s: Setting) -> Told:
    """It takes more CPUs than one: threads of a library compute."""
    return _odd(s, at(Act(cpu=s.rng.uniform(2, 8), state="R"), "torch-one_big_call"), _waits_on_card(s), tail_min=26)


def s27(s: Setting) -> Told:
    """MindSpore: its first thread waits in AllReduce, or for a graph in which one is."""
    odd = s.rng.choice((at(asleep(), "mindspore-guilty_lock"), at(asleep(SLEEP), "mindspore-guilty_sleep")))
    return _odd(s, odd, _waits_on_card(s, s.rng.choice(("mindspore-reduces", "mindspore-graph"))))


def s28(s: Setting) -> Told:
    """On the CPU its ranks take a whole CPU while they wait in AllReduce."""
    waits = Act(cpu=s.rng.uniform(0.8, 1.0), state="R")
    return _logs(_odd(s, at(asleep(), "mindspore-guilty_lock"), at(waits, "mindspore-reduces"), tail_min=10))


def s29(s: Setting) -> Told:
    """MindSpore compiles a graph on one rank, or waits for data."""
    compiles = at(Act(cpu=0.99, state="R"), "mindspore-compiles")
    loads = at(asleep(cpu=0.02), "mindspore-loads")
    peers = _waits_on_card(s, s.rng.choice(("mindspore-reduces", "mindspore-graph")))
    odd, minutes = s.rng.choice(((compiles, 30), (loads, 9)))
    return _returns(s, odd, peers, s.rng.uniform(3, minutes))


def s25(s: Setting) -> Told:
    """Rank 0 makes tokens, scores or an index, for up to 40 minutes in calls that look alike; the others wait."""
    life = s.rng.choice(("tokenizes", "scores", "indexes"))
    return _returns(s, at(Act(cpu=0.99, state="R"), life), _waits_on_card(s, "torch-barrier"), s.rng.uniform(5, 40))


def s26(s: Setting) -> Told:
    """A call of C that makes something takes up to a quarter of an hour."""
    makes = at(Act(cpu=0.99, state="R"), "torch-makes_a_list")
    return _returns(s, makes, _waits_on_card(s, "torch-barrier"), s.rng.uniform(3, 15))


def _returns(s: Setting, odd: Act, peers: Act, minutes: float) -> Told:
    """The same for a while, then work again."""
    return Told(_again(_odd(s, odd, peers), minutes))


def _again(told: Told, minutes: float) -> Play:
    """After so many minutes it works again."""
    assert told.onset is not None
    for spells in told.play.ranks:
        spells.append(Spell(told.onset + minutes * MINUTE, spells[-2].act))
    told.play.end = told.onset + (minutes + 15) * MINUTE
    return told.play


def s8(s: Setting) -> Told:
    return _returns(s, at(asleep(SLEEP), "torch-polls_for_a_file"), _waits_on_card(s), s.rng.uniform(3, 8))


def s9(s: Setting) -> Told:
    return _returns(s, at(asleep(), "torch-uploads"), _waits_on_card(s), s.rng.uniform(3, 8))


def s10(s: Setting) -> Told:
    life = s.rng.choice(("alone-asyncio", "alone-http", "alone-code"))
    return _returns(s, at(asleep(POLL), life), at(asleep(POLL), life), s.rng.uniform(20, 90))


def s11(s: Setting) -> Told:
    """NPUs wait for a slow reader: their short limit is not meant for that."""
    peers = at(Act(cpu=0.02, fabric=5 * 1500 / 60), "torch-reduce")
    return _returns(s, at(Act(cpu=0.02, fabric=5 * 1500 / 60), "torch-loads"), peers, s.rng.uniform(6, 8))


def s12(s: Setting) -> Told:
    return _returns(s, at(asleep(POLL), "torch-serves-poll"), _waits_on_card(s), s.rng.uniform(15, 40))


def s13(s: Setting) -> Told:
    return _returns(s, at(asleep(), "torch-saves"), _waits_on_card(s), s.rng.uniform(12, 25))


def s14(s: Setting) -> Told:
    """Rank 0 evaluates, its peers wait for it in a barrier."""
    return _returns(
        s, at(Act(cpu=0.99, state="R"), "torch-evaluates"), _waits_on_card(s, "torch-barrier"), s.rng.uniform(5, 40)
    )


def s15(s: Setting) -> Told:
    """A child process does it, and what that does is not seen."""
    return _returns(s, at(asleep(), "torch-child"), _waits_on_card(s), s.rng.uniform(3, 9))


def s16(s: Setting) -> Told:
    """Workers of a queue that have nothing to do, and one that waits elsewhere."""
    return _returns(s, at(asleep(), "alone-event"), at(asleep(), "torch-queue"), s.rng.uniform(3, 8))


def s17(s: Setting) -> Told:
    """Without frames only the kernel's function is known; the library says that the peers wait for each other."""
    odd = at(asleep(), "frameless")
    return _logs(_odd(s, odd, replace(at(asleep(cpu=0.002), "frameless"), inside="all_reduce")))


def s18(s: Setting) -> Told:
    """A rank evaluates, and the library says that it did not come."""
    peers = replace(_waits_on_card(s, "torch-barrier"), inside="barrier")
    return _returns(s, at(Act(cpu=0.99, state="R"), "torch-evaluates"), peers, s.rng.uniform(5, 40))


def s19(s: Setting) -> Told:
    """It tries again in two minutes."""
    return _returns(s, at(asleep(SLEEP), "backs-off"), _waits_on_card(s), s.rng.uniform(3, 8))


def s20(s: Setting) -> Told:
    """Another thread of it waits for an answer; the one that is waited for holds a lock, or is joined."""
    return _returns(s, at(asleep(), s.rng.choice(("joins", "helped"))), _waits_on_card(s), s.rng.uniform(3, 8))


def s21(s: Setting) -> Told:
    """The program's own writer sleeps below torch.save."""
    return _returns(s, at(asleep(SLEEP), "saves-slowly"), _waits_on_card(s), s.rng.uniform(3, 15))


def _light(s: Setting, odd: Act) -> Told:
    """A job that takes little CPU time and logs a line each 2 s, for some minutes; its peers poll while they wait."""
    ranks, until = steady_work(s, 2.5, 6)
    for spells in ranks:
        spells[:] = [replace(spell, act=replace(spell.act, cpu=0.03, log=40.0)) for spell in spells]
    culprit = s.rng.randrange(s.ranks)
    peers = at(asleep(POLL, cpu=s.rng.uniform(0.012, 0.025)), "torch-reduce")
    go_over_to(ranks, until, *[odd if rank == culprit else peers for rank in range(s.ranks)])
    return Told(Play(ranks, until + 6 * MINUTE, kind=s.kind), until, culprit)


def s22(s: Setting) -> Told:
    return _light(s, at(asleep(), "torch-guilty_lock"))


def s23(s: Setting) -> Told:
    told = _light(s, at(asleep(cpu=0.005), s.rng.choice(("torch-saves", "torch-uploads", "torch-child"))))
    assert told.onset is not None
    again = told.onset + s.rng.uniform(3, 12) * MINUTE
    for spells in told.play.ranks:
        spells.append(Spell(again, spells[-2].act))
    told.play.end = told.onset + 25 * MINUTE
    return Told(told.play)


RECORDED["backs-off"] = [replace(stack, wakes_in=120.0) for stack in RECORDED["torch-guilty_sleep"]]
RECORDED["one_big_call-faults"] = [replace(stack, faults=None) for stack in RECORDED["torch-one_big_call"]]
RECORDED["helped"] = [replace(stack, helped=True) for stack in RECORDED["torch-guilty_lock"]]
RECORDED["joins"] = [
    replace(stack, wchan="unix_stream_read_generic", helped=True) for stack in RECORDED["torch-guilty_lock"]
]
RECORDED["saves-slowly"] = [
    replace(asleep_, frames=("write (train.py:60)", *saves.frames))
    for asleep_, saves in zip(RECORDED["torch-guilty_sleep"], RECORDED["torch-saves"], strict=True)
]
_OUTER = RECORDED["torch-one_big_call"][0].frames[1:]
for _life_, _frames in (
    ("tokenizes", ("_batch_encode_plus (transformers/tokenization_utils_fast.py:553)", "encode (train.py:41)")),
    ("scores", ("corpus_scores (train.py:77)", "log_epoch (train.py:90)")),
    ("indexes", ("_build_document_sample_shuffle_indices (megatron/core/datasets/gpt_dataset.py:453)",)),
):
    RECORDED[_life_] = [replace(stack, frames=(*_frames, *_OUTER)) for stack in RECORDED["torch-one_big_call"]]
RECORDED["frameless"] = [replace(stack, frames=()) for stack in RECORDED["torch-guilty_lock"]]
RECORDED["torch-serves-poll"] = [replace(stack, wchan="poll_schedule_timeout") for stack in RECORDED["torch-serves"]]
_SOON = ("SUSPECT", "HUNG")
_MAY = ("ALIVE", "BUSY_HOST", "WAITING", "SUSPECT", "UNKNOWN")


def _hang(name: str, what: str, make: object, within: float, kind: str, **more: object) -> Scenario:
    return Scenario(name, what, make, within, _SOON, kind=kind, ranks=(3, 4, 8), **more)  # type: ignore[arg-type]


def _life(
    name: str, what: str, make: object, *verdicts: str, ranks: Sequence[int] = (3, 4, 8), **more: object
) -> Scenario:
    return Scenario(name, what, make, None, verdicts, _MAY, ranks=tuple(ranks), **more)  # type: ignore[arg-type]


NVIDIA = ("nvidia",)
STACKED = (
    _hang("S1", "a rank in a lock, its peers in a collective", s1, 3.5, "spin"),
    _hang("S2", "a rank asleep, its peers in a collective", s2, 4, "spin"),
    _hang("S3", "S1 without cards, with lines of a log", s3, 4, "deadlock", weather={"no_cards": True}),
    _hang(
        *("S34", "S2 without cards, with lines of a log; others use the node's network", s34, 4, "deadlock"),
        weather={"no_cards": True, "other_net": 10e6},
    ),
    _hang(
        *("S35", "S3; others use the node's network, and what the job moves is known", s3, 4, "deadlock"),
        weather={"no_cards": True, "other_net": 10e6, "own_net_known": True},
    ),
    _hang(
        *("S37", "S34, and others open short connections all the time", s34, 4, "deadlock"),
        weather={"no_cards": True, "other_net": 10e6, "own_net_known": True, "short_connections": True},
    ),
    _life(
        *("S36", "a rank in a lock, whose other threads receive data; what the job moves is known", s36),
        weather={"no_cards": True, "other_net": 10e6, "own_net_known": True},
    ),
    _hang("S4", "a rank stopped, its peers in a collective", s4, 3.5, "stopped"),
    _hang("S5", "a rank blocked in a driver, its peers in a collective", s5, 3.5, "io_blocked"),
    _hang("S6", "S1, and only the cards say that the peers wait", s6, 3.5, "spin"),
    replace(
        _hang("S7", "a rank in one call that makes nothing", s7, 4, "livelock"),
        verdicts=("WAITING", "HUNG"),
        high_confidence=False,
    ),
    replace(_hang("S32", "S7 for longer than an hour", s32, 4, "livelock"), verdicts=("WAITING", "HUNG", "HUNG")),
    replace(
        _hang("S33", "S7 for up to 40 minutes, then work: it was no hang", s33, 4, "livelock"),
        verdicts=("WAITING", "HUNG", "ALIVE"),
        high_confidence=False,
        undecided=True,
    ),
    replace(
        _hang("S30", "S7, and whether it makes anything is not known", s30, 13, "livelock"),
        verdicts=("HUNG",),
        high_confidence=False,
    ),
    replace(
        _hang("S31", "S7 without cards, with lines of a log", s31, 5, "livelock"),
        verdicts=("WAITING", "HUNG"),
        high_confidence=False,
        weather={"no_cards": True},
    ),
    replace(
        _hang("S38", "S31 of a young job", s38, 5, "livelock"),
        verdicts=("WAITING", "HUNG"),
        high_confidence=False,
        weather={"no_cards": True},
    ),
    _life(
        "S39", "a rank of a young job without cards makes tokens, scores or an index", s39, weather={"no_cards": True}
    ),
    replace(
        _hang("S40", "S38 without lines of a log", s40, 9, "livelock"),
        verdicts=("WAITING", "HUNG"),
        high_confidence=False,
        weather={"no_cards": True},
    ),
    _life("S41", "S39 without lines of a log, from its first seconds on", s41, weather={"no_cards": True}),
    replace(_hang("S24", "S7 on several CPUs", s24, 23, "livelock"), verdicts=("HUNG",), high_confidence=False),
    _hang("S27", "MindSpore: a rank in a lock or asleep, its peers in a collective", s27, 4, "spin"),
    replace(
        _hang("S28", "MindSpore without cards: a rank in a lock, its peers poll for it", s28, 4, "deadlock"),
        verdicts=("HUNG",),
        weather={"no_cards": True},
    ),
    _life("S29", "MindSpore: a rank compiles a graph, or waits for data", s29),
    _life("S25", "a rank makes tokens, scores or an index", s25),
    _life("S26", "a rank in one call that makes something, for up to 15 minutes", s26),
    _life("S8", "a rank looks for a file each second", s8),
    _life("S9", "a rank sends data in a thread", s9),
    _life("S10", "a server without requests, or a prompt", s10, "WAITING", "ALIVE", ranks=(1, 2), kinds=NVIDIA),
    _life("S11", "NPUs that wait for a slow reader", s11, kinds=("ascend",)),
    _life("S12", "a rank waits for a socket of its program", s12),
    _life("S13", "a rank saves a checkpoint, and nothing is seen of that", s13),
    _life("S14", "a rank evaluates, its peers wait", s14),
    _life("S15", "a rank waits for a child process", s15),
    _hang(
        *("S17", "S3 without frames, and the library says who waits", s17, 4, "deadlock"),
        weather={"no_cards": True},
    ),
    _hang(
        *("S22", "S3 of a young job, whose ranks take some CPU time while they wait", s22, 4, "deadlock"),
        weather={"no_cards": True},
    ),
    _life("S23", "a rank of such a job saves or sends", s23, weather={"no_cards": True}),
    _life("S18", "a rank evaluates, and the library says that it did not come", s18),
    _life("S19", "a rank sleeps until it tries again, its peers in a collective", s19),
    _life("S20", "a rank waits for a thread of its own, which waits for an answer", s20),
    _life("S21", "the writer below a save sleeps", s21),
    _life("S16", "ranks that wait for a queue of their program", s16, ranks=(4, 8), kinds=NVIDIA),
)
