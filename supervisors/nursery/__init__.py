"""The nursery: forks a supervisor per job, and keeps what must outlive it.

Started by the daemon as a program of its own, `python -m muster.supervisors.nursery.nursery`.
"""
