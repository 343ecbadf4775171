"""`ddp_absent.py FILE RANK HOW ...`: examples/ddp/train_ddp.py with the other arguments; once FILE exists, a rank
stops: it sleeps for ever (HOW is "sleep"), computes ("spin") or stays in a loop of C ("c"), outside of every
collective."""

import itertools
import os
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "ddp"
sys.path.insert(0, str(EXAMPLE))

import train_ddp  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

FILE, RANK, HOW = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


def prepare_next_batch() -> None:
    """What the odd rank does when the others are in the collective."""
    if int(os.environ["RANK"]) != RANK or not FILE.exists():
        return
    while True:
        if HOW == "sleep":
            time.sleep(1000)
        elif HOW == "c":
            any(itertools.repeat(False))  # it never lets go of the GIL


def train_step(training: train_ddp.Training, stop: train_ddp.StopRequest) -> tuple[float, bool]:
    prepare_next_batch()
    loss, stopping = together(training, stop)
    return loss, stopping


together, train_ddp.train_step = train_ddp.train_step, train_step
if __name__ == "__main__":
    sys.argv = [str(EXAMPLE / "train_ddp.py"), *sys.argv[4:]]
    code = train_ddp.main()
    sys.stdout.flush()
    os._exit(code)
