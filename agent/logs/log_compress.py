"""Compresses one rotated segment of a log: `python -m muster.agent.logs.log_compress FILE`, a process of its own.

It uses only idle processor and disk time, and leaves nothing of the file in the page cache. If it is killed, the plain
or the compressed file remains; see log_compressor.compress.
"""

import contextlib
import fcntl
import os
import sys
from pathlib import Path

from muster.supervisors.output import log_compressor, log_segments
from muster.supervisors.output.gzip_members import open_read

#: Exit code if another process has this file, one that an earlier daemon started.
BUSY = 75


def compress(segment: Path) -> int:
    """Replaces a segment by its compressed form. Returns an exit code; raises OSError, and the plain file remains."""
    found = log_segments.plain_segment(segment)
    if found is None:
        raise FileNotFoundError(0, "is not a log segment", str(segment))
    fd = open_read(segment)
    try:
        # Two processes would write into the same temporary file.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for done in log_compressor.compress(*found):
            os.posix_fadvise(fd, 0, done, os.POSIX_FADV_DONTNEED)
    except BlockingIOError:
        return BUSY
    finally:
        os.close(fd)
    return 0


def main() -> int:
    """Compresses the file that is the first argument."""
    with contextlib.suppress(OSError):
        os.nice(19)
    with contextlib.suppress(OSError):  # this makes its disk class idle, too: task_nice_ioclass of the kernel
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        return compress(Path(sys.argv[1]))
    except FileNotFoundError:
        return 0  # compressed by another, or removed
    except OSError as error:
        print(f"{sys.argv[1]}: cannot compress it: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
