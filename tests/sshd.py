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


def prepared(folder: Path, addresses: list[str]) -> tuple[list[str], int, Path]:
    """A command that runs one in the foreground, on no address yet; its port, and a program that stands in for ssh and
    is let in."""
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
    (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in config.items()))
    agent = folder / "rsh"
    options = "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    agent.write_text(f'#!/bin/sh\nexec ssh -i {folder / "user"} {options} "$@"\n')
    agent.chmod(0o755)
    return [_SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], port, agent


@contextlib.contextmanager
def running(folder: Path, addresses: list[str]) -> Iterator[tuple[int, Path]]:
    """Its port, and a program that stands in for ssh and is let in."""
    command, port, agent = prepared(folder, addresses)
    command += [word for address in addresses for word in ("-o", f"ListenAddress={address}")]
    with open(folder / "log", "wb") as log:
        sshd = subprocess.Popen(command, stderr=log)
    try:
        eventually(lambda: (folder / "log").read_text().count("listening on") == len(addresses), 60, "sshd listens")
        yield port, agent
    finally:
        sshd.terminate()
        sshd.wait(60)
