"""How muster spawns the processes of a job: environment, user, limits, and the steps from fork to exec.

Others use: `spawning`, `child`, `containment`, `environment`, `session_start`, `spec_rules`, `card_numbers`,
`keyring`, `limits`, `job_services`, `service_processes`. `modes/` has the processes that each boot mode starts, `mpi/`
the programs that a node of an MPI job runs.
"""
