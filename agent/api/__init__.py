"""The gRPC side of the daemon: the server, who may call which method, and the limits of calls.

`server` binds and ends, `boundary` turns exceptions into statuses, `access`, `identity`, `own_jobs` and `audit` say who
may do what and did, `slots` how many calls a client may have, and `services/` has one module per service of muster.v1.
Nothing below imports this room. Others use: `server.Server`, `slots.Listeners`, `tls.Credentials`, `own_logs.OwnLogs`.
"""
