"""The sentence that names who is to blame for a hang."""

import time

from muster.agent.hang import culprit
from muster.probes.waits import Culprit, WaitKind, WaitPlace

LOCKED = WaitPlace(WaitKind.LOCK, "", "guilty_lock (train.py:11)")
REDUCES = WaitPlace(WaitKind.COLLECTIVE, "all_reduce", "step (train.py:30)")


def test_the_sentence():
    at = time.strftime("%H:%M:%S", time.localtime(1e9))
    one = Culprit((2,), LOCKED, (0, 1, 3), REDUCES).as_evidence()
    text = f"rank 2 waits in guilty_lock (train.py:11) since {at}; ranks 0-1,3 wait for it in all_reduce"
    assert culprit.sentence(one, 1e9) == text
    two = Culprit((0, 5), LOCKED, (1, 2, 3, 4), REDUCES).as_evidence()
    text = f"ranks 0,5 wait in guilty_lock (train.py:11) since {at}; ranks 1-4 wait for them in all_reduce"
    assert culprit.sentence(two, 1e9) == text
    gone = Culprit((1,), WaitPlace(WaitKind.EXITED), (0,), REDUCES).as_evidence()
    assert culprit.sentence(gone, 1e9) == f"rank 1 has exited since {at}; rank 0 waits for it in all_reduce"
