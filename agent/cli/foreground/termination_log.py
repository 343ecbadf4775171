"""What Kubernetes shows of a container that has ended: the message that it reads from a file."""

import contextlib
import os

from muster.probes.kernel.known_names import IN_POD

#: The file of a container whose manifest names none (`terminationMessagePath`), and the variable that names another.
DEFAULT, VARIABLE = "/dev/termination-log", "MUSTER_TERMINATION_LOG"
#: Bytes that the kubelet reads.
_MOST = 4096


def write(text: str) -> None:
    """Leaves this text, in a pod only. Best effort: the kubelet makes the file, and what cannot be written there is in
    the log as well."""
    path = os.environ.get(VARIABLE) or (DEFAULT if IN_POD in os.environ else "")
    if not path:
        return
    message = text.encode("utf-8", "replace")
    if len(message) > _MOST:
        message = message[: _MOST - 3].decode("utf-8", "ignore").encode() + b"..."
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.write(fd, message)
        finally:
            os.close(fd)
