"""Ansible's connection to a machine of these tests: `ansible_host` is the pid of its PID 1, seen from here."""

import subprocess

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: machine
short_description: a machine of systemd-nspawn, by nsenter
description: [Runs commands in its namespaces.]
author: [muster]
options:
  remote_addr:
    description: Pid of its PID 1.
    default: inventory_hostname
    vars:
      - name: inventory_hostname
      - name: ansible_host
"""


class Connection(ConnectionBase):  # type: ignore[misc]
    """As root, without a terminal."""

    transport = "machine"
    has_pipelining = True

    def _connect(self) -> "Connection":
        self._connected = True
        return self

    def _run(self, *argv: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        enter = ["nsenter", "-t", self.get_option("remote_addr"), *["-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]]
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        return subprocess.run([*enter, *argv], check=False, capture_output=True, input=given, env=environ)

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        done = self._run("sh", "-c", cmd, given=in_data or b"")
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path: str, out_path: str) -> None:
        with open(in_path, "rb") as file:
            self._run("sh", "-c", 'cat > "$0"', out_path, given=file.read())

    def fetch_file(self, in_path: str, out_path: str) -> None:
        with open(out_path, "wb") as file:
            file.write(self._run("cat", in_path).stdout)

    def close(self) -> None:
        self._connected = False
