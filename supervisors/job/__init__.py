"""One job under one supervisor: from its first step to the verdict.

`supervisor` is the process, `gang` the job in it; `ends` sees ranks end, `escalation` stops them, `takeover` goes on
where a predecessor was killed. The nursery calls `supervisor.run`.
"""
