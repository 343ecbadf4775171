"""What this node must have before a job is taken whose code, inputs or outputs are copied.

Nothing of it is imported: a daemon is to stay small, and the step that copies is a program of its own.
"""

import importlib.util
import os
import stat
from collections.abc import Iterator

from muster.supervisors.launch.child import Account
from muster.supervisors.model.rules import staging_urls
from muster.supervisors.model.spec import JobSpec, Violation
from muster.supervisors.supervision_errors import NotStartable


def lacking(spec: JobSpec) -> Iterator[Violation]:
    """Packages that are not installed, URLs of schemes that nothing here reads, credentials that others can read.
    Blocks."""
    urls = {"code": spec.code} if spec.code else {}
    for field, table in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        urls |= {f"{field}[{path[:40]!r}]": url for path, url in table.items()}
    for field, url in urls.items():
        if text := _unreadable(staging_urls.scheme(url)):
            yield Violation(field, f"{staging_urls.shown(url)!r}: {text}")
    if urls and spec.staging_credentials:
        yield from _not_its_own(spec.staging_credentials, spec.user)


def _unreadable(scheme: str) -> str:
    """Why URLs of a scheme cannot be copied; empty: they can."""
    if not _is_installed("fsspec"):
        return f"muster copies by fsspec, which is not installed beside it: {staging_urls.EXTRA}"
    module = staging_urls.MODULES.get(scheme)
    if module is None:
        return "" if scheme in _others() else _unknown(scheme)
    if _is_installed(module):
        return ""
    remedy = staging_urls.EXTRA if module in ("s3fs", "aiohttp") else f"pip install {module.replace('_', '-')}"
    return f"{scheme} needs the package {module}, which is not installed beside muster: {remedy}"


def _unknown(scheme: str) -> str:
    here = sorted(name for name, module in staging_urls.MODULES.items() if _is_installed(module))
    return f"{scheme} is not a known scheme: this node has {', '.join(here)}; install a package for it beside muster"


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _others() -> set[str]:
    """Schemes for which a package of somebody else's registers with fsspec."""
    import importlib.metadata  # rarely needed, and brings the library's email with it

    return {entry.name for entry in importlib.metadata.entry_points(group="fsspec.specs")}


def _not_its_own(path: str, user: str) -> Iterator[Violation]:
    """What makes a file not the own one of a job's user. A file that the daemon cannot look at passes: the step looks,
    as that user."""
    try:
        found, uid = os.stat(path), Account.of(user).uid
    except (OSError, NotStartable):
        return
    why = ""
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        why = f"other users have access to it (mode {found.st_mode & 0o777:03o}): chmod 600"
    elif uid not in (0, found.st_uid):
        why = f"belongs to uid {found.st_uid}: chown it to the job's user, {user or uid}"
    if why:
        yield Violation("staging_credentials", f"{path!r}: {why}")
