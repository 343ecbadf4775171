"""Output that the daemon names and that a reader on the same machine reads from its files.

A gigabyte through a call costs daemon and reader six seconds of CPU, and from the file one.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from muster.probes.kernel.process import boot_id
from muster.v1 import job_pb2, log_pb2

#: Bytes that are read at once. The C library maps larger pieces anew each time, and the kernel clears them.
_BLOCK = 120 * 1024


class NotInPlace(Exception):
    """What the daemon named cannot be read from here, or not any more."""


def identity(path: Path) -> log_pb2.LogFolder | None:
    """Of a folder, by which two processes find out that they see the same one; None if it cannot be seen from here."""
    try:
        seen = os.stat(path)
        return log_pb2.LogFolder(boot_id=boot_id(), device=seen.st_dev, inode=seen.st_ino)
    except OSError:
        return None


class LogsInPlace:
    """The logs of one job's ranks."""

    def __init__(self, job: job_pb2.Job) -> None:
        """Opens nothing yet."""
        self._paths = {rank.rank: Path(rank.log_path) for rank in job.ranks}
        self._accepted = job.accepted_at

    @staticmethod
    def seen(job: job_pb2.Job, request: log_pb2.ReadLogsRequest) -> "LogsInPlace | None":
        """The logs, if all of them can be read from here; the request then says so."""
        logs = LogsInPlace(job)
        folders = {path.parent for path in logs._paths.values()}
        readable = all(
            os.access(path, os.R_OK) or not os.path.lexists(path) for path in (*folders, *logs._paths.values())
        )
        found = identity(folders.pop()) if len(folders) == 1 and readable else None
        if found is None:
            return None
        request.folder.CopyFrom(found)
        return logs

    def are_of(self, job: job_pb2.Job) -> bool:
        """Whether this is the job, and no later one under its name."""
        return bool(job.accepted_at == self._accepted)

    def read(self, named: log_pb2.ReadLogsResponse) -> Iterator[tuple[log_pb2.ReadLogsResponse, bytes]]:
        """What a message names, in parts, each with its own message. Raises NotInPlace."""
        # Only now: little output comes with the messages.
        from muster.agent.host.log_folder import folder
        from muster.supervisors.output.log_reader import Reader

        path = self._paths.get(named.rank)
        if path is None:
            raise NotInPlace
        position, end = named.offset, named.next_offset
        try:
            with Reader(folder(path.parent)) as reader:
                while position < end:
                    begin, data = reader.read(path, position, min(_BLOCK, end - position))
                    if not data:
                        raise NotInPlace
                    begin = min(begin, end)  # what was removed shows as a gap
                    data = data[: end - begin]
                    position = begin + len(data)
                    part = log_pb2.ReadLogsResponse(rank=named.rank, offset=begin, next_offset=position)
                    part.time.CopyFrom(named.time)
                    yield part, data
        except OSError as error:
            raise NotInPlace from error
