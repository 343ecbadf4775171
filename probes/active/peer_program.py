"""The program that copies from the first card to the others, directly, without the host's memory: `python -m
muster.probes.active.peer_program BUS_ID,... SECONDS`.

It prints what `card_program` prints. `peer_gb_s`: the slowest of the ways; `peers`: how many there are. What arrives is
compared on the other card.
"""

import ctypes
import json
import sys
import time

from muster.probes.active import kernels
from muster.probes.active.cuda import Cuda, CudaError

_SIZE, _WORD, _SEED = 256 << 20, 4, 0x9EE12
_BLOCKS_A_PROCESSOR = 16


def copies(cards: dict[str, Cuda], seconds: float) -> tuple[dict[str, float], dict[str, int]]:
    """From the first card to each other that it reaches: figures, and how many words arrived wrong, by bus id; both are
    empty where it reaches none."""
    first, *others = cards.values()
    first.use()
    reached = [(bus, other) for bus, other in cards.items() if other in others and first.reaches(other)]
    count, seed = ctypes.c_uint64(_SIZE // _WORD), ctypes.c_uint32(_SEED)
    slowest, wrong = float("inf"), {}
    for bus, other in reached:
        first.use()
        source = first.allocate(_SIZE)
        first.launch("fill", _blocks(first), kernels.THREADS, (ctypes.c_uint64(source), count, seed))
        first.open_way(other)
        other.use()
        target, differ = other.allocate(_SIZE), other.allocate(_WORD)
        other.clear(differ, 1)
        other.wait()
        first.use()
        best, until = 0.0, time.monotonic() + seconds / len(reached)
        while True:
            begun = first.mark()
            first.send(other, target, source, _SIZE)
            best = max(best, _SIZE / first.between(begun, first.mark()))
            if time.monotonic() >= until:
                break
        slowest = min(slowest, best)
        other.use()
        at = (ctypes.c_uint64(target), count, seed, ctypes.c_uint64(differ))
        other.launch("verify", _blocks(other), kernels.THREADS, at)
        wrong[bus] = other.word(differ)
    return ({"peer_gb_s": slowest / 1e9, "peers": len(reached)}, wrong) if reached else ({}, {})


def _blocks(card: Cuda) -> int:
    return card.multiprocessors * _BLOCKS_A_PROCESSOR


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 1 where a call failed."""
    buses, seconds = arguments[0].split(","), float(arguments[1])
    try:
        cards = {}
        for bus in buses:
            cards[bus] = card = Cuda(bus)
            card.use()
            card.load(kernels.source(card.capability[0]))
        figures, wrong = copies(cards, seconds)
        for card in cards.values():
            card.close()
    except (CudaError, OSError) as error:
        code = error.code if isinstance(error, CudaError) else 0
        print(json.dumps({"test": "peers", "failed": str(error), "code": code}), flush=True)
        return 1
    if not figures:
        why = "no other card can be reached without the host's memory"
        print(json.dumps({"test": "peers", "failed": why, "code": 0, "absent": True}), flush=True)
        return 0
    told = {"test": "peers", "wrong": sum(wrong.values()), "wrong_at": [bus for bus in wrong if wrong[bus]]}
    print(json.dumps(told | {"measured": figures}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
