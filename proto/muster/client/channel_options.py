"""Options of a channel to a daemon, for this client and for the command line. Nothing but the standard library."""

#: A job of 4096 ranks is larger than the 4 MiB that gRPC takes by default. In bytes.
_MAX_MESSAGE = 64 << 20
OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.max_send_message_length", _MAX_MESSAGE),
    # A proxy of the environment is nothing for a socket of this node.
    ("grpc.enable_http_proxy", 0),
    # A daemon that was restarted is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the time that an attempt may take: hundreds may look for a daemon that was restarted just now.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
#: A node without power does not end a stream, and who reads one waits: so pings ask whether it is there. The daemon
#: allows one each 10 s.
PINGING_OPTIONS = [
    *OPTIONS,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]
