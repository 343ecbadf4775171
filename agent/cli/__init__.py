"""The command `muster`: a thin client of the daemon's API.

`program` is what is installed, `main` runs a command line, `commands/` has one module per command, `spec/` makes the
spec of a job from options and job.toml, `client/` calls the daemon. Nothing outside imports this room.
"""
