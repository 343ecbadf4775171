"""Facts about the folders that hold logs."""

from functools import lru_cache
from pathlib import Path

from muster.supervisors.output.log_layout import Folder


@lru_cache(maxsize=4)
def folder(path: Path) -> Folder:
    """What is known of a folder of logs, once for all that read in it."""
    return Folder(path)
