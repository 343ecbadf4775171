"""`muster run --hosts`: one job on several nodes, for people without a scheduler. It is a client of daemons: it places
and queues nothing, and has no state of its own on them.

`hosts` reads which daemons there are, `gang_run` starts the parts, follows them to one verdict and starts them again.
Others use: `hosts`, `gang_run`.
"""
