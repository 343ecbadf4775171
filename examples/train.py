#!/usr/bin/env python3
"""A small training job in plain Python, to see what a node agent does with a real one.

It runs once per rank, with the environment that `torchrun` and `muster` give (without it: as a single rank).
The ranks meet over TCP at MASTER_ADDR:MASTER_PORT, fit a linear regression by gradient descent, each on data
of its own, and add up their gradients in every step through rank 0. So it behaves as real jobs do: one
missing rank makes all others wait, and one that dies breaks the step for all.

After SIGTERM all ranks end after the same step and rank 0 saves a checkpoint, from which the next run goes
on. The options under "misbehaviour" make ranks fail, die, hang, leak a process or ignore SIGTERM.

Exit codes: 0 trained to the end, 143 stopped by SIGTERM (or --exit-on-term), 1 an error or a lost peer.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

MEET_TIMEOUT_S = 60.0  # longest wait for the next rank to come, and for rank 0
PEER_TIMEOUT_S = 600.0  # longest wait for a peer in a step
STEP_PATIENCE_S = 2  # how long after SIGTERM the step under way may take: a peer may be stuck, and SIGKILL follows
PEER_LOST_PAUSE_S = 0.5  # from a lost peer to the exit: the agent is to see the culprit end first

TRUE_PARAMETERS = (1.5, -2.0, 0.5, 3.0, 0.7)  # what the training is to find; the last one is the bias
LEARNING_RATE = 0.15

say = functools.partial(print, flush=True)  # else Python keeps the lines back where stdout is no terminal


class PeerError(Exception):
    """Another rank is lost or does not answer."""


class Term:
    """Remembers that SIGTERM came, so that the step under way can end; gives that step up if it does not."""

    asked = False

    def __init__(self, ignore: bool) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else self._on_term)
        signal.signal(signal.SIGALRM, self._on_alarm)

    def _on_term(self, _number: int, _frame: object) -> None:
        if not self.asked:
            self.asked = True
            signal.alarm(STEP_PATIENCE_S)

    def _on_alarm(self, _number: int, _frame: object) -> None:
        raise PeerError(f"the step did not end within {STEP_PATIENCE_S} s of SIGTERM")

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not on after SIGTERM. In slices: Python goes on with a sleep that a signal interrupts."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))


class Peer:
    """A connection to one other rank."""

    def __init__(self, connection: socket.socket, rank: int = -1) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(PEER_TIMEOUT_S)
        self.rank = rank
        self._connection = connection
        self._lines = connection.makefile("r")

    def send(self, message: Any) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise PeerError(f"connection lost from rank {self.rank}: {error}") from None

    def receive(self) -> Any:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise PeerError(f"connection lost from rank {self.rank}: {error}") from None
        if not line.endswith("\n"):
            raise PeerError(f"connection lost from rank {self.rank}: closed by peer")
        message = json.loads(line)
        if isinstance(message, dict) and "error" in message:
            raise PeerError(f"{message['error']} (told by rank {self.rank})")
        return message


class Group:
    """All ranks of the job. `peers` has all others on rank 0, only rank 0 on the others."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.peers: list[Peer] = []

    def join(self) -> None:
        """Meets the other ranks."""
        if self.size == 1:
            return
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank != 0:
            self.peers.append(self._connect(address))
            return
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server(address, family=family, backlog=self.size) as listener:
            listener.settimeout(MEET_TIMEOUT_S)
            while len(self.peers) < self.size - 1:
                try:
                    peer = Peer(listener.accept()[0])
                except TimeoutError:
                    came = [0, *sorted(peer.rank for peer in self.peers)]
                    raise PeerError(f"of {self.size} ranks only these came: {came}") from None
                peer.rank = peer.receive()
                self.peers.append(peer)

    def _connect(self, address: tuple[str, int]) -> Peer:
        deadline = time.monotonic() + MEET_TIMEOUT_S
        while True:
            try:
                peer = Peer(socket.create_connection(address, timeout=5), rank=0)
                peer.send(self.rank)
                return peer
            except OSError as error:  # rank 0 may not be there yet
                if time.monotonic() > deadline:
                    raise PeerError(f"no connection to rank 0 in {MEET_TIMEOUT_S:g} s: {error}") from None
                time.sleep(0.1)

    def all_sum(self, values: list[float]) -> list[float]:
        """The sum of each position over all ranks, on every rank ("all-reduce")."""
        if self.rank != 0:
            self.peers[0].send(values)
            return self.peers[0].receive()  # type: ignore[no-any-return]
        try:
            rows = [values] + [peer.receive() for peer in self.peers]
            sums = [sum(column) for column in zip(*rows, strict=True)]
            for peer in self.peers:
                peer.send(sums)
        except PeerError as error:
            for peer in self.peers:  # the ranks that are left are connected to rank 0 only
                with contextlib.suppress(PeerError):
                    peer.send({"error": str(error)})
            raise
        return sums


