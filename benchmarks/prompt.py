"""What a person waits for: whole commands, beside a Python that does nothing."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import node
from benchmarks.measure import median
from benchmarks.peers import Peers, time_command
from benchmarks.report import Row
from tests.fakes import FakeCards, NoCompiler

RANKS = 8
ROUNDS = 21
#: Rounds of a standalone run, which takes a second.
STANDALONE_ROUNDS = 9
#: Not counted: the first of everything is slower.
WARM_UP = 2
#: At most so many times the time of the peer.
BUDGET = {"--help": 6.0, "ps": 9.0, "status": 9.0, "run of 8 x true": 14.0, "run --standalone of 8 x true": 45.0}
#: On fake cards, which answer at once: the driver of a real one takes its time. No mark of its own.
ON_CARDS = "run --standalone on 8 cards"


def run(peers: Peers) -> Iterator[Row]:
    """A row for each command."""
    muster = str(node.BIN / "muster")
    took: dict[str, list[float]] = {}
    with node.running() as here, contextlib.ExitStack() as stack:
        job_id = here.start(here.spec(["true"], RANKS))
        here.wait(job_id)
        at = [muster, "--root", str(here.folder)]
        job = ["--ranks", str(RANKS), "--skip-check", "--", "true"]
        commands = {
            "peer": [sys.executable, "-c", "pass"],
            "--help": [muster, "--help"],
            "ps": [*at, "ps"],
            "status": [*at, "status", job_id],
            "run of 8 x true": [*at, "run", *job],
            "run --standalone of 8 x true": [muster, "run", "--standalone", *job],
        }
        with contextlib.suppress(NoCompiler):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-cards-")))
            env = stack.enter_context(FakeCards.make(folder / "cards", "nvidia", RANKS)).env
            with_cards = ["env", *(f"{name}={value}" for name, value in env.items()), muster]
            commands[ON_CARDS] = [
                *with_cards,
                "run",
                "--standalone",
                "--cards",
                str(RANKS),
                "--skip-check",
                "--",
                "true",
            ]
        for number in range(ROUNDS + WARM_UP):
            # Side by side, one after the other, so that what slows the machine for a while slows all.
            for name, command in commands.items():
                if "standalone" not in name or number < STANDALONE_ROUNDS + WARM_UP:
                    seconds = time_command(command)
                    if number >= WARM_UP:
                        took.setdefault(name, []).append(seconds)
    ms = {name: median(values) * 1e3 for name, values in took.items()}
    for name in [name for name in took if name != "peer"]:
        most = BUDGET.get(name)
        yield Row(
            f"muster {name}", ms[name], "ms", "python -c pass", ms["peer"],
            "" if most is None else f"at most {most:g} times", None if most is None else ms[name] <= most * ms["peer"],
            f"median of {len(took[name])}; fastest {min(took[name]) * 1e3:.0f}",
        )  # fmt: skip
