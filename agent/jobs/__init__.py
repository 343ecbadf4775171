"""Jobs as the daemon knows them: accepted, followed to their end, stopped, removed.

Other rooms call `registry.Registry`; `entry.Entry` is one job; `admission` decides which jobs are accepted. The
registry is a `job_table`; `job_loading` reads jobs for it, `job_removal` removes them.
`live/` follows one job to its end, `damaged/` handles jobs whose record cannot be trusted, `cards/` decides who gets
which card, `ended/` is the index of ended jobs. Others also use `explained`, `job_folder`,
`log_ownership`, `output_losses` and `crashes`.
"""
