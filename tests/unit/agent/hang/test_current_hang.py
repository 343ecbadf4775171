"""The sentence that names the rank to blame for a hang."""

import time

from muster.agent.hang.current_hang import CurrentHang, event_kind, event_of, sentence
from muster.probes.hang import Change, HangKind, HangVerdict
from muster.probes.waits import Culprit, WaitKind, WaitPlace

LOCKED = WaitPlace(WaitKind.LOCK, "", "guilty_lock (train.py:11)")
REDUCES = WaitPlace(WaitKind.COLLECTIVE, "all_reduce", "step (train.py:30)")


def test_the_sentence():
    def text_of(culprit):
        evidence = {"rule": "cards wait", "since": 1e9, "culprit": culprit}
        return sentence(Change(1e9, "j", HangVerdict.HUNG, HangKind.SPIN, (0, 1), 0.9, evidence))

    at = time.strftime("%H:%M:%S", time.localtime(1e9))
    one = Culprit((2,), LOCKED, (0, 1, 3), REDUCES).as_evidence()
    text = f"rank 2 waits in guilty_lock (train.py:11) since {at}; ranks 0-1,3 wait for it in all_reduce"
    assert text_of(one) == text
    two = Culprit((0, 5), LOCKED, (1, 2, 3, 4), REDUCES).as_evidence()
    text = f"ranks 0,5 wait in guilty_lock (train.py:11) since {at}; ranks 1-4 wait for them in all_reduce"
    assert text_of(two) == text
    gone = Culprit((1,), WaitPlace(WaitKind.EXITED), (0,), REDUCES).as_evidence()
    assert text_of(gone) == f"rank 1 has exited since {at}; rank 0 waits for it in all_reduce"


def test_a_suspected_job_has_it_as_soon_as_stacks_show_it():
    suspected = Change(1e9, "j", HangVerdict.SUSPECT, HangKind.SPIN, (0, 1), 0.9, {"rule": "cards wait", "since": 1e9})
    assert CurrentHang(suspected, 1e9, 1e9).reason == "SUSPECT (spin); ranks 0-1: cards wait"
    blamed = Culprit((1,), LOCKED, (0,), REDUCES).as_evidence()
    at = time.strftime("%H:%M:%S", time.localtime(1e9))
    known = CurrentHang(suspected, 1e9, 1e9, {"since": 1e9, "culprit": blamed})
    assert (
        known.reason
        == f"SUSPECT: rank 1 waits in guilty_lock (train.py:11) since {at}; rank 0 waits for it in all_reduce"
    )


def test_a_job_that_is_found_to_wait_at_a_prompt_does_not_work_again():
    def told(verdict, **evidence):
        change = Change(
            1e9, "j", verdict, None, (1,), 0.9, {"recovered": {"how": "by itself"}, "since": 1e9, **evidence}
        )
        return event_of(event_kind(change), change, 0, 1e9)

    prompt = WaitPlace(WaitKind.PROMPT, "", "ask (train.py:11)")
    event = told(HangVerdict.WAITING, culprit=Culprit((1,), prompt, (0,), REDUCES).as_evidence())
    assert event.kind == "job.recovered"
    assert event.message.startswith("does not hang: WAITING: rank 1 waits at a prompt in ask (train.py:11) since ")
    asked = told(HangVerdict.WAITING, rule="stacks: it waits for requests, or at a prompt")
    assert asked.message == "does not hang: WAITING; rank 1: stacks: it waits for requests, or at a prompt"
    again = told(HangVerdict.WAITING, recovered={"how": "restarted"})
    assert again.message == "works again (restarted)"
    assert told(HangVerdict.ALIVE).message == "works again (by itself)"
