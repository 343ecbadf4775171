"""The sshd of an MPI job on one of its nodes: `python -I -m muster.supervisors.launch.mpi.mpi_sshd --folder DIR`.

A service of the job (job_services.py), as the job's user in the job's environment. It finds configuration and keys and
becomes `sshd -D -e`, whose output is the service's log.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from muster.probes.kernel import marks
from muster.supervisors.launch.modes.boot import package_of, sshd_port
from muster.supervisors.launch.mpi.mpi_link import NotReady, say

#: Where distributions have it, which a user's PATH seldom names.
_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
#: What ModelArts' run_mpi.sh replaces by the port in `$MY_HOME/etc/ssh/sshd_config`.
_PORT_IN_FILE = "{{MY_SSHD_PORT}}"
#: Handed to what is started over ssh, so that the job's processes are known as such.
_MARKS = (marks.JOB_ID, marks.NONCE, marks.SERVICE)
#: sshd of root locks its unprivileged half up there.
_EMPTY = Path("/run/sshd")


def command(folder: Path, home: Path, env: Mapping[str, str]) -> list[str]:
    """sshd with its configuration: the image's own, `etc/ssh/sshd_config` in MY_HOME or the user's home, or else one of
    options only. `folder`: for files. Raises NotReady, OSError."""
    program = shutil.which("sshd", path=f"{env.get('PATH', '')}:{_FOLDERS}")
    if program is None:
        raise NotReady(f'sshd is not installed: {package_of("sshd")}; or set mpi_sshd = "never" in [jobs]', 127)
    port = sshd_port(env)
    marks = " ".join(f"{name}={env[name]}" for name in _MARKS if env.get(name))
    argv = [program, "-D", "-e", "-p", port, *_options({"PidFile": "none", "SetEnv": marks})]
    given = Path(env.get("MY_HOME") or home) / "etc/ssh/sshd_config"
    if given.exists():
        say(f"sshd at port {port}, configured by {given}")
        mine = folder / "sshd_config"
        mine.write_text(given.read_text().replace(_PORT_IN_FILE, port))
        return [*argv, "-f", str(mine)]
    keys = _authorized(home)
    say(f"sshd at port {port}; it accepts the keys in {', '.join(map(str, keys))}")
    own = {
        "HostKey": str(_host_key(folder)),
        "AuthorizedKeysFile": " ".join(map(str, keys)),
        "AllowUsers": env.get("USER", ""),
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",
        "UsePAM": "no",
        "MaxStartups": "1000",
    }
    return [*argv, "-f", "/dev/null", *_options(own)]


def _options(values: Mapping[str, str]) -> list[str]:
    return [word for name, value in values.items() if value for word in ("-o", f"{name}={value}")]


def _authorized(home: Path) -> list[Path]:
    """Files with the public keys of those who may log in: the user's own, as the nodes of a job have the same."""
    folder = home / ".ssh"
    found = [path for path in (folder / "authorized_keys", *sorted(folder.glob("id_*.pub"))) if path.is_file()]
    if not found:
        remedy = f"put a key pair into the image: ssh-keygen -N '' -f {folder}/id_ed25519"
        raise NotReady(f"no key may log in: neither {folder}/authorized_keys nor {folder}/id_*.pub exists; {remedy}")
    return found


def _host_key(folder: Path) -> Path:
    """A key of this sshd alone. One of an earlier attempt is used again."""
    key = folder / "host_key"
    if not key.exists():
        made = subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], stdin=subprocess.DEVNULL, check=False
        )
        if made.returncode:
            raise NotReady(f"cannot make the host key {key}: ssh-keygen ended with code {made.returncode}")
    return key


def main(words: list[str]) -> NoReturn:
    """Becomes sshd, or ends with a sentence."""
    parser = argparse.ArgumentParser(prog="python -m muster.supervisors.launch.mpi.mpi_sshd")
    parser.add_argument("--folder", type=Path, required=True, help="a private folder of the job's user")
    args = parser.parse_args(words)
    try:
        argv = command(args.folder, Path(os.environ.get("HOME") or "/"), os.environ)
        if os.geteuid() == 0:
            _EMPTY.mkdir(mode=0o755, exist_ok=True)
        os.execv(argv[0], argv)
    except NotReady as error:
        say(str(error))
        sys.exit(error.code)
    except (OSError, UnicodeError) as error:
        say(f"cannot start sshd: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
