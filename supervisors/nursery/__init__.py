"""The nursery: forks a supervisor per job, and keeps what must outlive it.

The daemon starts it as a separate program, `python -m muster.supervisors.nursery.nursery`.
"""
