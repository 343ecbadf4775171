"""The checks of the node: its file systems, memory, processes, fabric, cards, and what the kernel reports.

Other rooms call `node_checks`, with `node_settings`, and `filesystems` for what is mounted; each other module checks
one thing.
"""
