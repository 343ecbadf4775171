"""NVIDIA cards, by NVML.

`backend` is what `probes.cards.drivers` makes; the other modules are its parts.
"""
