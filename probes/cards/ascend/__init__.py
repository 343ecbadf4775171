"""Ascend cards: libdcmi where it loads, else the program npu-smi.

`backend` is what `probes.cards.drivers` makes; the other modules are its parts.
"""
