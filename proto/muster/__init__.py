"""The public contract of muster; `muster.v1` is the protobuf package of that name."""
