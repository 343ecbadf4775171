"""Writes what a package puts into a node beside its environment, below a folder: units, man pages, completions, links.

Run with the muster that is packed on PYTHONPATH: python node_files.py FOLDER PROGRAMS
"""

import sys
from pathlib import Path

from muster.agent.cli.commands.service_files import PACKAGED, wanted_files
from muster.agent.cli.main import cli


def main(folder: Path, programs: Path) -> None:
    """`programs`: the folder of muster and musterd on the node."""
    for path, content in wanted_files(cli, programs, places=PACKAGED).items():
        place = folder / str(path)[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            place.symlink_to(content)
        else:
            place.write_bytes(content)
            place.chmod(0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
