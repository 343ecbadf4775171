"""The spec of a job from options and job.toml, and how it is submitted.

`spec_options` makes the options from the table of spec fields, `spec_values` reads what people write, `job_spec` puts
options and job.toml together, `slurm_step` adds what Slurm says, `submit` starts the job.
"""
