#!/bin/sh
# Prolog and Epilog of Slurm: a node that muster calls not fit gets no job. The exit code says so, and Slurm drains the
# node itself: no command of Slurm may run here. An unknown health stops nobody. The reason is in slurmd's log.
PATH=/opt/muster/bin:/usr/local/bin:/usr/bin:/bin
export PATH
exec muster check --gate --format prolog
