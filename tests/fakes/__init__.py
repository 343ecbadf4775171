"""Fake cards: libraries in the place of libnvidia-ml.so.1 and libdcmi.so, and npu-smi, steered while they run.

`FakeCards` is all that a test needs; docs/guides/fake-cards.md tells how to play with them by hand.
"""

from tests.fakes.build import NoCompiler
from tests.fakes.card import FakeCard, Process
from tests.fakes.cards import FakeCards
from tests.fakes.models import MODELS, Model

__all__ = ["MODELS", "FakeCard", "FakeCards", "Model", "NoCompiler", "Process"]
