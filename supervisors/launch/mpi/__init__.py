"""MPI over several nodes: a program of its own beside mpirun, run as the job's user."""
