"""Ascend cards: through libdcmi if it loads, otherwise through the program npu-smi.

`probes.cards.drivers` creates `backend`; the other modules are its parts. `probes.cards.reset` finds and starts a
vendor's program as `ascend_program` does.
"""
