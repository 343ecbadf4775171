"""How supervisors use the kernel. No module here knows the state of a job.

Processes: `ladder` (signals), `subreaper`, `urgency`, `oom`, `owner_pipe`. Containers of processes: `cgroups`, `scope`.
Descriptors: `descriptors`, `spare`. Memory: `malloc`. Files: `atomic_file`, `lock`, `trust`. The settings that
supervisors need: `settings_file`. `loop` is the event loop of all of them.
"""
