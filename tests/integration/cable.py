"""Two network namespaces of one's own that a cable joins: nodes with an address each, in one machine."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest


@contextlib.contextmanager
def joined(addresses: Sequence[str]) -> Iterator[list[str]]:
    """Two namespaces with these addresses (IPv4, of one /24), by the names that `ip netns exec` takes. Skips the test
    where they cannot be made."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and ip: apt install iproute2")
    third = addresses[0].split(".")[2]  # tests with other addresses may run at the same time
    names = [f"muster-{os.getpid()}-{third}-{i}" for i in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, timeout=60)

    with contextlib.ExitStack() as made:
        for name in names:
            ip("netns", "add", name)
            made.callback(ip, "netns", "del", name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, addresses, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
