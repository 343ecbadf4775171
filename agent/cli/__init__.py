"""The command `muster`: a thin client of the daemon's API.

Data goes to stdout, progress and complaints to stderr. gRPC, protobuf and the probes are imported inside the commands
that need them, so that `--help`, completion and usage errors stay quick.
"""
