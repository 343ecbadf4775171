"""Cards that look busy, for a hand that plays with them: curves of their own, and the processes of a daemon's jobs."""

import random
import time
from collections.abc import Mapping

import grpc

from muster.supervisors.paths import Root
from muster.v1 import job_pb2, job_pb2_grpc
from tests.fakes.card import FakeCard, Process
from tests.fakes.cards import FakeCards
from tests.fakes.models import MODELS

#: What a rank has of its card's memory, as a share, and bytes a second that it moves over the fabric.
_SHARE = 0.7
_FABRIC = 40e9
#: How often the daemon is asked for its jobs, in seconds, and how long it may take to answer.
_LOOK_S, _ANSWER_S = 1.0, 5.0


def busy(card: FakeCard) -> None:
    """Training steps: hardly a moment without work, now and then a checkpoint. Each card has a rhythm of its own."""
    own = random.Random(card.place)
    model = MODELS[card.model]
    period = 20.0 + own.uniform(0, 20)
    steps = [(period * i / 20, own.uniform(88, 100)) for i in range(18)]
    shares = [*steps, (period * 0.93, own.uniform(5, 30)), (period, steps[0][1])]
    card.curve(shares)
    card.curve([(at, share * own.uniform(0.4, 0.6)) for at, share in shares], "mem_util")
    card.curve([(at, model.idle + (model.power - model.idle) * 0.9 * share / 100) for at, share in shares], "power_w")
    card.curve([(at, 35 + 0.35 * share) for at, share in shares], "temp_c")
    card.fabric_rate = _FABRIC if card.links else 0


def idle(card: FakeCard) -> None:
    """Nothing to do."""
    card.util = card.mem_util = card.fabric_rate = 0
    card.power_w, card.temp_c = MODELS[card.model].idle, 35


class Follower:
    """Puts the ranks of a daemon's jobs on their cards, which are busy as long as one is there."""

    def __init__(self, cards: FakeCards, root: Root) -> None:
        self._cards = cards
        self._channel = grpc.insecure_channel(f"unix:{root.socket}")
        self._jobs = job_pb2_grpc.JobServiceStub(self._channel)
        self._ours: dict[int, tuple[int, ...]] = {}
        for card in cards:
            idle(card)

    def close(self) -> None:
        """Leaves the cards as they are."""
        self._channel.close()

    def run(self) -> None:
        """For ever. A daemon that is away is waited for; the processes that it had live on without it."""
        while True:
            time.sleep(_LOOK_S)
            try:
                self.look()
            except grpc.RpcError:
                continue

    def look(self) -> None:
        """Once. Raises grpc.RpcError where the daemon does not answer."""
        wanted = self._ranks()
        for card in self._cards:
            now, before = wanted.get(card.minor, ()), self._ours.get(card.minor, ())
            if now == before:
                continue
            others = [it for it in card.processes if it.pid not in before and it.pid not in now]
            size = int(card.mem_total * _SHARE) // max(len(now), 1)
            card.processes = [*others, *(Process(pid, size, lives=True) for pid in now)]
            if not before:
                busy(card)
            elif not now:
                idle(card)
        self._ours = dict(wanted)

    def _ranks(self) -> Mapping[int, tuple[int, ...]]:
        answer = self._jobs.List(job_pb2.ListRequest(page_size=1000), timeout=_ANSWER_S)
        found: dict[int, tuple[int, ...]] = {}
        for job in answer.jobs:
            for rank in job.ranks:
                if rank.pid and not rank.HasField("ended_at"):
                    found[rank.device] = (*found.get(rank.device, ()), rank.pid)
        return found
