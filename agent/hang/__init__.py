"""Watching jobs for hangs, and taking stacks.

The rule itself is `muster.probes.hang`: this room feeds it records and acts on its verdicts.
Others use: `hang_watch.HangWatch`, `job_stacks.Stacks`, `kept_stacks`, `slow_sentence.sentence`. `slow_watch` keeps
the rule of slow ranks beside it.
"""
