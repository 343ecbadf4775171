"""A real sshd of one's own, with its own keys, on addresses of the loopback."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import eventually
from tests.ports import free_port

_SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ.get('PATH', '')}")


def missing() -> str:
    """What is not installed; empty where all is."""
    if _SSHD is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "needs sshd and ssh: apt install openssh-server openssh-client"
    return ""


@contextlib.contextmanager
def running(folder: Path, addresses: list[str]) -> Iterator[tuple[int, Path]]:
    """Its port, and a program that stands in for ssh and is let in."""
    assert _SSHD is not None
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd locks its unprivileged half up
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port = free_port(addresses[0])
    config = {
        "Port": port,
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "PasswordAuthentication": "no",
        "MaxStartups": "100",
    }
    lines = [f"{name} {value}" for name, value in config.items()] + [f"ListenAddress {a}" for a in addresses]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    agent = folder / "rsh"
    options = "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    agent.write_text(f'#!/bin/sh\nexec ssh -i {folder / "user"} {options} "$@"\n')
    agent.chmod(0o755)
    with open(folder / "log", "wb") as log:
        sshd = subprocess.Popen([_SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        eventually(lambda: (folder / "log").read_text().count("listening on") == len(addresses), 60, "sshd listens")
        yield port, agent
    finally:
        sshd.terminate()
        sshd.wait(60)
