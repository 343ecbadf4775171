"""Everything that is run to see whether muster works."""

import os

# Before gRPC is imported: tests fork a process with channels, and its threads would come back to life in the child.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
