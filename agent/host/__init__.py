"""The daemon's own process on this host: folders, lock, log, systemd, PID 1, its heap.

Each module is used by itself; none knows of jobs.
"""
