"""The checks of the node: its file systems, memory, processes, fabric, cards, and what the kernel reports.

`node_checks` is what other rooms call, with `node_settings`; each other module is one thing that is looked at.
"""
