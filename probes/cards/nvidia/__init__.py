"""NVIDIA cards, through NVML.

`probes.cards.drivers` creates `backend`; the other modules are its parts.
"""
