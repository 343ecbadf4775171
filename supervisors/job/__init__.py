"""One job under one supervisor: from its first step to the verdict.

`supervisor` is the process, `gang` the job in it, `phases` decides what comes next. `takeover` continues after a killed
predecessor, `attempt_start` and `attempt_end` begin and end an attempt, `ends` records how ranks end, `stop_causes` has
the reasons to stop a job, `escalation` stops it, `remains` finds leftover processes. The nursery calls
`supervisor.supervise`; the daemon reads and writes `stop_order`.
"""
