"""How commands reach a daemon: where it is, calls that survive its restart, and a daemon of their own.

`address` says where the daemon listens, `calls` makes a connection and single calls, `follow` reads output to its end,
`exec_client` is a session in a rank. `standalone` brings a daemon for one job, in an `own_folder`;
`interrupts` handles Ctrl-C and SIGTERM meanwhile, `kept_runs` keeps what is left of it, and `knowing` finds the daemon
that can show a job. `pattern_parts` says what lines that match an expression contain, and `patience` limits what a
command asks of a disk. The other modules say why a call waits or fails.
"""
