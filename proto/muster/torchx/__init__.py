"""A scheduler of TorchX 0.7: apps of TorchX as jobs of several daemons.

It is a client of the daemons and no more: no queue, no placement, and nothing that must outlive the command.
`scheduler` is what TorchX loads; `app_parts` makes one job per replica, `app_jobs` starts, finds and stops them
together, `app_status` says how an app is, `app_logs` reads the output of a replica. Below them: `daemons`, calls to
many daemons at once; `daemon_hosts`, which daemons those are and how they are named; `submitted`, where this user's
apps went.
"""

import os

# Before gRPC is imported: it writes to stderr, which is the user's, of connections that were idle.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
