"""A job that a command runs in the foreground.

`attached_job` is the job at this terminal or pipe; `launcher` is what a standalone run takes from its surroundings,
`termination_log` what it leaves for Kubernetes; `passing_on` passes a signal on to the ranks. The commands use them.
"""
