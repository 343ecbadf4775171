"""The command `muster`: a thin client of the daemon's API.

`main` is the entry point, `commands/` has one module per command, `spec/` makes the spec of a job from options and
job.toml, `client/` calls the daemon. Nothing outside imports this room.
"""
