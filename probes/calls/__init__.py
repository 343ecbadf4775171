"""Calls that may hang or take long: each has a deadline, and its own thread or process that nothing waits for.

`watched` runs one call in a thread with a deadline, `call_threads` keeps such threads, `script` runs one program,
`heartbeat` repeats an action at a fixed rate, `children` reaps processes.
"""
