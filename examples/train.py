#!/usr/bin/env python3
"""A small training job in plain Python, to see what a node agent does with a real one.

It is started once per rank, with the environment that `torchrun` and `muster` give. The ranks meet over TCP
at MASTER_ADDR:MASTER_PORT, fit a linear regression by gradient descent on data that differs from rank to
rank, and average their gradients in every step through rank 0. So it behaves like a real job: a rank that is
missing makes all others wait, a rank that dies breaks the collective for all.

After SIGTERM to any rank all ranks finish the step together, rank 0 saves a checkpoint, and they exit with
143 (what a shell shows for a SIGTERM; another code with --exit-on-term). Where a step cannot be finished, as
a peer is stuck, rank 0 saves the state after the last whole one. A run that finds a checkpoint goes on from
it. The options under "misbehaviour" make it fail, die, hang, leak a process or ignore SIGTERM.

Other exit codes: 1 a peer was lost or an error in the code, 2 an unusable environment, option or checkpoint.
Standard library only. Without the environment of a launcher it runs as a single rank.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import signal
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

CHECKPOINT_NAME = "checkpoint.json"
TERM_EXIT_CODE = 128 + signal.SIGTERM
LEAKED_CHILD_LIFE_S = 3600

POLL_S = 0.2
"""Longest wait in one system call: Python restarts a call that a signal interrupts, so waits have slices."""

STEP_PATIENCE_S = 2.0
"""How long after SIGTERM a step may take to finish. A peer may be stuck, and the agent's grace runs."""

PEER_LOST_PAUSE_S = 0.5
"""Pause between the news of a lost peer and this rank's exit: who watches the gang sees the culprit first."""

HELLO_TIMEOUT_S = 5.0
"""How long a connection that rank 0 accepted may take to say which rank it is."""

TRUE_WEIGHTS = (1.5, -2.0, 0.5, 3.0)
TRUE_BIAS = 0.7
NOISE = 0.05
SAMPLES_PER_RANK = 64
LEARNING_RATE = 0.15

Message = dict[str, Any]


class ConfigurationError(Exception):
    """Raised when the environment, an option or a checkpoint cannot be used; nothing was computed."""


class PeerError(Exception):
    """Raised when another rank is lost, silent for too long or of another job."""


class StepAbandonedError(Exception):
    """Raised when SIGTERM came and the step that was under way does not finish, as a peer does not answer."""


class InjectedFaultError(RuntimeError):
    """Raised by --fail-rank: stands for any error in a user's training code."""


# --- who and where this rank is -----------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """This rank's place among all, as the launcher's environment says it."""

    rank: int
    size: int
    master_addr: str
    master_port: int
    run_id: str
    restart_count: int

    @classmethod
    def from_environment(cls) -> World:
        """Reads the launcher's variables; a missing RANK and WORLD_SIZE mean a single rank."""
        world = cls(
            rank=_int_variable("RANK", 0),
            size=_int_variable("WORLD_SIZE", 1),
            master_addr=os.environ.get("MASTER_ADDR", "127.0.0.1"),
            master_port=_int_variable("MASTER_PORT", 0),
            run_id=os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("MUSTER_JOB_ID", ""),
            restart_count=_int_variable("TORCHELASTIC_RESTART_COUNT", 0),
        )
        if world.size < 1 or not 0 <= world.rank < world.size:
            raise ConfigurationError(f"RANK={world.rank} is not in the range of WORLD_SIZE={world.size}")
        if world.size > 1 and not 0 < world.master_port < 65536:
            raise ConfigurationError(f"MASTER_PORT={world.master_port} is no port for the ranks to meet at")
        return world


