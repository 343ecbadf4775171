"""Where libdcmi.so lies, and what it takes to load it."""

import ctypes
import os
import re
from collections.abc import Iterable

from muster.probes.cards.accelerator import DriverError, Trouble

#: Where the driver's packages put the library, over what the loader finds by itself (LD_LIBRARY_PATH, ldconfig).
LIBRARIES = (
    "libdcmi.so",
    "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
    "/usr/local/dcmi/libdcmi.so",
)
#: Where the libraries lie that it needs: a service has no LD_LIBRARY_PATH.
NEEDED = ("/usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64/common")


def load(libraries: Iterable[str] = LIBRARIES) -> ctypes.CDLL:
    """The library. Raises DriverError NO_LIBRARY."""
    broken = ""
    for name in libraries:
        try:
            return _load(name, ctypes.DEFAULT_MODE, set())
        except OSError as trouble:
            # A missing library may be elsewhere; a library that exists and cannot be loaded is an error.
            if os.path.exists(name) or (os.sep not in name and name not in str(trouble)):
                broken = broken or str(trouble)
    reason = f"libdcmi.so cannot be loaded: {broken}" if broken else "libdcmi.so is not found"
    raise DriverError(Trouble.NO_LIBRARY, reason, of_driver=True)


def _load(name: str, mode: int, tried: set[str]) -> ctypes.CDLL:
    """Loads what it needs from the driver's folders first, where the loader does not find that by itself."""
    while True:
        try:
            return ctypes.CDLL(name, mode)
        except OSError as trouble:
            match = re.match(r"([\w.+-]+): cannot open shared object file", str(trouble))
            path = match and next((f for folder in NEEDED if os.path.exists(f := f"{folder}/{match[1]}")), None)
            if not path or path in tried or path == name:
                raise
            tried.add(path)
            # The loader keeps it under its name, where its users find it.
            _load(path, ctypes.RTLD_GLOBAL, tried)
