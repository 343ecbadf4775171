"""The spec of a job from options and job.toml, and how it is submitted."""