def _int_variable(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a whole number") from None


@dataclass
class StopRequest:
    """Remembers when SIGTERM came. The handler does no more than that: the step under way is to end well."""

    asked_at: float | None = None

    def install(self, ignore: bool) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self.asked_at is None:
            self.asked_at = time.monotonic()

    @property
    def asked(self) -> bool:
        return self.asked_at is not None

    def check_patience(self, patience_s: float = STEP_PATIENCE_S) -> None:
        """Raises StepAbandonedError when SIGTERM came more than `patience_s` seconds ago."""
        if self.asked_at is not None and time.monotonic() - self.asked_at >= patience_s:
            raise StepAbandonedError

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not on after SIGTERM."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL_S))


# --- the collective: one JSON object a line over TCP, a star with rank 0 in the middle ----------------------


class Link:
    """A connection to one other rank. It stays open until the process ends: see the end of `main`."""

    kept: ClassVar[list[Link]] = []

    def __init__(self, connection: socket.socket, rank: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.rank = rank
        self._received = b""
        self.kept.append(self)

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Message) -> None:
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._lost(error) from None

    def receive_some(self) -> Message | None:
        """Reads what has come (call it when readable); a message once one is whole, None before that."""
        try:
            data = self.connection.recv(65536)
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise self._lost("closed by peer")
        self._received += data
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._received = rest
        return self._parse(line)

    def _parse(self, line: bytes) -> Message:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise PeerError(f"rank {self.rank} sent something that is not a message: {line[:40]!r}")
        if "error" in message:
            raise PeerError(f"{message['error']} (told by rank {self.rank})")
        return message

    def _lost(self, why: object) -> PeerError:
        return PeerError(f"connection lost from rank {self.rank}: {why}")


def receive_from(links: Sequence[Link], timeout_s: float, stop: StopRequest) -> dict[int, Message]:
    """One message from each link, by rank, in whichever order they come.

    A lost connection is seen at once, also while another rank is waited for. Raises PeerError on that or
    after `timeout_s` seconds (naming the silent ranks), StepAbandonedError when SIGTERM came and the rest
    does not come soon.
    """
    deadline = time.monotonic() + timeout_s
    messages: dict[int, Message] = {}
    with selectors.DefaultSelector() as selector:
        for link in links:
            selector.register(link, selectors.EVENT_READ)
        while len(messages) < len(links):
            for key, _ in selector.select(POLL_S):
                link = key.fileobj  # type: ignore[assignment]
                if (message := link.receive_some()) is not None:
                    messages[link.rank] = message
                    selector.unregister(link)
            stop.check_patience()
            if len(messages) < len(links) and time.monotonic() > deadline:
                silent = sorted(link.rank for link in links if link.rank not in messages)
                raise PeerError(f"no message from rank {short_list(silent)} for {timeout_s:g} s")
    return messages


def short_list(ranks: Sequence[int]) -> str:
    """The first few of many ranks: a line of 255 numbers helps nobody."""
    text = ", ".join(str(rank) for rank in ranks[:8])
    return text if len(ranks) <= 8 else f"{text} and {len(ranks) - 8} more"


@dataclass
class Group:
    """All ranks of the job, joined. `links` is empty (one rank), has all others (rank 0) or only rank 0."""

    world: World
    stop: StopRequest
    timeout_s: float
    links: list[Link] = field(default_factory=list)

    def all_sum(self, values: Sequence[float]) -> list[float]:
        """The sum of each position over all ranks, the same bits on each: rank 0 adds in rank order."""
        if self.world.rank != 0:
            self.links[0].send({"values": list(values)})
            return self._from_root()["values"]  # type: ignore[no-any-return]
        messages = self._from_all()
        columns = zip(values, *(messages[rank]["values"] for rank in sorted(messages)), strict=True)
        sums = [sum(column) for column in columns]
        self._to_all({"values": sums})
        return sums

    def from_rank_0(self, message: Message) -> Message:
        """Rank 0's message, on every rank."""
        if self.world.rank != 0:
            return self._from_root()
        self._to_all(message)
        return message

    def _from_root(self) -> Message:
        return receive_from(self.links, self.timeout_s, self.stop)[0]

    def _from_all(self) -> dict[int, Message]:
        try:
            return receive_from(self.links, self.timeout_s, self.stop)
        except PeerError as error:
            self._tell_all(error)
            raise

    def _to_all(self, message: Message) -> None:
        try:
            for link in self.links:
                link.send(message)
        except PeerError as error:
            self._tell_all(error)
            raise

    def _tell_all(self, error: PeerError) -> None:
        """Tells the ranks that are left which one is lost: they are connected to rank 0 only."""
        for link in self.links:
            try:
                link.send({"error": str(error)})
            except PeerError:
                continue


def join(world: World, stop: StopRequest, connect_timeout_s: float, peer_timeout_s: float) -> Group:
    """Meets all other ranks at MASTER_ADDR:MASTER_PORT; PeerError after `connect_timeout_s` seconds."""
    group = Group(world, stop, peer_timeout_s)
    deadline = time.monotonic() + connect_timeout_s
    if world.size == 1:
        return group
    group.links = _accept_all(world, stop, deadline) if world.rank == 0 else [_connect(world, stop, deadline)]
    return group


def _accept_all(world: World, stop: StopRequest, deadline: float) -> list[Link]:
    links: dict[int, Link] = {}
    with _listen(world) as listener:
        listener.settimeout(POLL_S)
        while len(links) < world.size - 1:
            stop.check_patience(0)
            if time.monotonic() > deadline:
                missing = [rank for rank in range(1, world.size) if rank not in links]
                raise PeerError(f"rank {short_list(missing)} did not connect in time")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if (link := _greet(connection, world, links, stop)) is not None:
                links[link.rank] = link
    return [links[rank] for rank in sorted(links)]


def _listen(world: World) -> socket.socket:
    family, *_, address = _resolve(world)
    try:
        return socket.create_server(address[:2], family=family, backlog=min(world.size, 1024))
    except OSError as error:
        where = f"{world.master_addr}:{world.master_port}"
        raise ConfigurationError(f"cannot listen at {where}: {error}") from None


def _resolve(world: World) -> tuple[Any, ...]:
    try:
        return socket.getaddrinfo(world.master_addr, world.master_port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigurationError(f"cannot resolve MASTER_ADDR={world.master_addr!r}: {error}") from None


def _greet(connection: socket.socket, world: World, known: dict[int, Link], stop: StopRequest) -> Link | None:
    """The link of a new connection, None when it is not from a rank of this run: anybody may connect."""
    connection.settimeout(None)
    link = Link(connection, rank=-1)
    try:
        hello = receive_from([link], HELLO_TIMEOUT_S, stop)[-1]
    except PeerError:
        connection.close()
        return None
    rank: Any = hello.get("rank")
    new = isinstance(rank, int) and 0 < rank < world.size and rank not in known
    if not new or hello != _hello(world, rank):
        say(f"rank 0: refused a connection that is not of this run: {hello}", error=True)
        connection.close()
        return None
    link.rank = rank
    return link


def _hello(world: World, rank: int) -> Message:
    return {"rank": rank, "world": world.size, "run": world.run_id, "restart": world.restart_count}


def _connect(world: World, stop: StopRequest, deadline: float) -> Link:
    delay = 0.02
    while True:
        stop.check_patience(0)
        try:
            connection = socket.create_connection((world.master_addr, world.master_port), timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                where = f"{world.master_addr}:{world.master_port}"
                raise PeerError(f"could not connect to rank 0 at {where} in time: {error}") from None
            stop.sleep(delay)
            delay = min(delay * 1.5, 0.5)
            continue
        connection.settimeout(None)
        link = Link(connection, rank=0)
        link.send(_hello(world, world.rank))
        return link


# --- the model ----------------------------------------------------------------------------------------------


@dataclass
class Model:
    """A linear regression, and how many steps it was trained for. The last parameter is the bias."""

    parameters: list[float] = field(default_factory=lambda: [0.0] * (len(TRUE_WEIGHTS) + 1))
    step: int = 0

    def checksum(self) -> str:
        return f"{zlib.crc32(repr(self.parameters).encode()):08x}"


Sample = tuple[list[float], float]


def make_samples(rank: int) -> list[Sample]:
    """This rank's share of the data, the same in every run."""
    source = random.Random(1000 + rank)
    samples = []
    for _ in range(SAMPLES_PER_RANK):
        inputs = [source.uniform(-1, 1) for _ in TRUE_WEIGHTS] + [1.0]
        target = dot(inputs, (*TRUE_WEIGHTS, TRUE_BIAS)) + source.gauss(0, NOISE)
        samples.append((inputs, target))
    return samples


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def loss_and_gradient(parameters: Sequence[float], samples: Sequence[Sample]) -> tuple[float, list[float]]:
    """Mean squared error over the samples, and its gradient."""
    loss = 0.0
    gradient = [0.0] * len(parameters)
    for inputs, target in samples:
        error = dot(inputs, parameters) - target
        loss += error * error / len(samples)
        for index, value in enumerate(inputs):
            gradient[index] += 2 * error * value / len(samples)
    return loss, gradient


# --- checkpoints --------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, model: Model) -> None:
    """Writes the checkpoint so that a crash at any moment leaves the old one or the new one, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{CHECKPOINT_NAME}.{os.getpid()}.new"
    with new.open("w") as file:
        json.dump({"step": model.step, "parameters": model.parameters}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / CHECKPOINT_NAME)
    folder_fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


def load_checkpoint(folder: Path) -> Model | None:
    """The saved model, None when there is none. A damaged one is an error: to start afresh loses work."""
    path = folder / CHECKPOINT_NAME
    try:
        saved = json.loads(path.read_text())
        model = Model([float(value) for value in saved["parameters"]], int(saved["step"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"the checkpoint {path} cannot be read: {error!r}") from None
    if len(model.parameters) != len(TRUE_WEIGHTS) + 1 or model.step < 0:
        raise ConfigurationError(f"the checkpoint {path} is not of this model")
    return model


# --- misbehaviour, as asked ---------------------------------------------------------------------------------


def misbehave(args: argparse.Namespace, world: World, step: int) -> None:
    """Does what the options ask of this rank in this step."""
    if args.once and world.restart_count > 0:
        return
    if (world.rank, step) == (args.fail_rank, args.fail_step):
        raise InjectedFaultError(f"rank {world.rank} fails at step {step}, as --fail-rank asks")
    if (world.rank, step) == (args.signal_rank, args.signal_step):
        say(
            f"rank {world.rank} sends {args.signal.name} to itself at step {step}, as --signal-rank asks",
            error=True,
        )
        os.kill(os.getpid(), args.signal)
    if (world.rank, step) == (args.hang_rank, args.hang_step):
        hang(world, step, args.ignore_term)


def hang(world: World, step: int, ignore_term: bool) -> NoReturn:
    """Takes no further part, but keeps its connections. SIGTERM ends it at once, as any stuck script."""
    say(f"rank {world.rank} hangs at step {step}, as --hang-rank asks", error=True)
    if not ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        signal.pause()


def leak_child(rank: int) -> int:
    """Leaves a process behind in a session of its own, with no parent of this job; its pid is in a file.

    It keeps stdout and stderr of the rank, as the data loader or the profiler that somebody forgot does.
    """
    between = os.fork()
    if between == 0:
        try:
            os.setsid()
            child = os.fork()
            if child == 0:
                os.execvp("sleep", ["sleep", str(LEAKED_CHILD_LIFE_S)])
            leaked_pid_file(rank).write_text(f"{child}\n")
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(between, 0)[1] != 0:
        raise RuntimeError("--leak-child: no child was left behind")
    return int(leaked_pid_file(rank).read_text())


def leaked_pid_file(rank: int) -> Path:
    return Path(f"leaked-rank-{rank}.pid")


# --- the run ------------------------------------------------------------------------------------------------


def say(text: str, error: bool = False) -> None:
    """One line in one write, at once: Python would hold it back, and the lines of ranks may mix."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def begin(args: argparse.Namespace, group: Group) -> Model:
    """The model to start from: rank 0's checkpoint or a new one, sent to all: only rank 0 has the file."""
    found = load_checkpoint(args.checkpoint) if group.world.rank == 0 else None
    mine = found or Model()
    sent = group.from_rank_0({"step": mine.step, "parameters": mine.parameters})
    if found is not None:
        say(f"resumed from checkpoint at step {found.step}")
    return Model(list(sent["parameters"]), int(sent["step"]))


def train_step(model: Model, samples: Sequence[Sample], group: Group) -> tuple[float, bool]:
    """One step of gradient descent over the data of all ranks; the loss before it and whether to stop.

    That SIGTERM came travels with the gradients, so that all ranks stop after the same step. The model is
    changed only after the collective: a step that fails leaves it as it was after the last one.
    """
    loss, gradient = loss_and_gradient(model.parameters, samples)
    *summed, total_loss, stops = group.all_sum([*gradient, loss, float(group.stop.asked)])
    size = group.world.size
    model.parameters = [p - LEARNING_RATE * g / size for p, g in zip(model.parameters, summed, strict=True)]
    model.step += 1
    return total_loss / size, stops > 0


def report(args: argparse.Namespace, rank: int, model: Model, loss: float, seconds: float) -> None:
    """The step's line (every step on rank 0, every --log-every on the others) and the --log-bytes."""
    if rank == 0:
        say(f"step {model.step}/{args.steps} loss {loss:.4f} ({seconds * 1000:.1f} ms)")
    elif model.step % args.log_every == 0:
        say(f"rank {rank} step {model.step}/{args.steps}")
    if args.log_bytes:
        sys.stdout.write(filler(rank, model.step, args.log_bytes))
        sys.stdout.flush()


def filler(rank: int, step: int, size: int) -> str:
    """Exactly `size` bytes of log, in lines of 100 that say where they are from."""
    line = f"rank {rank} step {step} ".ljust(99, "x") + "\n"
    text = (line * (size // len(line) + 1))[:size]
    return text[:-1] + "\n"


def train(args: argparse.Namespace, group: Group, model: Model) -> bool:
    """Trains to the last step; False when SIGTERM ended it before. `model` is always at a finished step."""
    rank = group.world.rank
    samples = make_samples(rank)
    while model.step < args.steps:
        started = time.monotonic()
        misbehave(args, group.world, model.step + 1)
        loss, stops = train_step(model, samples, group)
        report(args, rank, model, loss, time.monotonic() - started)
        if stops:
            return False
        if rank == 0 and args.checkpoint_every and model.step % args.checkpoint_every == 0:
            save_checkpoint(args.checkpoint, model)
        group.stop.sleep(args.step_time - (time.monotonic() - started))
    say(f"rank {rank} done: {model.step} steps, parameters {model.checksum()}")
    return True


def end_on_term(args: argparse.Namespace, group: Group, model: Model, together: bool) -> int:
    """Saves on rank 0 and gives the exit code. If `together`, no rank leaves before the save is done."""
    if group.world.rank == 0:
        save_checkpoint(args.checkpoint, model)
        say(f"checkpoint saved at step {model.step}")
    if together:
        try:
            group.all_sum([])
        except (PeerError, StepAbandonedError):
            pass  # what was to be saved is saved; a peer that was killed meanwhile changes nothing
    return int(args.exit_on_term)


def end_on_peer_error(args: argparse.Namespace, group: Group, model: Model, error: PeerError) -> int:
    """Says what happened and waits a moment for the SIGTERM that ends the gang: rank 0 then saves."""
    say(f"rank {group.world.rank}: error at step {model.step + 1}: {error}", error=True)
    group.stop.sleep(PEER_LOST_PAUSE_S)
    return end_on_term(args, group, model, together=False) if group.stop.asked else 1


def run(args: argparse.Namespace, stop: StopRequest) -> int:
    """The whole life of a rank; returns its exit code."""
    world = World.from_environment()
    if args.leak_child:
        child = leak_child(world.rank)
        say(f"rank {world.rank} leaves process {child} behind, as --leak-child asks", error=True)
    try:
        group = join(world, stop, args.connect_timeout, args.peer_timeout)
        model = begin(args, group)
    except StepAbandonedError:
        return int(args.exit_on_term)
    except PeerError as error:
        say(f"rank {world.rank}: error before the first step: {error}", error=True)
        stop.sleep(PEER_LOST_PAUSE_S)
        return 1
    try:
        if train(args, group, model):
            return 0
        return end_on_term(args, group, model, together=True)
    except StepAbandonedError:
        return end_on_term(args, group, model, together=False)
    except PeerError as error:
        return end_on_peer_error(args, group, model, error)


def main() -> NoReturn:
    args = parse_arguments()
    stop = StopRequest()
    stop.install(args.ignore_term)
    try:
        code = run(args, stop)
    except ConfigurationError as error:
        say(f"train.py: error: rank {os.environ.get('RANK', '0')}: {error}", error=True)
        code = 2
    except Exception as error:
        traceback.print_exc()
        code = args.exit_code if isinstance(error, InjectedFaultError) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit(), and the links are kept until here: the interpreter would close the connections some
    # milliseconds before the process ends, and the peers, which see that at once, could seem to fail first.
    os._exit(code)


# --- the command line ---------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add_training_options(parser.add_argument_group("training"))
    add_misbehaviour_options(parser.add_argument_group("misbehaviour (no rank unless one is named)"))
    return parser.parse_args()


def add_training_options(group: argparse._ArgumentGroup) -> None:
    add_number(group, "--steps", 40, "steps to train", least=1)
    add_seconds(group, "--step-time", 0.1, "least time of a step")
    where = f"folder of {CHECKPOINT_NAME}, made if missing (default: the working folder)"
    group.add_argument("--checkpoint", type=Path, default=Path(), metavar="DIR", help=where)
    add_number(group, "--checkpoint-every", 0, "also save every N steps; 0: only on SIGTERM")
    add_number(group, "--exit-on-term", TERM_EXIT_CODE, "exit code after SIGTERM", most=255)
    add_number(group, "--log-every", 10, "steps from line to line of the ranks other than 0", least=1)
    add_number(group, "--log-bytes", 0, "extra bytes of log per rank and step")
    add_seconds(group, "--connect-timeout", 60.0, "longest wait for all ranks to meet")
    add_seconds(group, "--peer-timeout", 600.0, "longest wait for a peer in a step")


def add_misbehaviour_options(group: argparse._ArgumentGroup) -> None:
    add_number(group, "--fail-rank", None, "this rank raises an exception")
    add_number(group, "--fail-step", 5, "in this step", least=1)
    add_number(group, "--exit-code", 1, "and exits with this code", most=255)
    add_number(group, "--signal-rank", None, "this rank sends itself a signal")
    add_number(group, "--signal-step", 5, "in this step", least=1)
    which = "the signal, as KILL (the default), SEGV, ABRT"
    group.add_argument("--signal", type=signal_name, default=signal.SIGKILL, metavar="NAME", help=which)
    add_number(group, "--hang-rank", None, "this rank sleeps for ever, its peers wait for it")
    add_number(group, "--hang-step", 5, "in this step", least=1)
    once = "no such fault after a restart (TORCHELASTIC_RESTART_COUNT above 0)"
    group.add_argument("--once", action="store_true", help=once)
    leak = f"each rank leaves a setsid child of {LEAKED_CHILD_LIFE_S} s, its pid in leaked-rank-<RANK>.pid"
    group.add_argument("--leak-child", action="store_true", help=leak)
    group.add_argument("--ignore-term", action="store_true", help="only SIGKILL ends a rank")


def add_number(
    group: argparse._ArgumentGroup,
    name: str,
    default: int | None,
    text: str,
    least: int = 0,
    most: int = sys.maxsize,
) -> None:
    """An option that is a whole number in `least`..`most`; no default in its help when that is None."""

    def number(given: str) -> int:
        value = int(given)
        if not least <= value <= most:
            limit = f"less than {least}" if value < least else f"more than {most}"
            raise argparse.ArgumentTypeError(f"{value} is {limit}")
        return value

    shown = text if default is None else f"{text} (default {default})"
    group.add_argument(name, type=number, default=default, metavar="N", help=shown)


def add_seconds(group: argparse._ArgumentGroup, name: str, default: float, text: str) -> None:
    def seconds(given: str) -> float:
        value = float(given)
        if not 0 <= value < 1e9:
            raise argparse.ArgumentTypeError(f"{given} is no time in seconds")
        return value

    shown = f"{text} (default {default:g} s)"
    group.add_argument(name, type=seconds, default=default, metavar="S", help=shown)


def signal_name(text: str) -> signal.Signals:
    name = text.upper()
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text} is no signal; examples: KILL, SEGV, ABRT") from None


if __name__ == "__main__":
    main()
