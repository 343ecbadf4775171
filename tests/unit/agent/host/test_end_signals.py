import dis
import sys
from signal import SIGHUP, SIGINT, SIGTERM
from types import FrameType
from typing import Any

import pytest

from muster.agent.host.end_signals import Ask, EndSignals, name, time_limit
from muster.agent.text import local


@pytest.mark.parametrize(
    ("signals", "asked"),
    [
        ([(SIGTERM, 0.0)], [Ask.STOP]),
        # Slurm, at a time limit; an init that is asked twice.
        ([(SIGTERM, 0.0), (SIGTERM, 0.004)], [Ask.STOP, None]),
        ([(SIGTERM, 0.0), (SIGTERM, 1.0), (SIGTERM, 2.0), (SIGTERM, 3.9)], [Ask.STOP, None, None, None]),
        ([(SIGTERM, 0.0), (SIGTERM, 4.1)], [Ask.STOP, Ask.KILL]),
        ([(SIGTERM, 0.0), (SIGTERM, 60.0), (SIGTERM, 60.004)], [Ask.STOP, Ask.KILL, None]),
        ([(SIGTERM, 0.0), (SIGTERM, 60.0), (SIGTERM, 70.0)], [Ask.STOP, Ask.KILL, Ask.LEAVE]),
        # A person.
        ([(SIGINT, 0.0), (SIGINT, 0.2)], [Ask.STOP, Ask.KILL]),
        ([(SIGINT, 0.0), (SIGINT, 0.2), (SIGINT, 0.4), (SIGINT, 0.6)], [Ask.STOP, Ask.KILL, Ask.LEAVE, Ask.LEAVE]),
        # srun, at Ctrl-C, and a shell whose terminal was closed.
        ([(SIGINT, 0.0), (SIGTERM, 0.01)], [Ask.STOP, None]),
        ([(SIGTERM, 0.0), (SIGINT, 0.01)], [Ask.STOP, None]),
        ([(SIGHUP, 0.0), (SIGTERM, 0.01), (SIGHUP, 0.02)], [Ask.STOP, None, None]),
        ([(SIGTERM, 0.0), (SIGINT, 10.0)], [Ask.STOP, Ask.KILL]),
    ],
)
def test_what_signals_ask_for(signals, asked):
    counted = EndSignals()
    assert [counted.take(number, 1000.0 + at) for number, at in signals] == asked
    assert counted.first == signals[0][0]


def test_a_signal_in_the_middle_of_another_ones_handler_is_the_same_request() -> None:
    """Python handles a signal at the begin of a function and behind each call in it."""
    code = EndSignals.take.__code__
    opcodes = [each.opname for each in dis.get_instructions(code)]
    offsets = [each.offset for each in dis.get_instructions(code)]
    behind = [at for name, at in zip(opcodes, offsets[1:], strict=False) if name.startswith(("CALL", "RESUME"))]
    assert len(behind) > 1
    for place in behind:
        counted, asked = EndSignals(), list[Ask | None]()

        def interrupt(
            frame: FrameType, event: str, _: Any, place: int = place, counted: Any = counted, asked: Any = asked
        ) -> Any:
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti == place and not asked:
                asked.append(None)  # nobody interrupts this one
                asked[0] = counted.take(SIGTERM, 1000.001)
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            outer = counted.take(SIGTERM, 1000.0)
        finally:
            sys.settrace(before)
        assert sorted([outer, *asked], key=str) == [Ask.STOP, None], place


def test_names():
    assert [name(number) for number in (SIGTERM, SIGHUP, SIGINT)] == ["SIGTERM", "SIGHUP", "Ctrl-C"]


def test_a_signal_at_the_time_limit_says_so() -> None:
    env = {"SLURM_JOB_END_TIME": "1800000000"}
    assert time_limit(env, 1_799_999_000) == "" and time_limit({}, 1_799_999_000) == ""
    assert time_limit({"SLURM_JOB_END_TIME": "x"}, 1.0) == ""
    for now in (1_799_999_996, 1_800_000_030):
        assert time_limit(env, now) == f"; Slurm's time limit was {local(1_800_000_000)}"
