"""Table 1, evidence: the signs of life of a job. It is read once per record.

The thresholds are applied where readings are counted: `tracks/rank_track.py` for processes, `tracks/card_look.py` for
cards, `tracks/state.py` for the network.
"""

from muster.probes.hang.facts.signs import NODE, CardsByState, EvidenceRow, Seen, Strength
from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.hang.tracks.state import JobState


def _of_ranks(mark: str) -> Seen:
    """The times that each rank keeps under this name."""
    return lambda job: ((track.rank, getattr(track, mark)) for track in job.ranks.values())


def _moves_and_logs(job: JobState) -> list[tuple[int, float]]:
    moved = max((card.moved_at for card in job.cards.values()), default=NEVER)
    return [(NODE, min(moved, max((track.log_at for track in job.ranks.values()), default=NEVER)))]


def _always(_: CardsByState) -> bool:
    return True


def _never(_: CardsByState) -> bool:
    return False


def _may_receive(cards: CardsByState) -> bool:
    """Only a rank whose card idles can be the one that receives."""
    return cards.none or bool(cards.low or cards.dark)


def _no_card(cards: CardsByState) -> bool:
    return cards.none


EVIDENCE: tuple[EvidenceRow, ...] = (
    EvidenceRow(
        "a card works",
        Strength.CARD,
        "utilization, power, memory or fabric show that a card works",
        lambda job: [(NODE, job.work_at)],
        _always,
        "always",
        "U17",
    ),
    EvidenceRow(
        "data moves, and a log grows",
        Strength.CARD,
        "the fabric of a card moves fabric_moves_bytes a minute, and the log of a rank grows",
        _moves_and_logs,
        _always,
        "always",
        "P44",
    ),
    EvidenceRow(
        "IO",
        Strength.STRONG,
        "a rank writes strong_write_bytes or reads strong_read_bytes a minute",
        _of_ranks("strong_at"),
        _always,
        "always",
        "V8",
    ),
    EvidenceRow(
        "network",
        Strength.NETWORK,
        "the job moves net_floor_bytes a minute over the network, or the node does where muster does not know whose "
        "traffic it is",
        lambda job: [(NODE, job.net_at)],
        _may_receive,
        "if a card idles or reports no utilization, or the job has no card",
        "H12",
    ),
    EvidenceRow(
        "CPU",
        Strength.BUSY,
        "a rank takes cpu_busy_s of CPU time a minute",
        _of_ranks("busy_at"),
        _never,
        "never; but the job is HUNG later",
        "H8",
    ),
    EvidenceRow(
        "some IO",
        Strength.WEAK,
        "a rank writes write_floor_bytes or reads read_floor_bytes a minute",
        _of_ranks("weak_at"),
        _never,
        "never; but the job is HUNG later",
        "P1",
    ),
    EvidenceRow(
        "some CPU time",
        Strength.WEAK,
        "a rank takes cpu_idle_s of CPU time a minute",
        _of_ranks("some_cpu_at"),
        _never,
        "never; but the job is HUNG later",
        "P2",
    ),
    EvidenceRow(
        "its log grows",
        Strength.LOG,
        "the log of a rank grows",
        _of_ranks("log_at"),
        _never,
        "never; but the job is HUNG later",
        "U13",
    ),
    EvidenceRow(
        "a trace",
        Strength.TRACE,
        "weak IO, a line of a log, or cpu_trace_s of CPU time a minute and cpu_trace_ratio of what is usual",
        _of_ranks("stirred_at"),
        _no_card,
        "if the job has no card",
        "P3",
    ),
)
