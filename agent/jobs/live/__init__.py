"""One job from its acceptance to its end, as the daemon follows it.

`job_task.JobTask` is the task of one job, `job_tasks` has those of all. `unsupervised` is the job before it has a
supervisor, `last_resort` a job that no supervisor can end; `climbing` is the signal ladder for both and for damaged
jobs. `rank_signals` sends ranks signals of which they are not to end. `stuck_supervisor`, `journal_watch` and
`rank_tables` are parts of them.
"""
