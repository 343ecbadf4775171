"""Watching jobs for hangs, and taking stacks.

The rule itself is `muster.probes.hang`: this room feeds it with records, and acts on what it says.
Others use: `hang_watch.HangWatch`, `job_stacks.Stacks`.
"""
