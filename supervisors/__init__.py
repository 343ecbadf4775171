"""The process that supervises one job, and all that it needs: gang, ranks, output, stops, journal, and the nursery.

Nothing here imports gRPC, protobuf, structlog, click or asyncio: a supervisor is one small event loop that must outlive
everything that is upgraded, restarted or attacked. `paths` has every file name, `supervision_errors` the errors.
"""

#: Version of the control protocol that daemon, nursery and supervisors speak with each other.
PROTOCOL = 1
