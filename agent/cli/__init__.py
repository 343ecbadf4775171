"""The command `muster`: a thin client of the daemon's API.

`entry` is the program, `main` runs a command line, `commands/` has one module per command, `spec/` makes the spec of a
job from options and job.toml, `client/` calls the daemon. Nothing outside imports this room.
"""
