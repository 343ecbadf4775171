"""Calls that may hang or take long: each bounded, each in a thread or process that nobody depends on.

`watched` runs one call in a thread with a deadline, `call_threads` keeps such threads, `script` runs one program,
`heartbeat` repeats something at a rate of its own, `children` waits for processes that end.
"""
