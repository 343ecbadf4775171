"""Watching jobs for hangs, and taking stacks.

The rule itself is `muster.probes.hang`: this room feeds it records and acts on its verdicts.
Others use: `hang_watch.HangWatch`, `current_hang.CurrentHang`, `job_stacks.Stacks`, `kept_stacks`,
`slow_sentence.sentence`. `hang_state` is what a watch keeps on disk, `hang_action` what follows a proven hang,
`slow_watch` the rule of slow ranks beside it.
"""
