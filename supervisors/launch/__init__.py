"""How processes of a job come to be: their environment, user, limits, and the way from fork to exec.

Others use: `spawning`, `child`, `containment`, `environment`, `session_start`, `spec_rules`, `card_numbers`, `cpus`,
`keyring`; `modes/` says which processes a boot mode starts, `mpi/` is the program that a node of an MPI job runs.
"""
