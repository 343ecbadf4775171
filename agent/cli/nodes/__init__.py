"""`muster run --hosts`: one job on several nodes, for people without a scheduler. It is a client of daemons: it places
and queues nothing, and has no state of its own on them.

`hosts` reads which daemons there are, `gang_run` starts the parts, and again after a failure; `gang_follow` follows
them to one verdict, `merged_why` says which node failed first, `merged_report` makes one report of all parts. Others
use: `hosts`, `gang_run`, `merged_why`, `merged_report`.
"""
