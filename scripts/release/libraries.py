"""Which shared libraries of the system the compiled files of wheels need, and the packages that have them."""

import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePath

#: Those of the C library, of which a package requires a version.
_GLIBC = frozenset(
    {
        *("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    }
)
#: Debian's packages of the others. Of a .rpm the name of the library is enough.
DEBIAN = {"libgcc_s.so.1": "libgcc-s1", "libstdc++.so.6": "libstdc++6"}
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS = 1, 5


def needed(wheels: Iterable[Path]) -> list[str]:
    """By name, without the C library and without what a wheel brings itself. Raises ValueError for an unknown one."""
    found: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            own = {PurePath(name).name for name in archive.namelist()}
            for name in archive.namelist():
                found.update(set(of_file(archive.read(name))) - own)
    if unknown := found - _GLIBC - DEBIAN.keys():
        raise ValueError(f"no package is known for {', '.join(sorted(unknown))}: add it to {Path(__file__).name}")
    return sorted(found - _GLIBC)


def of_file(content: bytes) -> list[str]:
    """What a file names as needed, if it is one of ELF for 64 bits, little endian."""
    if content[:6] != b"\x7fELF\x02\x01":
        return []
    at, size, count = *struct.unpack_from("<Q", content, 32), *struct.unpack_from("<HH", content, 54)
    # Kind, flags, place in the file, address, physical address, size in the file.
    parts = [struct.unpack_from("<IIQQQQ", content, at + i * size) for i in range(count)]
    dynamic = next((part for part in parts if part[0] == _DYNAMIC), None)
    if dynamic is None:
        return []
    entries = list(struct.iter_unpack("<QQ", content[dynamic[2] : dynamic[2] + dynamic[5] // 16 * 16]))
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    loaded = (part for part in parts if part[0] == _LOAD and 0 <= address - part[3] < part[5])
    names = next((address - part[3] + part[2] for part in loaded), 0)
    starts = [names + value for tag, value in entries if tag == _NEEDED]
    return [content[start : content.index(b"\0", start)].decode() for start in starts]
