"""Jobs as the daemon knows them: taken, followed to their end, stopped, removed.

`registry.Registry` is what other rooms call, `entry.Entry` is one job, `admission` says which jobs are taken. The
registry is a `job_table`, with `job_loading` and `job_removal` for what it reads and removes.
`live/` follows one job to its end, `damaged/` has the jobs whose record cannot be trusted, `cards/` decides who gets
which card, `ended/` is the index of jobs that are over. Others also use `explained`, `job_folder`,
`log_ownership`, `output_losses` and `crashes`.
"""
