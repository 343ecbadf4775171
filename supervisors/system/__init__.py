"""The kernel as supervisors use it. No module knows of jobs' states.

Processes: `ladder` (signals), `subreaper`, `urgency`, `oom`, `owner_pipe`. Containers of processes: `cgroups`, `scope`.
Descriptors: `descriptors`, `spare`. Files: `lock`, `trust`. `loop` is the event loop of supervisors and nursery.
"""
