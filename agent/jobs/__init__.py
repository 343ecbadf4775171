"""Jobs as the daemon knows them: taken, followed to their end, stopped, removed.

`registry.Registry` is what other rooms call, `entry.Entry` is one job, `admission` says which jobs are taken.
`unsupervised` is a job before it has a supervisor, `job_task` one that has, `last_resort` one where none can live,
`damaged/` one whose record cannot be trusted. `cards/` decides who gets which card, `ended/` is the index of jobs that
are over. Others also use `job_folder`, `log_ownership`, `output_losses` and `crashes`.
"""
