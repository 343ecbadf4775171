"""MPI over several nodes: a separate program that runs beside mpirun, as the job's user."""
