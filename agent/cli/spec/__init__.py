"""The spec of a job from options and job.toml, and how it is submitted.

`spec_options` makes the options from the table of spec fields, `spec_values` reads what people write, `job_spec` puts
options and job.toml together, `caller` adds the folder and umask of who typed it, `slurm_step` what Slurm says,
`kube_pod` what a pod's variables say (`volcano_hosts`: those of Volcano), `visible_cards` which cards the caller may
use, and `submit` starts the job.
"""
