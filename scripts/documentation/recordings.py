"""Records sessions at a terminal: real commands, a real daemon in a temporary folder, an SVG of each in docs/pictures.

Usage: python -m scripts.documentation.recordings [--into FOLDER] [NAME...]

What is typed stands in SESSIONS. Cards are the fake ones of tests/fakes; everything else is what muster does. Times and
process ids differ from run to run, so a run changes each picture; paths of this machine are not in them, because the
home folder is called /home/me (`sandbox.py`).
"""

import argparse
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyte

from scripts.documentation.sandbox import CHECKOUT, Sandbox, Shell
from scripts.documentation.terminal_svg import svg
from tests.screen import Drawn

COLUMNS, ROWS = 112, 200
PICTURES = CHECKOUT / "docs/pictures"
#: Seconds for one command; the limit is for defects.
_COMMAND_S = 120.0


@dataclass(frozen=True)
class TypedSession:
    """What is typed, and what runs before without being shown."""

    title: str
    typed: Sequence[str]
    first: str = ""
    cards: bool = False
    #: More of the daemon's configuration.
    config: str = ""


#: A job that goes on until it is stopped.
_ENDLESS = "python3 examples/train.py --steps 100000 --step-time 0.1"
_PLAY = "python3 -m tests.fakes play ~/cards --root ~/node > /dev/null 2>&1 & play=$!\n"
#: Minutes are seconds here.
_SOON = """
[telemetry]
readings_s = 0.2
processes_s = 0.2
[hang]
period_s = 1
active_s = 0.5
window_s = 2
suspect_s = 4
hung_s = 10
established_s = 1
suspect_soon_s = 3
stacks_apart_s = 1
proof_s = 8
weak_s = 12
save_s = 12
busy_s = 12
startup_s = 60
"""
_TWO_JOBS = (
    f"{_PLAY}muster start --job-id llama-7b --cards 4 --label team=a -- {_ENDLESS}\n"
    f"muster start --job-id eval --cards 2 -- {_ENDLESS}\n"
    "until [ \"$(muster top -n 1 | grep -c '9[0-9]%\\|100%')\" -ge 6 ]; do sleep 1; done; sleep 15"
)

SESSIONS = {
    "failure": TypedSession(
        "A job of four ranks fails. muster names the rank that failed first, and why says what to do.",
        (
            "muster run --job-id broken --ranks 4 -- python3 examples/train.py --fail-rank 2 --exit-code 7",
            "muster why broken | head -n 16",
        ),
    ),
    "look": TypedSession(
        "Two jobs on eight cards: ps and status.", ("muster ps", "muster status llama-7b"), _TWO_JOBS, cards=True
    ),
    "top": TypedSession(
        "muster top: cards, jobs and ranks. Card 2 stands out.",
        ("muster top -n 1",),
        # A minute and a half for the curves, in the last part of which the card does less.
        f"{_TWO_JOBS}; sleep 50; python3 -m tests.fakes set ~/cards 2 util=31 power_w=240; sleep 40",
        cards=True,
    ),
    "hung": TypedSession(
        "Rank 3 of a job hangs. ps shows it, why names the rank, stacks show where each rank is.",
        ("muster ps", "muster why stuck | head -n 24", "muster stacks stuck | head -n 24"),
        first=f"{_PLAY}muster start --job-id stuck --cards 4 -- {_ENDLESS} --hang-rank 3 --hang-step 100\n"
        "until muster logs stuck | grep -q 'hangs at step'; do sleep 0.2; done; kill $play; wait\n"
        # As cards are that wait in a collective, and one that has nothing to do.
        "python3 -m tests.fakes set ~/cards 0,1,2 util=100 power_w=180 mem_util=0 fabric_rate=0\n"
        "python3 -m tests.fakes set ~/cards 3 util=0 power_w=75 mem_util=0 fabric_rate=0\n"
        "until muster ps | grep -q HUNG; do sleep 0.5; done",
        cards=True,
        config=_SOON,
    ),
    "health": TypedSession(
        "Card 5 falls off the bus. The node is not fit, the card gets no job, and explain says what to do.",
        ("muster check --gate", "muster run --cards 5, -- python3 train.py", "muster check explain GPU_OFF_BUS"),
        first="python3 -m tests.fakes xid ~/cards 5 79; until muster node | grep -q GPU_OFF_BUS; do sleep 0.2; done",
        cards=True,
    ),
    "exec": TypedSession(
        "A command beside rank 2 of a running job, and the last lines of its ranks.",
        (
            "muster exec -r 2 train -- sh -c 'echo \"beside rank $RANK of $WORLD_SIZE\"; nproc; ulimit -n'",
            "muster logs train --tail 2 --no-events",
            "muster logs train -r 0 --since 2s --timestamps",
        ),
        first=f"muster start --job-id train --ranks 4 -- {_ENDLESS}\n"
        "until muster logs train | grep -q 'step 30'; do sleep 0.2; done",
    ),
}