class Model(NamedTuple):
    step: int
    parameters: tuple[float, ...]


def predict(parameters: tuple[float, ...], inputs: list[float]) -> float:
    return sum(p * x for p, x in zip(parameters, inputs, strict=True))


def make_samples(rank: int) -> list[tuple[list[float], float]]:
    """This rank's share of the data, the same in every run: inputs and the target, which has some noise."""
    source = random.Random(rank)
    rows = [[*(source.uniform(-1, 1) for _ in TRUE_PARAMETERS[1:]), 1.0] for _ in range(64)]
    return [(inputs, predict(TRUE_PARAMETERS, inputs) + source.gauss(0, 0.05)) for inputs in rows]


class Training:
    """One rank of the job."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.term = Term(args.ignore_term)
        self.group = Group()
        self.rank = self.group.rank
        self.model = Model(0, (0.0,) * len(TRUE_PARAMETERS))  # always as it was after a whole step
        self.checkpoint: Path = args.checkpoint / "checkpoint.json"

    def run(self) -> int:
        """The whole life of a rank; returns its exit code."""
        if self.args.leak_child:
            leak_child(self.rank)
        try:
            self.group.join()
            self.begin()
            if self.train():
                return 0
        except PeerError as error:
            say(f"rank {self.rank}: error at step {self.model.step + 1}: {error}", file=sys.stderr)
            self.term.sleep(PEER_LOST_PAUSE_S)
            if not self.term.asked:
                return 1
        except RuntimeError:  # of --fail-rank; it stands for any error in a user's training code
            traceback.print_exc()
            return int(self.args.exit_code)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is to disturb the saving
        signal.alarm(0)
        if self.rank == 0 and self.model.step > 0:
            self.save()
        return int(self.args.exit_on_term)

    def begin(self) -> None:
        """All ranks start from the model of rank 0, which alone has the checkpoint: the others add zeros."""
        if self.rank == 0 and self.checkpoint.exists():
            try:
                self.model = Model(**json.loads(self.checkpoint.read_text()))
            except (OSError, ValueError, TypeError) as error:  # to start afresh would lose work
                sys.exit(f"train.py: the checkpoint {self.checkpoint} cannot be read: {error!r}")
            say(f"resumed from checkpoint at step {self.model.step}")
        step, *parameters = self.group.all_sum([self.model.step, *self.model.parameters])
        self.model = Model(int(step), tuple(parameters))

    def save(self) -> None:
        """A crash at any moment leaves the old checkpoint or the new one, whole."""
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.checkpoint.with_name("checkpoint.json.tmp")
        with unfinished.open("w") as file:
            json.dump(self.model._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.checkpoint)
        say(f"checkpoint saved at step {self.model.step}")

    def train(self) -> bool:
        """Trains to the last step; False if SIGTERM ended it before."""
        samples = make_samples(self.rank)
        while self.model.step < self.args.steps:
            started = time.monotonic()
            misbehave(self.args, self.rank, self.model.step + 1)
            loss, stop = self.train_step(samples)
            self.report(loss, time.monotonic() - started)
            if stop:
                return False
            if self.rank == 0 and self.args.save_every and self.model.step % self.args.save_every == 0:
                self.save()
            self.term.sleep(self.args.step_time - (time.monotonic() - started))
        found = " ".join(f"{value:.3f}" for value in self.model.parameters)
        say(f"rank {self.rank} done: {self.model.step} steps, parameters {found}")
        return True

    def train_step(self, samples: list[tuple[list[float], float]]) -> tuple[float, bool]:
        """One step of gradient descent; the mean squared error over all ranks before it, and whether to stop.

        That SIGTERM came to a rank travels with the gradients, so that all ranks stop after the same step.
        """
        step, parameters = self.model
        errors = [predict(parameters, inputs) - target for inputs, target in samples]
        loss = sum(error * error for error in errors)
        columns = zip(*(inputs for inputs, _ in samples), strict=True)
        gradient = [2 * sum(e * x for e, x in zip(errors, column, strict=True)) for column in columns]
        *gradient, loss, stop = self.group.all_sum([*gradient, loss, float(self.term.asked)])
        rate, count = LEARNING_RATE, len(samples) * self.group.size
        moved = tuple(p - rate * g / count for p, g in zip(parameters, gradient, strict=True))
        self.model = Model(step + 1, moved)
        return loss / count, stop > 0

    def report(self, loss: float, seconds: float) -> None:
        step, steps = self.model.step, self.args.steps
        if self.rank == 0:
            say(f"step {step}/{steps} loss {loss:.4f} ({seconds * 1000:.1f} ms)")
        elif self.args.log_every and step % self.args.log_every == 0:
            say(f"rank {self.rank} step {step}/{steps}")
        if size := self.args.log_bytes:
            line = f"rank {self.rank} step {step} ".ljust(99, "x") + "\n"
            say((line * (size // len(line) + 1))[: size - 1])


def misbehave(args: argparse.Namespace, rank: int, step: int) -> None:
    """Does what the options ask of this rank in this step."""
    if args.fail_attempt is not None and args.fail_attempt != int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        return
    if (rank, step) == (args.fail_rank, args.fail_step):
        raise RuntimeError(f"rank {rank} fails at step {step}, as --fail-rank asks")
    if (rank, step) == (args.signal_rank, args.signal_step):
        say(f"rank {rank} sends itself SIG{args.signal} at step {step}, as --signal-rank asks", file=sys.stderr)
        os.kill(os.getpid(), signal.Signals[f"SIG{args.signal}"])
    if (rank, step) == (args.hang_rank, args.hang_step):
        say(f"rank {rank} hangs at step {step}, as --hang-rank asks", file=sys.stderr)
        if not args.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a script that knows nothing of it
        while True:
            signal.pause()


def leak_child(rank: int) -> None:
    """Leaves a process behind that is in a session of its own and has no parent in this job."""
    file = f"leaked-rank-{rank}.pid"
    subprocess.run(["sh", "-c", f"setsid sleep 3600 & echo $! >{file}"], check=True)
    say(f"rank {rank} leaves process {Path(file).read_text().strip()} behind, as --leak-child asks", file=sys.stderr)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument_group("training").add_argument
    add("--steps", type=int, default=40, metavar="N", help="steps to train (40)")
    add("--step-time", type=float, default=0.1, metavar="S", help="least time of a step (0.1 s)")
    folder = Path("checkpoints", os.environ.get("MUSTER_JOB_ID", ""))
    add("--checkpoint", type=Path, default=folder, metavar="DIR", help="its folder (checkpoints/ and the job's id)")
    add("--save-every", type=int, default=0, metavar="N", help="save a checkpoint each Nth step (0: only at SIGTERM)")
    add("--exit-on-term", type=int, default=143, metavar="N", help="exit code after SIGTERM (143)")
    add("--log-every", type=int, default=10, metavar="N", help="ranks other than 0 log each Nth step (10)")
    add("--log-bytes", type=int, default=0, metavar="N", help="more bytes of log per rank and step (0)")
    add = parser.add_argument_group("misbehaviour (no rank unless one is named)").add_argument
    add("--fail-rank", type=int, metavar="R", help="this rank raises an exception")
    add("--fail-attempt", type=int, metavar="N", help="misbehave in this attempt only, from 0 (in all)")
    add("--fail-step", type=int, default=5, metavar="N", help="in this step (5)")
    add("--exit-code", type=int, default=1, metavar="N", help="and exits with this code (1)")
    add("--signal-rank", type=int, metavar="R", help="this rank sends itself a signal")
    add("--signal-step", type=int, default=5, metavar="N", help="in this step (5)")
    add("--signal", default="KILL", choices=["KILL", "SEGV", "ABRT", "BUS", "TERM", "INT"], help="which one (KILL)")
    add("--hang-rank", type=int, metavar="R", help="this rank sleeps for ever, the others wait for it")
    add("--hang-step", type=int, default=5, metavar="N", help="in this step (5)")
    add("--leak-child", action="store_true", help="each rank leaves a child; pid in leaked-rank-<RANK>.pid")
    add("--ignore-term", action="store_true", help="only SIGKILL ends a rank")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(Training(parse_arguments()).run())
