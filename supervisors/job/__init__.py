"""One job under one supervisor: from its first step to the verdict.

`supervisor` is the process, `gang` the job in it, `phases` what is next. `takeover` goes on where a predecessor was
killed, `attempt_start` and `attempt_end` begin and end an attempt, `ends` sees ranks end, `stop_causes` why they must,
`escalation` stops them, `remains` what they leave. The nursery calls `supervisor.supervise`; the daemon reads and
writes `stop_order`.
"""
