"""Ascend cards: through libdcmi if it loads, otherwise through the program npu-smi.

`probes.cards.drivers` creates `backend`; the other modules are its parts.
"""