class RecordedTerminal:
    """An emulated terminal in front of which commands run one after the other."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.drawn = Drawn(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.drawn)
        self._master, self._slave = pty.openpty()
        os.set_blocking(self._master, False)
        subprocess.run(["stty", "rows", "40", "columns", str(COLUMNS)], stdin=self._slave, check=True)

    def close(self) -> None:
        os.close(self._master)
        os.close(self._slave)

    def run(self, command: str) -> None:
        """Types a command, and draws what it prints."""
        self.draw(f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m\r\n".encode())
        env = {key: value for key, value in self._sandbox.env.items() if key != "NO_COLOR"}
        process = subprocess.Popen(
            ["setsid", "--ctty", "bash", "-c", command], env={**env, "TERM": "xterm-256color"}, cwd=self._sandbox.work,
            stdin=self._slave, stdout=self._slave, stderr=self._slave,
        )  # fmt: skip
        end = time.monotonic() + _COMMAND_S
        while process.poll() is None:
            if time.monotonic() > end:
                process.kill()
                raise TimeoutError(f"no end within {_COMMAND_S:g} s: {command}")
            self._take(0.05)
        while self._take(0.0):
            pass

    def _take(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except (BlockingIOError, OSError):
            return False
        self.draw(data)
        return bool(data)

    def draw(self, data: bytes) -> None:
        """Draws what a program prints, with the public name of the home folder."""
        public = self._sandbox.public(data.decode(errors="replace"))
        self._stream.feed(public.encode())


@contextmanager
def _before(sandbox: Sandbox, session: TypedSession) -> Iterator[None]:
    """With a daemon, and after the commands that are not shown."""
    if session.cards:
        sandbox.add_cards()
    sandbox.start_daemon(session.config)
    with Shell(sandbox) as shell:
        if session.first:
            printed, failed = shell.run(session.first)
            if failed:
                raise RuntimeError(f"what runs before the session fails: {failed}\n{printed}")
        yield


def recorded(session: TypedSession) -> str:
    """The session's picture."""
    with Sandbox() as sandbox, _before(sandbox, session):
        terminal = RecordedTerminal(sandbox)
        try:
            for number, command in enumerate(session.typed):
                if number:
                    terminal.draw(b"\r\n")
                terminal.run(command)
        finally:
            terminal.close()
    lines = terminal.drawn.cells
    while lines and not "".join(char.data for char in lines[-1]).strip():
        lines.pop()
    return svg(lines, COLUMNS, session.title)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.documentation.recordings", description="Record the sessions."
    )
    parser.add_argument("--into", type=Path, default=PICTURES, metavar="FOLDER")
    parser.add_argument("name", nargs="*", help=f"of {', '.join(SESSIONS)}; without: all")
    args = parser.parse_args(argv)
    args.into.mkdir(parents=True, exist_ok=True)
    for name in args.name or SESSIONS:
        path = args.into / f"{name}.svg"
        path.write_text(recorded(SESSIONS[name]), encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
