"""Sentences by which a node of an MPI job says that another one ended it. The node's program writes one as its last
line, and it becomes the node's verdict."""

import re
import signal
from collections.abc import Iterable, Mapping

from muster.supervisors.model.states import StopCause

#: How the part of one node ends the job: somebody stopped it there; its running time was over; it failed.
STOPPED, TIMED_OUT, FAILED = "stopped", "timed out", "failed"
HOW = (STOPPED, TIMED_OUT, FAILED)
#: The signal that the supervisor sends the node's program before the SIGTERM of an end that nobody asked for, and what
#: the program says then; without one it was stopped. Real-time ones, as SIGUSR1 and SIGUSR2 come from schedulers.
_FAILED_BY, _TIMED_OUT_BY = signal.SIGRTMIN + 5, signal.SIGRTMIN + 6
SAID_BY: Mapping[int, str] = {_FAILED_BY: FAILED, _TIMED_OUT_BY: TIMED_OUT}
_SIGNALS: Mapping[StopCause, int] = {
    StopCause.MAX_RUNTIME: _TIMED_OUT_BY,
    StopCause.HUNG: _FAILED_BY,
    StopCause.SERVICE_ENDED: _FAILED_BY,
}
_ENDED = re.compile(rf"({'|'.join(HOW)}) on (node [0-9]+(?: \(\S+\))?)(?:: .*)?")
_LOST = re.compile(r"node (?P<number>[0-9]+)(?P<name> \(\S+\))? (did not come within|was lost) .*")
#: What the program (launch/mpi/) puts before each of its lines.
LABEL = "[muster mpi] "


def signal_of(cause: StopCause) -> int:
    """By which the program hears why it is ended; 0: SIGTERM alone says it."""
    return _SIGNALS.get(cause, 0)


def heard(signals: Iterable[int]) -> str:
    """How this node ends the job (one of HOW), for a program that got those of the signals of SAID_BY."""
    return next((SAID_BY[number] for number in signals), STOPPED)


def ended(how: str, node: int, name: str = "", seen: str = "") -> str:
    """The part of this node ended the job; `how`: one of HOW; `seen`: what there was of it, if that is known."""
    return f"{how} on {_node(node, name)}" + (f": {seen}" if seen else "")


def late(node: int, name: str, seconds: float, seen: str) -> str:
    """It did not take part in time; `seen`: what there was of it."""
    return f"{_node(node, name)} did not come within {_span(seconds)}: {seen}"


def lost(node: int, name: str, seen: str) -> str:
    """It took part, and exited or fell silent without a word."""
    return f"{_node(node, name)} was lost before the job ended: {seen}"


def read(line: str) -> str:
    """The sentence in a line of the program; empty for any other line."""
    text = line.removeprefix(LABEL).strip()
    is_ours = line.startswith(LABEL) and (_ENDED.fullmatch(text) or _LOST.fullmatch(text))
    return text if is_ours else ""


def is_stop(text: str) -> bool:
    """Whether a sentence tells of a stop, or of a running time that was over: the job is not to be started again."""
    return is_told(text) and not text.startswith(FAILED)


def is_told(text: str) -> bool:
    """Whether a node said itself how it ended the job."""
    return _ENDED.fullmatch(text) is not None


def recommend(text: str) -> tuple[str, str]:
    """What to do about a job that ended so on another node, and why."""
    if (match := _ENDED.fullmatch(text)) is not None:
        if match[1] == FAILED:
            return (
                "RETRY_HERE",
                f"{match[2]} ended the job, and no fault of this node is known: its own verdict says why",
            )
        what = "the stop was requested" if match[1] == STOPPED else "its time limit had passed"
        return "NONE", f"{what} on another node of the job"
    node = text.partition(" did not come")[0].partition(" was lost")[0]
    return "RETRY_ELSEWHERE", f"{node} of the job failed it, and no fault of this node is known: isolate that one"


def faulty(text: str, recommended: tuple[str, str]) -> str:
    """The node that is to be isolated in the place of this one: its name, or its number in the job where it has none.
    Empty: it is this one, or none. `text`: the summary of the job's verdict; `recommended`: what to do, and why."""
    match = _LOST.fullmatch(text)
    if match is None or recommended != recommend(text):
        return ""
    return (match["name"] or match["number"]).strip(" ()")


def _node(node: int, name: str) -> str:
    return f"node {node} ({name})" if name else f"node {node}"


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 and not seconds % 60 else f"{seconds:g} s"
