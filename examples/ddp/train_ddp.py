#!/usr/bin/env python3
"""PyTorch DistributedDataParallel on gloo, on CPUs: a script for `torchrun`, with nothing of muster in it.

It is started once per rank and needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (`init_method="env://"`).
Every rank begins with other parameters and has other data, so that the ranks agree at the end only if DDP
really broadcast the model and averaged the gradients; each rank checks that, by a checksum of all of them.

After SIGTERM to any rank all ranks finish the step, rank 0 saves `checkpoint.pt`, and they exit with 143.
A run that finds the checkpoint goes on from it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import zlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT_NAME = "checkpoint.pt"
TERM_EXIT_CODE = 128 + signal.SIGTERM
INPUTS = 8
SAMPLES_PER_RANK = 128


@dataclass
class Training:
    """What a step needs, and how many were done."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor
    targets: torch.Tensor
    step: int = 0


@dataclass
class StopRequest:
    """That SIGTERM came. The handler does no more than note it: the collective under way is to end well."""

    asked: bool = False

    def on_signal(self, _number: int, _frame: object) -> None:
        self.asked = True


def choose_interface() -> None:
    """Lets gloo use the loopback if all ranks are here: the host's own name, its default, may not resolve."""
    address = os.environ.get("MASTER_ADDR", "")
    if address == "localhost" or address.startswith("127.") or address == "::1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def build_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 32), nn.Tanh(), nn.Linear(32, 1))


def make_data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's share of the data, the same in every run."""
    source = torch.Generator().manual_seed(1000 + rank)
    inputs = torch.rand(SAMPLES_PER_RANK, INPUTS, generator=source) * 2 - 1
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    return inputs, targets


def save_checkpoint(folder: Path, model: nn.Module, step: int) -> None:
    """Writes the checkpoint so that a crash at any moment leaves the old one or the new one, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{CHECKPOINT_NAME}.{os.getpid()}.new"
    with new.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / CHECKPOINT_NAME)
    folder_fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


def load_checkpoint(folder: Path, model: nn.Module) -> int:
    """Puts the saved parameters into the model and gives the step; 0 when there is no checkpoint."""
    path = folder / CHECKPOINT_NAME
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    return int(saved["step"])


def prepare(rank: int, checkpoint: Path) -> Training:
    """The model on all ranks as rank 0 has it: DDP sends the parameters, the step goes the same way."""
    model = build_model(seed=rank)
    step = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        step[0] = load_checkpoint(checkpoint, model)
        if step.item():
            say(f"resumed from checkpoint at step {int(step.item())}")
    dist.broadcast(step, src=0)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    inputs, targets = make_data(rank)
    return Training(parallel, optimizer, inputs, targets, int(step.item()))


def train_step(training: Training, stop: StopRequest) -> tuple[float, bool]:
    """One step; the mean loss of all ranks before it, and whether any rank was asked to stop."""
    training.optimizer.zero_grad()
    loss = nn.functional.mse_loss(training.model(training.inputs), training.targets)
    loss.backward()
    training.optimizer.step()
    training.step += 1
    shared = torch.tensor([loss.item(), float(stop.asked)], dtype=torch.float64)
    dist.all_reduce(shared)
    return shared[0].item() / dist.get_world_size(), shared[1].item() > 0


def checksum(model: nn.Module) -> int:
    """A CRC of every bit of the parameters: equal on two ranks only if they are the same numbers."""
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    return zlib.crc32(bytes(flat.view(torch.uint8).tolist()))


def verify_in_sync(model: nn.Module) -> int:
    """The checksum that all ranks have. Raises RuntimeError on every rank when they differ."""
    mine = torch.tensor([checksum(model)], dtype=torch.int64)
    gathered = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    sums = [int(each.item()) for each in gathered]
    if len(set(sums)) != 1:
        raise RuntimeError(f"the ranks' parameters differ: {[f'{each:08x}' for each in sums]}")
    return sums[0]


def train(args: argparse.Namespace, stop: StopRequest) -> int:
    """The training itself, in a group that is up; the exit code."""
    rank = dist.get_rank()
    training = prepare(rank, args.checkpoint)
    losses: list[float] = []
    stopping = False
    while training.step < args.steps and not stopping:
        started = time.monotonic()
        loss, stopping = train_step(training, stop)
        losses.append(loss)
        if rank == 0:
            took_ms = (time.monotonic() - started) * 1000
            say(f"step {training.step}/{args.steps} loss {loss:.4f} ({took_ms:.1f} ms)")
        if not stopping:
            time.sleep(max(0.0, args.step_time - (time.monotonic() - started)))
    say(f"rank {rank} parameters {verify_in_sync(training.model):08x}")
    if stopping:
        return end_on_term(args, training)
    if rank == 0:
        change = f"loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else "nothing left to train"
        say(f"ddp ok world={dist.get_world_size()} {change}")
    return 0


def end_on_term(args: argparse.Namespace, training: Training) -> int:
    """Saves on rank 0; no rank leaves before the checkpoint is on the disk."""
    if dist.get_rank() == 0:
        inner = training.model.module
        assert isinstance(inner, nn.Module)
        save_checkpoint(args.checkpoint, inner, training.step)
        say(f"checkpoint saved at step {training.step}")
    dist.barrier()
    return int(args.exit_on_term)


def say(text: str) -> None:
    """One line in one write, at once: Python would hold it back, and the lines of ranks may mix."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def parse_arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--steps", type=int, default=20, help="steps to train (default 20)")
    add("--step-time", type=float, default=0.0, metavar="S", help="least time of a step (default 0 s)")
    where = f"folder of {CHECKPOINT_NAME} (default: the working folder)"
    add("--checkpoint", type=Path, default=Path(), metavar="DIR", help=where)
    code = f"exit code after SIGTERM (default {TERM_EXIT_CODE})"
    add("--exit-on-term", type=int, default=TERM_EXIT_CODE, metavar="CODE", help=code)
    add("--timeout", type=float, default=60.0, metavar="S", help="longest wait for a peer (default 60 s)")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    torch.set_num_threads(1)
    choose_interface()
    dist.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=args.timeout))
    stop = StopRequest()
    # Not before: while the ranks meet there is nothing to save, and SIGTERM is to end the rank at once.
    signal.signal(signal.SIGTERM, stop.on_signal)
    try:
        return train(args, stop)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    # At once: PyTorch's own threads may still want the interpreter while it is being taken down, and a rank whose
    # training is done would then be aborted ("terminate called without an active exception").
    os._exit(exit_code)
