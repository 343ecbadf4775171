"""docs/reference/settings.md, from the tables of agent/config/schema.py."""

import re

from muster.agent.config.schema import TABLES
from muster.probes.settings import Setting, settings_of, toml

_HEAD = """# Settings of musterd

Every key of the configuration file, with its default and the values that are allowed. `make docs` writes this page from
`agent/config/schema.py`. `musterd --default-config` prints a file with every setting as a comment.

- `musterd` reads `/etc/muster/musterd.toml`; with `--root DIR` it reads `DIR/musterd.toml`; `--config FILE` names
  another. The default files need not exist.
- `musterd --check-config` checks the file and starts nothing. It looks at the files of `[tls]` and at the groups of
  `[socket]` as well, so run it as the user of the daemon.
- musterd refuses a key that it does not know, and names the nearest one. It refuses a value of the wrong type or out of
  its range. Then it does not start.
- `SIGHUP` (`systemctl reload musterd`) makes musterd read the file again. If the file is bad, musterd keeps the
  configuration that it has, logs the reason, and shows a warning in `muster node`. A change of a key with * takes
  effect when musterd is started again; musterd shows that, too.
- Only root and the user of `musterd` may be able to change the file, the run, state and log folders, and every folder
  above them: who can change them says which programs the daemon runs. Otherwise musterd refuses to start; on reload it
  keeps the configuration that it has.
  [Files and their owners: trusted folders](../concepts/file-owners.md#trusted-folders) has the rule.
- `MUSTER_ROOT` in the environment stands for `--root`. Under systemd the daemon sends READY, RELOADING and STOPPING to
  `NOTIFY_SOCKET`.
"""
#: A default that is longer is cut.
_MAX_DEFAULT = 100
_LINK = re.compile(r"\]\((?=[\w/-]+\.md)")


def settings() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for name, table in TABLES.items():
        about = "\n\n".join(" ".join(part.split()) for part in (table.__doc__ or "").split("\n\n"))
        rows = "".join(_row(one) for one in settings_of(table).values())
        head = "| key | default | allowed | meaning |\n|---|---|---|---|\n"
        parts.append(_LINK.sub("](../", f"\n## [{name}]\n\n{about}\n\n{head}{rows}"))
    return "".join(parts)


def _row(one: Setting) -> str:
    key = f"`{one.name}`" + ("&nbsp;*" if one.restart else "")
    return (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in (key, _default(one), one.allowed(), one.help)) + " |\n"
    )


def _default(one: Setting) -> str:
    text = toml(one.default)
    if len(text) > _MAX_DEFAULT:
        return f"`{text[:_MAX_DEFAULT]}`..., whole in `musterd --default-config`"
    return f"`{text}`{_size(one)}"


def _size(one: Setting) -> str:
    """A number of bytes as people read it."""
    size, units = one.default, ["bytes", "KiB", "MiB", "GiB", "TiB"]
    if not one.name.endswith("_bytes") or not size:
        return ""
    while size % 1024 == 0 and len(units) > 1:
        size, units = size // 1024, units[1:]
    return f" ({size:g} {units[0]})" if units[0] != "bytes" else ""
