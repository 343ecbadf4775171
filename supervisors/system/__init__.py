"""The kernel as supervisors use it: event loop, processes, cgroups, locks, trust in folders, the signal ladder."""
